"""Hold what a subtask has received and not processed. It is processed first, and stored at the end of a round that was
too short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Self

import msgspec
import numpy as np

from tidegate.base.errors import StorageError, UserCodeError
from tidegate.base.files import Files
from tidegate.operators.contracts.batch import Batch, Keys
from tidegate.operators.flow.packing import PLAIN, length_of, pack_columns, packed_field
from tidegate.operators.flow.rows import MIN_WATERMARK, Payload
from tidegate.state import in_flight
from tidegate.state.in_flight import InFlightLog, InFlightPart, KeptRow
from tidegate.state.key_groups import encode_and_group
from tidegate.state.refs import KeyGroupRange, StateFile

MOST_FILES = 16
"""Files of a log, before the rest of the log is written again."""
MOST_BYTES = 64 << 20
"""Approximate size of a file: a file is read as a whole."""
MOST_LOADED = 16
"""Files whose rows are in memory."""


GRACE_MS = 50
"""The minimum time that a subtask works. Stages run one after the other, so stages after a slow operator may begin
after the deadline: mostly this time is enough for all their input. And whatever clocks say, every round makes progress.
"""

_FIRST, _MOST = 8, 1 << 20
_SHORT_MS, _LONG_MS = 50, 200


class Pace:
    """Decide until when a subtask takes input, and how much at once. Used only where checkpoints may be unaligned.

    Between pieces of a chunk the subtask looks at the clock. Pieces grow while they are quick. So a slow function is
    stopped in time, and a quick function is hardly ever interrupted.
    """

    def __init__(self, deadline_ms: int, now_ms: Callable[[], int]) -> None:
        self._deadline_ms, self._now_ms = deadline_ms, now_ms
        self._began_ms: int | None = None
        self._size, self._is_over = _FIRST, False

    def is_over(self) -> bool:
        """Tell whether the time is over. It is never over before the first piece is processed, and then stays over
        whatever the clock says later."""
        if not self._is_over and self._began_ms is not None:
            self._is_over = self._now_ms() >= max(self._deadline_ms, self._began_ms + GRACE_MS)
        return self._is_over

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the records from ``start`` to ``end``, in pieces for as long as there is time."""
        while start < end and not self.is_over():
            began = self._now_ms()
            upto = min(end, start + self._size)
            yield start, upto
            start = upto
            if self._began_ms is None:
                self._began_ms = began
            self._adapt(self._now_ms() - began)

    def _adapt(self, took_ms: int) -> None:
        if took_ms < _SHORT_MS:
            self._size = min(_MOST, self._size * 2)
        elif took_ms > _LONG_MS:
            self._size = max(1, self._size // 2)


class LogReader:
    """Process a log step by step: look at ``row``, then report with ``took``. ``load``: reads the rows of a file."""

    def __init__(self, log: InFlightLog, load: Callable[[StateFile], list[KeptRow]]) -> None:
        self.log, self._load = log, load
        self.waits = True
        """The log is not finished: a stored log is never empty."""
        self._files, self._number, self.taken = log.files, log.first, log.taken
        self._records, self._bytes, self.watermark = log.records, log.bytes, log.watermark

    @property
    def row(self) -> KeptRow:
        """Return the first row that is not finished; ``taken`` of its records are processed."""
        row = self._find()
        assert row is not None
        return row

    def _find(self) -> KeptRow | None:
        while self._files:
            rows = self._load(self._files[0])
            while self._number < len(rows):
                row = rows[self._number]
                if self.log.split in (None, row.channel):
                    return row
                self._number += 1
            self._files, self._number = self._files[1:], 0
        return None

    def took(self, taken: int) -> None:
        """Report the number of records of the row that are processed, with those before."""
        row = self.row
        self._records -= taken - self.taken
        self.taken = taken
        if taken == row.records:
            self._bytes -= row.size
            self._number, self.taken = self._number + 1, 0
            following = self._find()
            self.waits = following is not None
            self.watermark = self.log.end if following is None else following.watermark

    def rest(self) -> list[KeptRow]:
        """Return all rows that are not finished, also a row that is processed in part."""
        rows, number = [], self._number
        for file in self._files:
            rows += [row for row in self._load(file)[number:] if self.log.split in (None, row.channel)]
            number = 0
        return rows

    def left(self) -> InFlightLog:
        """Return what is left of the log."""
        return msgspec.structs.replace(
            self.log,
            files=self._files,
            records=self._records,
            bytes=self._bytes,
            first=self._number,
            taken=self.taken,
            watermark=self.watermark,
        )


class _Backlog:
    """Share what both kinds of backlog need."""

    def __init__(self, part: InFlightPart | None, files: Files) -> None:
        self._files = files
        self._loaded: dict[str, list[KeptRow]] = {}
        self.readers = [LogReader(log, self._load) for log in (part.logs if part is not None else ())]
        self.new: list[KeptRow] = []
        """Received in this round, after what was there."""

    def _load(self, file: StateFile) -> list[KeptRow]:
        """Read the rows of a file. Logs of one turn are read side by side, and splits share files."""
        if file.path not in self._loaded:
            for path in list(self._loaded)[: 1 - MOST_LOADED]:
                del self._loaded[path]
            self._loaded[file.path] = in_flight.read(self._files, file)
        return self._loaded[file.path]

    @property
    def waits(self) -> bool:
        """Tell whether something is not processed: new input then has to wait."""
        return bool(self.new) or any(reader.waits for reader in self.readers)

    def part(self, path: str, version: str, *, whole: bool) -> InFlightPart | None:
        """Step 5: make durable what waits now. ``path``: the prefix of the names of new files. ``whole``: the part must
        not refer to files of an earlier round."""
        if not self.waits:
            return None
        with _Writer(self._files, path, version) as writer:
            left = [self._left(reader, writer, whole) for reader in self.readers if reader.waits]
            return InFlightPart(tuple(self._logs(left, writer)))

    def _logs(self, left: list[InFlightLog], writer: _Writer) -> Iterable[InFlightLog]:
        raise NotImplementedError

    @staticmethod
    def _left(reader: LogReader, writer: _Writer, whole: bool) -> InFlightLog:
        """Name existing files again, but not files of another job's directory."""
        log = reader.left()
        if whole or len(log.files) > MOST_FILES or any(file.root for file in log.files):
            return msgspec.structs.replace(log, files=writer.write(reader.rest()), first=0)
        return log


class _Writer:
    """Write the files of one subtask in one round. If a file cannot be written, the round is declined and the files
    before it are deleted: no ack names them."""

    def __init__(self, files: Files, path: str, version: str) -> None:
        self._files, self._path, self._version = files, path, version
        self._written: list[StateFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for file in self._written if kind is not None else ():
            with contextlib.suppress(StorageError):
                self._files.delete(file.path)

    def write(self, rows: list[KeptRow]) -> tuple[StateFile, ...]:
        written, begun, size = [], 0, 0
        for n, row in enumerate(rows):
            size += row.size
            if size >= MOST_BYTES or n + 1 == len(rows):
                path = f"{self._path}-{len(self._written)}.in-flight"
                written.append(in_flight.write(self._files, path, self._version, rows[begun : n + 1]))
                self._written.append(written[-1])
                begun, size = n + 1, 0
        return tuple(written)


class ChannelBacklog(_Backlog):
    """Hold chunks that came by channels, in the order in which they must be processed, each with the event time before
    it. That is the event time of all channels together, so nothing else of the channels has to be known later.
    ``groups``: the key groups of the subtask, if records come with keys. ``pinned``: channels whose records cannot go
    to another subtask."""

    def __init__(
        self, part: InFlightPart | None, files: Files, groups: KeyGroupRange | None, pinned: Collection[str] = ()
    ) -> None:
        super().__init__(part, files)
        self._groups, self._pinned, self._taken = groups, pinned, 0
        last = max((reader.log.turn for reader in self.readers), default=0)
        self.end = min((r.log.end for r in self.readers if r.log.turn == last), default=MIN_WATERMARK)
        """Event time after all that waits."""

    @property
    def is_mixed(self) -> bool:
        """Tell whether logs of several subtasks wait for this one. If this chain makes watermarks from records, the
        records of one log would make the records of the others late."""
        return any(reader.log.mixed for reader in self.readers if reader.waits)

    def next(self) -> LogReader | None:
        """Return the log whose turn it is; of several logs, the log with the lowest watermark."""
        waiting = [reader for reader in self.readers if reader.waits]
        return min(waiting, key=lambda reader: (reader.log.turn, reader.watermark), default=None)

    @property
    def watermark(self) -> int:
        """Return the event time before what waits: the lowest watermark of the logs. Logs of later turns count: a log
        of another former subtask may reach beyond their begin."""
        reader = self.next()
        if reader is None:
            return self.end
        return min(other.watermark for other in self.readers if other.waits or other.log.turn == reader.log.turn)

    def begin(self, channel: str, payload: Payload, before: int, watermark: int, taken: int) -> None:
        """Store a chunk of which ``taken`` records were processed; nothing waits yet. ``before``: event time before the
        chunk."""
        self._taken = taken
        self.reach(before)
        self.keep(channel, payload, watermark)

    def keep(self, channel: str, payload: Payload, watermark: int) -> None:
        """Store a chunk that is not processed. ``watermark``: event time after it."""
        self.new.append(KeptRow(channel, self.end, _records_of(payload), *payload))
        self.reach(watermark)

    def reach(self, watermark: int) -> None:
        """Note the event time after all that waits."""
        self.end = max(self.end, watermark)

    def _logs(self, left: list[InFlightLog], writer: _Writer) -> Iterable[InFlightLog]:
        """Add new chunks to the last log, if that log was always alone in its turn and takes all keys. Otherwise give
        the new chunks their own turn."""
        turn = max((log.turn for log in left), default=-1)
        if not self.new:
            return [msgspec.structs.replace(log, end=self.end) if log.turn == turn else log for log in left]
        last = [log for log in left if log.turn == turn]
        pinned = any(row.channel in self._pinned for row in self.new)
        added = _log_of(self.new, writer, end=self.end, groups=self._groups, taken=self._taken, pinned=pinned)
        if len(last) == 1 and last[0].groups == self._groups and not last[0].mixed:
            return [*(log for log in left if log.turn < turn), _joined(last[0], added)]
        return [*left, msgspec.structs.replace(added, turn=turn + 1)]


def chosen(reader: LogReader, keys: Keys | None, max_parallelism: int) -> list[int] | None:
    """Return the numbers of the current row's records that are not processed and belong here; None: all records after
    ``taken`` do."""
    groups = reader.log.groups
    if not reader.log.clipped or groups is None or keys is None:
        return None
    found = encode_and_group(keys, max_parallelism)[1]
    inside = np.flatnonzero((found >= groups.first) & (found <= groups.last)).tolist()
    return [number for number in inside if number >= reader.taken]


class SplitBacklog(_Backlog):
    """Hold batches of a source's splits, with a log for each split. The log stays with its split, wherever the split is
    read later."""

    def __init__(self, part: InFlightPart | None, files: Files) -> None:
        super().__init__(part, files)
        self._by_split = {reader.log.split: reader for reader in self.readers}
        self._ended = {reader.log.split for reader in self.readers if reader.log.ends}

    def of(self, split: str) -> LogReader | None:
        """Return what waits of a split, from earlier rounds."""
        reader = self._by_split.get(split)
        return reader if reader is not None and reader.waits else None

    @property
    def splits(self) -> list[str]:
        """Return the splits of which something waits."""
        before = [reader.log.split for reader in self.readers if reader.waits]
        return list(dict.fromkeys([*filter(None, before), *(row.channel for row in self.new)]))

    def batch(self, reader: LogReader) -> Batch:
        """Return the current row, with its processed records."""
        return PLAIN.unpack((reader.row.values, None, reader.row.times)).widened()

    def keep(self, split: str, batch: Batch) -> None:
        """Store a batch that is read and not processed."""
        try:
            packed = pack_columns(batch.columns, batch.width) if batch.columns else PLAIN.pack(list(batch.rows()))
        except Exception as error:
            raise UserCodeError(
                "Records that wait while an unaligned checkpoint is taken must be picklable",
                where=f"split '{split}' of a source",
                found=f"{type(error).__name__}: {error}",
                cure="emit plain data, tuples, Rows or instances of importable classes, or take aligned checkpoints",
            ) from error
        times = batch.time_list()
        moments = None if times is None else PLAIN.pack(times)
        self.new.append(KeptRow(split, MIN_WATERMARK, len(batch), packed, None, moments))

    def ends(self, split: str) -> bool:
        """Tell whether the split ends with what waits of it."""
        return split in self._ended

    def end(self, split: str) -> None:
        self._ended.add(split)

    def _logs(self, left: list[InFlightLog], writer: _Writer) -> Iterable[InFlightLog]:
        """Write what is new of all splits into one file."""
        logs = {log.split: log for log in left}
        if self.new:
            files = writer.write(self.new)
            for split in dict.fromkeys(row.channel for row in self.new):
                rows = [row for row in self.new if row.channel == split]
                records, size = sum(row.records for row in rows), sum(row.size for row in rows)
                added = InFlightLog(files, records, size, split=split)
                logs[split] = _joined(logs[split], added) if split in logs else added
        return [msgspec.structs.replace(log, ends=split in self._ended) for split, log in logs.items()]


def _records_of(payload: Payload) -> int:
    values, keys, times = payload
    if keys is not None and packed_field(keys) is None:
        return length_of(keys)  # keys are pickled least often
    return length_of(values if times is None else times)


def _log_of(rows: list[KeptRow], writer: _Writer, **more: Any) -> InFlightLog:
    channels = tuple(sorted({row.channel for row in rows}))
    records, size = sum(row.records for row in rows) - more.get("taken", 0), sum(row.size for row in rows)
    return InFlightLog(writer.write(rows), records, size, watermark=rows[0].watermark, channels=channels, **more)


def _joined(log: InFlightLog, more: InFlightLog) -> InFlightLog:
    """Join what is left of a log with what came after it."""
    return msgspec.structs.replace(
        log,
        files=(*log.files, *more.files),
        records=log.records + more.records,
        bytes=log.bytes + more.bytes,
        end=more.end,
        pinned=log.pinned or more.pinned,
        channels=tuple(sorted({*log.channels, *more.channels})),
    )
