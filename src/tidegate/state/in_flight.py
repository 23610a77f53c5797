"""Records in flight: records that a shortened round has received and not processed, as a part of a snapshot.

A log is a sequence of chunks in the order of processing, in files of ``shared/``. A file is written once. A round that processes
only a part of a log refers to the same files again, from a later row.

Order is kept: the logs of one ``turn`` are processed side by side, all of them before those of the next turn. A subtask has more
than one log in a turn only after a rescale, or if it is a source: then every split has its own log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidegate.base.clock import MIN_WATERMARK
from tidegate.base.errors import NewerFormatError, RestoreError
from tidegate.base.files import FileHandle, Files, corrupt
from tidegate.base.plain_text import count
from tidegate.state.key_groups import owners, range_for
from tidegate.state.refs import KeyGroupRange, StateFile

FORMAT = 1
_MAGIC = b"TGINFLIGHT"
_HEAD = _MAGIC + bytes([FORMAT])
_ALL = KeyGroupRange(0, 0)


class KeptRow(msgspec.Struct, frozen=True, array_like=True):
    """A chunk. ``channel``: the name of its edge or split. ``watermark``: event time before the chunk. ``values``, ``keys``,
    ``times``: in the form of a row (``operators/flow/rows.py``)."""

    channel: str
    watermark: int
    records: int
    values: bytes
    keys: bytes | None
    times: bytes | None

    @property
    def size(self) -> int:
        return sum(len(part) for part in (self.values, self.keys, self.times) if part is not None)


class InFlightLog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Waiting records: their number and ``bytes``. ``first``: rows of the first file that are processed already; ``taken``: records
    of the next row that are processed too. ``watermark``: event time before the log, ``end``: after it."""

    files: tuple[StateFile, ...]
    records: int
    bytes: int
    first: int = 0
    taken: int = 0
    watermark: int = MIN_WATERMARK
    end: int = MIN_WATERMARK
    channels: tuple[str, ...] = ()
    """Names of the edges of its records."""
    groups: KeyGroupRange | None = None
    """The key groups of its records, if they have keys. ``clipped``: the files contain other key groups, which do not count."""
    clipped: bool = False
    pinned: bool = False
    """Its records belong to this subtask at this parallelism, and to no other subtask."""
    split: str | None = None
    """In a source: only rows of this split count. ``ends``: no record of the split follows, now or later."""
    ends: bool = False
    turn: int = 0
    mixed: bool = False
    """After a rescale the subtask has logs of several former subtasks: the order among their records is lost."""


class InFlightPart(msgspec.Struct, frozen=True, tag="in-flight", tag_field="part", omit_defaults=True):
    """All records that wait before the first operator of a chain, in one subtask."""

    logs: tuple[InFlightLog, ...]

    @property
    def files(self) -> tuple[StateFile, ...]:
        return tuple({file.path: file for log in self.logs for file in log.files}.values())

    @property
    def records(self) -> int:
        """The number of waiting records. After a rescale a shared log counts for each of its subtasks, until it is processed."""
        return sum(log.records for log in self.logs)

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    @property
    def has_keys(self) -> bool:
        return any(log.groups is not None for log in self.logs)

    @property
    def channels(self) -> set[str]:
        return {name for log in self.logs for name in log.channels}

    def with_files(self, moved: Callable[[StateFile], StateFile]) -> InFlightPart:
        replace = msgspec.structs.replace
        return InFlightPart(tuple(replace(log, files=tuple(map(moved, log.files))) for log in self.logs))


def redistribute(
    parts: Sequence[InFlightPart | None], parallelism: int, max_parallelism: int, root: str
) -> list[InFlightPart | None]:
    """Give logs with keys to all subtasks that own one of their key groups now. Other logs stay whole: any subtask may process a
    record without a key, and the splits of a source are assigned when they are read (``runtime/progress.py``)."""
    if len(parts) != parallelism and any(log.pinned for part in parts if part is not None for log in part.logs):
        raise RestoreError(
            "The parallelism has changed, and records in flight of forward, rescale or custom connections cannot follow.",
            found=f"{count(len(parts), 'subtask')} in the checkpoint, {parallelism} now",
            cure="restore with the old parallelism and take a savepoint, which holds no records in flight; or unset "
            "execution.checkpointing.unaligned.forced",
        )
    held = [tuple(_in(root, log) for log in part.logs) if part is not None else () for part in parts]
    if len(parts) == parallelism:
        return [InFlightPart(logs) if logs else None for logs in held]
    dealt: list[list[InFlightLog]] = [[] for _ in range(parallelism)]
    givers: list[set[int]] = [set() for _ in range(parallelism)]
    for subtask, logs in enumerate(held):
        for log in logs:
            if log.groups is None:
                dealt[subtask % parallelism].append(log)
                givers[subtask % parallelism].add(subtask)
                continue
            for n in owners(log.groups, parallelism, max_parallelism):
                common = log.groups.intersect(range_for(n, parallelism, max_parallelism))
                if common is not None:
                    clipped = log.clipped or common != log.groups
                    dealt[n].append(msgspec.structs.replace(log, groups=common, clipped=clipped))
                    givers[n].add(subtask)
    return [
        InFlightPart(tuple(sorted(_mixed(logs) if len(from_) > 1 else logs, key=_turn))) if logs else None
        for logs, from_ in zip(dealt, givers, strict=True)
    ]


def _mixed(logs: list[InFlightLog]) -> Iterable[InFlightLog]:
    """Mark logs of all turns as mixed: turns of different subtasks are unrelated. Splits of a source have no order anyway."""
    return (log if log.split is not None else msgspec.structs.replace(log, mixed=True) for log in logs)


def _turn(log: InFlightLog) -> int:
    return log.turn


def _in(root: str, log: InFlightLog) -> InFlightLog:
    if not root:
        return log
    return msgspec.structs.replace(log, files=tuple(msgspec.structs.replace(file, root=root) for file in log.files))


# -- files ---------------------------------------------------------------------------------------------------------------


def write(files: Files, path: str, version: str, rows: Iterable[KeptRow]) -> StateFile:
    """Write rows to a file and make it durable."""
    every = list(rows)
    handle = files.write(path, _HEAD + _pack(every))
    return StateFile(handle.path, handle.size, handle.hash, version, _ALL, len(every))


def read(files: Files, file: StateFile) -> list[KeptRow]:
    """Return the rows of a file. Raise ``CorruptFileError`` if it is damaged."""
    storage = Files(file.root) if file.root else files
    data = storage.read(FileHandle(file.path, file.size, file.hash))
    head = data[: len(_HEAD)]
    if head[:-1] != _MAGIC:
        raise corrupt(storage.location(file.path), f"a file beginning with {_MAGIC!r}", repr(head))
    if head[-1] != FORMAT:
        raise NewerFormatError(
            "The records in flight are of a format that this Tidegate does not read.",
            where=storage.location(file.path),
            found=f"format {head[-1]}; this Tidegate reads {FORMAT}",
            cure="run the job with the version of Tidegate that wrote it, or a newer one",
        )
    return _unpack(memoryview(data)[len(_HEAD) :])


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[KeptRow]).decode
