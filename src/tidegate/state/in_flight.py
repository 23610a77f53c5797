"""Records in flight: what a round that was cut short has received and not processed, as a part of a snapshot.

A log is a row of chunks as they came, in the order in which they are to be processed, in files of ``shared/``. A file is written
once. A round that works off a part of a log, and not all of it, refers to the same files again, from further behind.

What belongs together stays in order: the logs of one ``turn`` are worked off side by side, all of them before those of the next. A
subtask has more than one log in a turn only after a rescale, or if it is a source: then every split has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidegate.base.counts import count
from tidegate.base.errors import NewerFormatError, RestoreError
from tidegate.base.files import FileHandle, Files, corrupt
from tidegate.base.watermarks import MIN_WATERMARK
from tidegate.state.key_groups import range_for
from tidegate.state.refs import KeyGroupRange, StateFile

FORMAT = 1
_MAGIC = b"TGINFLIGHT"
_HEAD = _MAGIC + bytes([FORMAT])
_ALL = KeyGroupRange(0, 0)


class KeptRow(msgspec.Struct, frozen=True, array_like=True):
    """A chunk. ``channel``: the name of the edge or the split it came by. ``watermark``: event time in front of it. ``values``,
    ``keys``, ``times``: as they travel (``operators/flow/rows.py``)."""

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
    """What waits: ``records`` in so many ``bytes``. ``first``: rows of the first file that are through; ``taken``: records of the
    row behind them that are, too. ``watermark``: event time in front of it, ``end``: behind it."""

    files: tuple[StateFile, ...]
    records: int
    bytes: int
    first: int = 0
    taken: int = 0
    watermark: int = MIN_WATERMARK
    end: int = MIN_WATERMARK
    channels: tuple[str, ...] = ()
    """Names of the edges that its records have come by."""
    groups: KeyGroupRange | None = None
    """Records have keys, of these key groups. ``clipped``: there are others in the files, which do not count."""
    clipped: bool = False
    pinned: bool = False
    """Its records are for this subtask of this many, and for no other."""
    split: str | None = None
    """Of a source: only rows of this split count. ``ends``: nothing comes behind it, now or ever."""
    ends: bool = False
    turn: int = 0
    mixed: bool = False
    """It came with those of other subtasks, behind a rescale: the order of their records among each other is lost."""


class InFlightPart(msgspec.Struct, frozen=True, tag="in-flight", tag_field="part", omit_defaults=True):
    """All that waits in front of the first operator of a chain, in one subtask."""

    logs: tuple[InFlightLog, ...]

    @property
    def files(self) -> tuple[StateFile, ...]:
        return tuple({file.path: file for log in self.logs for file in log.files}.values())

    @property
    def records(self) -> int:
        """Behind a rescale a log that several subtasks share counts for each of them, until it is worked off."""
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
    """Logs whose records have keys go to all subtasks that own one of their key groups now. The others stay whole: which subtask
    processes a record without a key does not matter, and the splits of a source are put right when they are read
    (``runtime/progress.py``)."""
    if len(parts) != parallelism and any(log.pinned for part in parts if part is not None for log in part.logs):
        raise RestoreError(
            "Records in flight of forward, rescale and custom connections can only be restored with the parallelism they were sent "
            "for.",
            found=f"{count(len(parts), 'subtask')} in the checkpoint, {parallelism} now",
            cure="restore with the old parallelism and take a savepoint, which has nothing in flight; or leave "
            "execution.checkpointing.unaligned.forced out",
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
            for n in range(parallelism):
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
    """All turns: those of different subtasks have nothing to do with each other. Splits of a source have no order among each
    other anyway."""
    return (log if log.split is not None else msgspec.structs.replace(log, mixed=True) for log in logs)


def _turn(log: InFlightLog) -> int:
    return log.turn


def _in(root: str, log: InFlightLog) -> InFlightLog:
    if not root:
        return log
    return msgspec.structs.replace(log, files=tuple(msgspec.structs.replace(file, root=root) for file in log.files))


# -- files ---------------------------------------------------------------------------------------------------------------


def write(files: Files, path: str, version: str, rows: Iterable[KeptRow]) -> StateFile:
    """Durable when this returns."""
    every = list(rows)
    handle = files.write(path, _HEAD + _pack(every))
    return StateFile(handle.path, handle.size, handle.hash, version, _ALL, len(every))


def read(files: Files, file: StateFile) -> list[KeptRow]:
    """The rows of a file; ``CorruptFileError`` if it is not what was written."""
    storage = Files(file.root) if file.root else files
    data = storage.read(FileHandle(file.path, file.size, file.hash))
    head = data[: len(_HEAD)]
    if head[:-1] != _MAGIC:
        raise corrupt(storage.location(file.path), f"a file beginning with {_MAGIC!r}", repr(head))
    if head[-1] != FORMAT:
        raise NewerFormatError(
            "Records in flight must be of a format this Tidegate reads.",
            where=storage.location(file.path),
            found=f"format {head[-1]}; this Tidegate reads {FORMAT}",
            cure="run the job with the Tidegate version that wrote it, or a later one",
        )
    return _unpack(memoryview(data)[len(_HEAD) :])


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[KeptRow]).decode
