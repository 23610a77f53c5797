"""Every format on checkpoint storage with a fixed content: what golden files are made of, and are compared with.

``python -m tests.compat.formats`` writes the golden files that are missing. It never writes over one: a file that was written by
an earlier version of Tidegate must be read for ever.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey
from tidegate.checkpoint import history, lease_records, metadata
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, OperatorFigures
from tidegate.checkpoint.lease_records import AttemptStatus, Claim, LiveRecord, RestoredRecord, RestorePoint
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.checkpoint.owner import Owner
from tidegate.state import in_flight, segments
from tidegate.state.in_flight import InFlightLog, InFlightPart
from tidegate.state.layout import STATE, TIMERS
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema
from tidegate.state.snapshot import (
    GENERATOR,
    IN_FLIGHT,
    KEYED,
    SPLITS,
    WRITER,
    KeyedPart,
    ListPart,
    OperatorSnapshot,
    Redistribution,
    StoredPart,
)

GOLDEN = Path(__file__).parent / "golden"
GROUPS = KeyGroupRange(0, 127)


@dataclass(frozen=True)
class Format:
    """``write`` gives the bytes of ``content`` as this Tidegate writes them; ``read`` gives it back, from any version's bytes."""

    name: str
    version: int
    content: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    exact: bool = True
    """False: other versions of a library may write other bytes."""

    @property
    def path(self) -> Path:
        return GOLDEN / f"{self.name}.{self.version}"

    def all_versions(self) -> list[Path]:
        return sorted(GOLDEN.glob(f"{self.name}.*"))


def _metadata() -> CheckpointMetadata:
    file = StateFile("shared/0011-0-41-ab.seg", 4711, "00" * 16, "ab-41", GROUPS, 12)
    schemas = (StateSchema("total", "value", "LONG"), StateSchema("seen", "map", "LONG", "STRING", 5000))
    keyed = KeyedPart(GROUPS, (file,), schemas, "STRING")
    source = OperatorSnapshot({SPLITS: ListPart.of(Redistribution.EVEN_SPLIT, [["s-0", 1700, 1800]])}, 1699, True)
    assigner = OperatorSnapshot({GENERATOR: ListPart.of(Redistribution.SUBTASK, [1700, 1800])}, 1699)
    sink = OperatorSnapshot({WRITER: ListPart.of(Redistribution.EVEN_SPLIT, [{"part": b"\x00\xff"}])})
    rules = OperatorSnapshot({"rules": ListPart.of(Redistribution.BROADCAST, ["a"])})
    offsets = OperatorSnapshot({"offsets": ListPart.of(Redistribution.UNION, [1])})

    def operator(name: str, snapshot: OperatorSnapshot, **fields: Any) -> OperatorState:
        uid_hash = f"{len(name):032x}"
        return OperatorState(
            uid_hash=uid_hash, uid=name, name=name, parallelism=1, max_parallelism=128, subtasks=[snapshot], **fields
        )

    return CheckpointMetadata(
        checkpoint_id=7,
        job_id="f" * 32,
        job_name="orders ä",
        token=3,
        trigger_ms=1_700_000_000_000,
        complete_ms=1_700_000_000_250,
        round=41,
        operators=[
            operator("numbers", source, source={"splits": [1, 2.5, None, "x"]}),
            operator("times", assigner),
            operator("totals", OperatorSnapshot({KEYED: keyed}, 1699)),
            operator("by rule", rules),
            operator("offset", offsets),
            operator("out", sink, committables=[msgspec.msgpack.encode({"file": "a"})]),
        ],
    )


def _in_flight() -> CheckpointMetadata:
    """Records in flight in front of a keyed operator, with a clip and a second turn, and of two splits of a source."""
    first = StateFile("shared/0013-0-41-ab-0.in-flight", 321, "22" * 16, "ab-41", KeyGroupRange(0, 0), 5)
    keyed = InFlightLog(
        (first,), 40, 300, 2, 7, 1600, 1690, ("00ff/0/",), groups=KeyGroupRange(3, 9), clipped=True, pinned=True
    )
    splits = [InFlightLog((first,), 3, 30, split="s-0"), InFlightLog((first,), 4, 40, split="s-1", ends=True)]
    parts = {
        "totals": InFlightPart((keyed, msgspec.structs.replace(keyed, turn=1))),
        "numbers": InFlightPart(tuple(splits)),
    }
    operators = [
        OperatorState(
            uid_hash=f"{len(name):032x}",
            name=name,
            parallelism=1,
            max_parallelism=128,
            subtasks=[OperatorSnapshot({IN_FLIGHT: part})],
        )
        for name, part in parts.items()
    ]
    return msgspec.structs.replace(_metadata(), operators=operators)


def _stored_parts() -> CheckpointMetadata:
    """States of operators themselves, of each way of redistribution."""
    file = StateFile("shared/0012-0-41-ab.seg", 815, "11" * 16, "ab-41", GROUPS, 3)
    offsets = StoredPart(
        Redistribution.EVEN_SPLIT, StateSchema("offsets", "list", "LONG"), (file,), (b"\x01", b"\x02"), (1, 3)
    )
    seen = StoredPart(Redistribution.UNION, StateSchema("seen", "list", "STRING"), (), (b"\xa1a",))
    rules = StoredPart(Redistribution.BROADCAST, StateSchema("rules", "map", "STRING", "LONG"), (file,))
    snapshot = OperatorSnapshot({"offsets": offsets, "seen": seen, "rules": rules}, 1699)
    operator = OperatorState(
        uid_hash="a" * 32, uid="own", name="own", parallelism=1, max_parallelism=128, subtasks=[snapshot]
    )
    return CheckpointMetadata(
        checkpoint_id=8,
        job_id="f" * 32,
        job_name="own",
        token=3,
        trigger_ms=1,
        complete_ms=2,
        round=1,
        operators=[operator],
    )


def _record(name: str, record: Any) -> Format:
    def read(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "record").write_bytes(data)
            return lease_records.read_record(Files(directory), "record", type(record))

    return Format(name, lease_records.VERSION, record, lease_records.encode, read)


def _history() -> list[HistoryEntry]:
    completed = HistoryEntry(
        checkpoint_id=1, token=1, kind="checkpoint", status=CheckpointStatus.COMPLETED, trigger_ms=1, end_ms=5,
        duration_ms=4.5, round=3, size=99, operators_ms={"x": 1.25},
    )  # fmt: skip
    failed = HistoryEntry(
        checkpoint_id=2, token=1, kind="checkpoint", status=CheckpointStatus.FAILED, trigger_ms=6, end_ms=7,
        duration_ms=1.0, reason="DECLINED", message="disk full",
    )  # fmt: skip
    return [completed, failed]


def _measured_history() -> list[HistoryEntry]:
    measured = HistoryEntry(
        checkpoint_id=3, token=1, kind="checkpoint", status=CheckpointStatus.COMPLETED, trigger_ms=6, end_ms=9,
        duration_ms=3.0, round=4, size=120, incremental=21, in_flight_bytes=7, in_flight_records=2, behind=0,
        steps_ms={"run": 1.5, "commit": 0.5}, operators={"x": OperatorFigures(name="X", snapshot_ms=1.5, size=99)},
    )  # fmt: skip
    return [measured]


def _write_history(entries: list[HistoryEntry]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(directory)
        history.CheckpointHistory(files).add(*entries)
        return files.read_bytes(history.PATH)


def _read_history(data: bytes) -> list[HistoryEntry]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, history.PATH).write_bytes(data)
        return history.read_history(Files(directory))


_ENTRIES = [
    (STATE, [b"\x00\x05\x05total\x00\x02\xa1a", b"\x01", b"\x00\x07\x05total\x00\x02\xa1b", None]),
    (TIMERS, [b"\x00\x05\x00\x80\x00\x00\x00\x00\x00\x06\xa4\x00\xa1a", b""]),
]


def _write_segment(entries: list[tuple[int, list[Any]]], compressed: bool = False) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(directory)
        with segments.SegmentWriter(files, "shared/x", compressed=compressed) as writer:
            for table, flat in entries:
                writer.add(table, flat, deletes=table == STATE)
            writer.finish(version="v", groups=GROUPS)
        return files.read_bytes("shared/x")


def _read_segment(data: bytes) -> list[tuple[int, list[Any]]]:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(directory)
        handle = files.write("x", data)
        ref = StateFile("x", handle.size, handle.hash, "v", GROUPS)
        return [(batch.table, batch.flat) for batch in segments.read(files, ref)]


_KEPT = [
    in_flight.KeptRow("00ff/0/", 1600, 2, b"\x92\x01\x02", b"\x92\x05\x06", None),
    in_flight.KeptRow("00ff/0/late", 1700, 1, b"\x91\xa1a", None, b"\x91\x07"),
]


def _write_kept(rows: list[in_flight.KeptRow]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(directory)
        in_flight.write(files, "shared/x", "v", rows)
        return files.read_bytes("shared/x")


def _read_kept(data: bytes) -> list[in_flight.KeptRow]:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(directory)
        handle = files.write("x", data)
        return in_flight.read(files, StateFile("x", handle.size, handle.hash, "v", GROUPS))


FORMATS = [
    Format(
        "metadata",
        metadata.VERSION,
        _metadata(),
        metadata.encode_metadata,
        lambda data: metadata.decode_metadata("golden", data),
    ),
    Format(
        "metadata-operator-states",
        metadata.VERSION,
        _stored_parts(),
        metadata.encode_metadata,
        lambda data: metadata.decode_metadata("golden", data),
    ),
    Format(
        "metadata-in-flight",
        metadata.WITH_RECORDS,
        _in_flight(),
        metadata.encode_metadata,
        lambda data: metadata.decode_metadata("golden", data),
    ),
    Format(
        "metadata-signed",
        metadata.SIGNED,
        _metadata(),
        partial(metadata.encode_metadata, key=SigningKey(b"the key of the golden file, 32 bytes")),
        lambda data: metadata.decode_metadata("golden", data),
    ),
    Format("in-flight", in_flight.FORMAT, _KEPT, _write_kept, _read_kept),
    _record("lease-claim", Claim(3, "n" * 8, "f" * 32, Owner("host", 4711, "99", "boot"), 1_700_000_000_000, 30_000)),
    _record("lease-restored", RestoredRecord(RestorePoint(7, 3, "s3://other/chk-7"))),
    _record(
        "lease-live",
        LiveRecord(
            heartbeat_ms=1_700_000_000_500,
            first_id=5,
            last_id=8,
            retained=[RestorePoint(7, 3)],
            protected=[RestorePoint(2, 1)],
            status=AttemptStatus.CANCELLED,
            discarded=False,
            released=True,
            origin="/savepoints/sp-1",
        ),
    ),
    Format("history", history.VERSION, _history(), _write_history, _read_history),
    Format("history-figures", history.VERSION, _measured_history(), _write_history, _read_history),
    Format("segment", segments.PLAIN, _ENTRIES, _write_segment, _read_segment),
    Format(
        "segment-compressed",
        segments.COMPRESSED,
        _ENTRIES,
        partial(_write_segment, compressed=True),
        _read_segment,
        exact=False,
    ),
]


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for known in FORMATS:
        if not known.path.exists():
            known.path.write_bytes(known.write(known.content))
            sys.stdout.write(f"written: {known.path}\n")


if __name__ == "__main__":
    main()
