"""Feed a round with records: from channels, from the splits of a source, or sorted by key in batch mode.

Batch mode processes one key after the other, as Flink does, and the records of each key in the order of their
timestamps. A batch job is one round, so all records of a subtask are there before the first record is processed. They
are grouped by key. Records that do not fit into memory are written to runs, ordered by the bytes of the keys, and
merged.
"""

from __future__ import annotations

import heapq
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import IO, Any, Protocol

from tidegate.base.clock import Stopwatch
from tidegate.base.files import Files
from tidegate.operators.contracts.batch import Batch, Keys, Rows, TimeList
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, StreamOperator
from tidegate.operators.contracts.source import SplitInterval
from tidegate.operators.flow.backlog import ChannelBacklog, LogReader, Pace, SplitBacklog, chosen
from tidegate.operators.flow.heavy_keys import Heavy, KeySampler
from tidegate.operators.flow.inputs import Channel, ChannelInput, ChannelSide
from tidegate.operators.flow.rows import BARRIER, MAX_WATERMARK, MIN_WATERMARK, Ack, Payload, Row, Status
from tidegate.operators.kinds.source import SourceOperator
from tidegate.state.in_flight import InFlightPart
from tidegate.state.keys import encode_key
from tidegate.state.snapshot import EMPTY


class SenderFailed(Exception):
    """Report that a sending subtask has failed, so its output is incomplete. The sender's own ack names the cause."""


class Pipeline(Protocol):
    """Drive the operators of a chain in one subtask, for a feed."""

    @property
    def head(self) -> StreamOperator: ...

    def begin_batch(self, now_ms: int) -> None:
        """Prepare the operators for a batch that a source emits."""
        ...

    def process(self, number: int, batch: Batch, now_ms: int) -> None:
        """Process a batch that enters by an input of the head."""
        ...

    def advance(self, now_ms: int) -> None:
        """Bring the operators up to the event time of the head's input."""
        ...

    def flush(self) -> None:
        """Turn full buffers into chunks."""
        ...


class Feed(Protocol):
    """Give a subtask its input in one round. ``read_seconds``: how long sources made batches, or chunks were unpacked;
    ``bytes_in``: of received chunks."""

    read_seconds: float

    @property
    def bytes_in(self) -> int: ...

    def heavy_keys(self) -> Heavy | None:
        """Return the heaviest keys, if the records have keys."""
        ...

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        """Yield the steps to run; each step may leave rows to send."""
        ...

    def end(self) -> EndOfInput:
        """Step 4: check that the input of the round is complete, or raise. Set the watermark of the chain's input."""
        ...

    def in_flight(self, path: str) -> InFlightPart | None:
        """Step 5: make durable what was received and not processed. ``path``: the prefix of file names."""
        ...


def _pace(round: OperatorRound) -> Pace | None:
    deadline = round.context.deadline_ms
    return None if deadline is None else Pace(deadline, round.now_ms)


def _parts(batch: Batch, pace: Pace | None, start: int) -> Iterable[Batch]:
    """Yield the records from ``start`` on, in parts for as long as there is time."""
    if pace is None:
        return (batch.part(start, len(batch)) if start else batch,)
    return (batch.part(first, end) for first, end in pace.pieces(start, len(batch)))


def _ended(head: StreamOperator, round: OperatorRound) -> EndOfInput:
    head.input_time.watermark, head.input_time.idle = MAX_WATERMARK, False
    return EndOfInput.PAST if round.end_of_input is EndOfInput.PAST else EndOfInput.NOW


class ChannelFeed:
    """Feed chunks and barriers of the chain's channels.

    What waits from earlier rounds comes first. Each waiting chunk has the event time before it, so the channels begin
    where their senders have left them, as in any round. After the deadline, and while anything waits, chunks are stored
    in the order in which they would have been processed. The state of the channels is as if these chunks had been
    processed.
    """

    def __init__(self, side: ChannelSide, pipeline: Pipeline, files: Files, round: OperatorRound, ack: Ack) -> None:
        self._side, self._pipeline, self._round, self._ack, self._pace = side, pipeline, round, ack, _pace(round)
        self.read_seconds = 0.0
        head = self._head = pipeline.head
        settings = head.setup.settings
        self._sampler = None if settings.heavy_keys == "off" else KeySampler(settings.heavy_keys, settings.key_salt)
        snapshot = round.plan.snapshots.get(head.id, EMPTY)
        self._backlog = ChannelBacklog(snapshot.in_flight, files, side.groups, side.pinned)
        # Every channel starts the round as active: only its barrier, after all its chunks, may report that it is idle.
        # Otherwise an idle sender that reads again would be overtaken, and its records would be late.
        before = round.context.statuses
        starts: dict[Channel, Status] = {
            (e.id, s): Status(before[e.source][s].watermark) if e.source in before else Status()
            for e, s in side.channels
        }
        reached = snapshot.watermark if head.follows_input else MIN_WATERMARK
        self._input = ChannelInput(starts, max(reached, self._backlog.end), index=side.index, even=side.moves_time)
        current = self._backlog.watermark if self._backlog.waits else self._input.watermarks.current()
        head.input_time.watermark, head.input_time.idle = current, False
        round.holds_time = self._backlog.is_mixed

    @property
    def bytes_in(self) -> int:
        return self._input.bytes

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        while (waiting := self._backlog.next()) is not None and not self._is_over:
            yield partial(self._work_off, waiting)
        empty: list[Row] = []
        for row in rows:
            if row[2] == BARRIER and self._side.index not in row[7].chunks:
                empty.append(row)
                continue
            if empty:
                yield partial(self._receive_empty, empty)
                empty = []
            yield partial(self._receive, row)
        if empty:
            yield partial(self._receive_empty, empty)

    @property
    def _is_over(self) -> bool:
        return self._pace is not None and self._pace.is_over()

    def _work_off(self, reader: LogReader) -> None:
        """Process the next waiting chunk, or as much of it as there is time for."""
        side, row = self._side, reader.row
        self._reach(self._backlog.watermark)
        edge = side.edges[row.channel]
        batch = self._unpacked(edge, (row.values, row.keys, row.times))
        numbers = chosen(reader, batch.keys, side.max_parallelism)
        if numbers is None:
            reader.took(self._process(edge, batch, self._pace, reader.taken))
        else:
            taken = self._process(edge, batch.select(numbers), self._pace)
            reader.took(numbers[taken] if taken < len(numbers) else row.records)
        self._round.holds_time = self._backlog.is_mixed
        if not self._backlog.waits:
            self._reach(self._backlog.end)

    def _receive(self, row: Row) -> None:
        self._process_rows(self._input.ready(row))

    def _receive_empty(self, barriers: list[Row]) -> None:
        """Take the barriers of channels without a chunk. In a wide job these are nearly all rows, so they come together."""
        ready, marks = self._input.align_empty(barriers), self._input.watermarks
        for barrier in barriers:
            marks.update(barrier[3], barrier[4], barrier[6], barrier[7].idle)
        # Before the ready rows: their channels' marks have not moved, so event time does not pass these rows.
        self._advance(marks.current())
        self._process_rows(ready)

    def _process_rows(self, ready: list[Row]) -> None:
        marks = self._input.watermarks
        for _, _, kind, edge, sender, _, watermark, payload in ready:
            if kind == BARRIER:
                marks.update(edge, sender, watermark, payload.idle)
            else:
                marks.update(edge, sender, watermark, False)
                if payload is not None:
                    self._take(edge, payload, marks.current())
            self._advance(marks.current())

    def _advance(self, watermark: int) -> None:
        """Advance the event time of all channels."""
        if self._backlog.waits:
            self._backlog.reach(watermark)
        else:
            self._reach(watermark)

    def _take(self, edge: int, payload: Payload, watermark: int) -> None:
        """Process a chunk, or store it, or both. ``watermark``: event time after the chunk."""
        side, backlog, pace = self._side, self._backlog, self._pace
        channel = side.deferrable.get(edge)
        if channel is None:  # all subtasks have to process it before the same checkpoint
            pace = None
        elif backlog.waits:
            return backlog.keep(channel, payload, watermark)
        batch = self._unpacked(edge, payload)
        taken = self._process(edge, batch, pace)
        if taken < len(batch) and channel is not None:
            backlog.begin(channel, payload, self._head.input_time.watermark, watermark, taken)

    def _unpacked(self, edge: int, payload: Payload) -> Batch:
        started = Stopwatch.now()
        batch = self._side.packers[edge].unpack(payload)
        self.read_seconds += Stopwatch.now() - started
        if self._sampler is not None and batch.keys is not None:
            self._sampler.look(batch.keys)
        return batch

    def heavy_keys(self) -> Heavy | None:
        return None if self._sampler is None else self._sampler.heaviest()

    def _process(self, edge: int, batch: Batch, pace: Pace | None, start: int = 0) -> int:
        """Process records from ``start`` on. Return the number of processed records, including the records before
        ``start``."""
        taken = start
        for part in _parts(batch, pace, start):
            taken += len(part)
            self._ack.records_in += len(part)
            self._pipeline.process(self._side.inputs[edge], part, self._round.now_ms())
        return taken

    def _reach(self, watermark: int) -> None:
        """Advance event time: the records before the watermark are processed."""
        self._head.input_time.watermark = max(self._head.input_time.watermark, watermark)
        self._pipeline.advance(self._round.now_ms())

    def in_flight(self, path: str) -> InFlightPart | None:
        return self._backlog.part(path, self._round.context.version, whole=self._round.plan.whole)

    def _all_here(self) -> None:
        """Check that the input is complete. The ack names the attempts of the senders, also if one has failed: this subtask then
        gives up without an error of its own, and only the ack of the same attempt has the error (T4)."""
        self._input.check_complete(self._side.chain)
        self._ack.inputs = self._input.seen()
        if self._input.failed:
            raise SenderFailed

    def end(self) -> EndOfInput:
        self._all_here()
        if self._input.aligns_since is not None:
            self._ack.align_seconds = Stopwatch.now() - self._input.aligns_since
        if self._backlog.waits:
            return EndOfInput.AHEAD
        if self._input.finished:
            return _ended(self._head, self._round)
        marks, now = self._input.watermarks, self._head.input_time
        now.watermark, now.idle = max(now.watermark, marks.current()), marks.idle
        return EndOfInput.AHEAD


_MOST_OPEN = 64
"""The number of splits that are read side by side: each may hold a file or a connection."""


class SplitFeed:
    """Feed the intervals that the plan gives to a source.

    If the reader can, splits are read side by side, always the split with the lowest watermark. A round may span days,
    and a split that is read whole would hold back event time, with all waiting timers, until the next split has caught
    up. Without watermarks, the split of which the smallest part is read comes next. An assigner of timestamps after the
    source then sees all splits advance together.
    """

    bytes_in = 0
    """Of chunks from other subtasks."""

    def __init__(
        self, source: SourceOperator, pipeline: Pipeline, files: Files, round: OperatorRound, ack: Ack
    ) -> None:
        self._source, self._pipeline, self._round, self._ack = source, pipeline, round, ack
        self.read_seconds = 0.0
        self._open: list[_OpenSplit] = []
        self._pace = _pace(round)
        self._backlog = SplitBacklog(round.plan.snapshots.get(source.id, EMPTY).in_flight, files)

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        yield self._begin
        while self._open:
            yield self._next_batch

    def _begin(self) -> None:
        """Open the splits. What waits of a split comes before the split's intervals."""
        by_split: dict[str, deque[SplitInterval]] = {split: deque() for split in self._backlog.splits}
        for interval in self._round.plan.intervals:
            by_split.setdefault(interval.split, deque()).append(interval)
        if by_split:
            self._source.begin_reading(by_split)
            self._source.waiting(self._backlog.splits)
            self._open = [_OpenSplit(split, intervals) for split, intervals in by_split.items()]
            self._most = _MOST_OPEN if self._source.interleaves else 1

    def _next_batch(self) -> None:
        if self._pace is not None and self._pace.is_over():
            return self._keep_rest()
        current = self._open[0]
        if self._most > 1 and len(self._open) > 1:
            current = min(self._open[: self._most], key=lambda split: (split.watermark, split.part))
        reader = self._backlog.of(current.split)
        if reader is not None:
            self._work_off(current.split, reader)
        elif (batch := self._read(current)) is None:
            self._open.remove(current)
            if self._backlog.ends(current.split):
                self._source.finish(current.split)
            return None
        else:
            taken = self._take(current.split, batch)
            if taken < len(batch):
                self._backlog.keep(current.split, batch.part(taken, len(batch)))
        current.watermark = self._source.watermark(current.split)

    def _read(self, split: _OpenSplit) -> Batch | None:
        started = Stopwatch.now()
        batch = split.next_batch(self._source)
        self.read_seconds += Stopwatch.now() - started
        return batch

    def _work_off(self, split: str, reader: LogReader) -> None:
        self._source.begin_split(split)
        reader.took(self._take(split, self._backlog.batch(reader), reader.taken))
        if not reader.waits:
            self._source.waiting(self._backlog.splits)

    def _take(self, split: str, batch: Batch, start: int = 0) -> int:
        """Process records from ``start`` on. Return the number of processed records, including the records before
        ``start``."""
        taken = start
        for part in _parts(batch, self._pace, start):
            taken += len(part)
            self._ack.records_in += len(part)
            self._pipeline.begin_batch(self._round.now_ms())
            self._source.emit(split, part)
            self._pipeline.advance(self._round.now_ms())
        return taken

    def _keep_rest(self) -> None:
        """Store the rest, because the time is over. All intervals of the plan are read, since the sources have moved
        past them."""
        for current in self._open:
            while (batch := current.next_batch(self._source, ends=self._ends)) is not None:
                self._backlog.keep(current.split, batch)
            if self._backlog.ends(current.split) and current.split not in self._backlog.splits:
                self._source.finish(current.split)  # its last record was the last for which there was time
        self._open.clear()
        self._source.waiting(self._backlog.splits)

    def _ends(self, split: str) -> None:
        if split in self._backlog.splits:
            self._backlog.end(split)
        else:
            self._source.finish(split)

    def heavy_keys(self) -> Heavy | None:
        return None

    def in_flight(self, path: str) -> InFlightPart | None:
        return self._backlog.part(path, self._round.context.version, whole=self._round.plan.whole)

    def end(self) -> EndOfInput:
        if self._round.plan.source_finished and not self._backlog.waits:
            return _ended(self._source, self._round)
        return EndOfInput.AHEAD


class _OpenSplit:
    """Hold a split that is being read: its intervals of the round, in order."""

    def __init__(self, split: str, intervals: deque[SplitInterval]) -> None:
        self.split, self._intervals = split, intervals
        self.watermark = MIN_WATERMARK
        self.part = 0.0
        """The approximate share of the round's records of the split that are read."""
        self._unit = 1 / max(1, sum(interval.units for interval in intervals))
        self._batches: Iterator[Batch] | None = None

    def next_batch(self, source: SourceOperator, *, ends: Callable[[str], None] | None = None) -> Batch | None:
        """Return the next batch; None: the round has no more records of the split. ``ends``: called at the end of the
        split, instead of the source's ``finish``; the batch is then not processed now."""
        while self._intervals:
            if self._batches is None:
                if ends is None:
                    source.begin_split(self.split)
                self._batches = source.read(self._intervals[0])
            batch = next(self._batches, None)
            if batch is not None:
                self.part += len(batch) * self._unit
                return batch
            self._batches = None
            if self._intervals.popleft().last:
                (ends or source.finish)(self.split)
        return None


MOST_RECORDS = 1_000_000
"""Held in memory at once."""

Entry = tuple[int | None, int, Any]
"""Timestamp, input, record."""
Group = tuple[bytes, Hashable, list[Entry]]
"""The bytes of a key, the key, its records."""


class KeyedBatchFeed(ChannelFeed):
    """Feed a chain whose first operator is keyed. Records of inputs without a key, for example of a broadcast stream,
    are processed before all others. ``directory``: for records that do not fit into memory."""

    def __init__(
        self, side: ChannelSide, pipeline: Pipeline, files: Files, round: OperatorRound, ack: Ack, directory: str
    ) -> None:
        super().__init__(side, pipeline, files, round, ack)
        self._groups = Groups(directory)

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        yield from super().steps(rows)
        yield self._all_here  # an incomplete input must not be processed
        for key, entries in self._groups.sorted():
            yield partial(self._process_key, key, entries)

    def _advance(self, watermark: int) -> None:
        """Do nothing: event time advances at the end of input."""

    def _process_rows(self, ready: list[Row]) -> None:
        for _, _, kind, edge, _, _, _, payload in ready:
            if kind == BARRIER or payload is None:
                continue
            batch, number = self._unpacked(edge, payload), self._side.inputs[edge]
            self._ack.records_in += len(batch)
            if batch.keys is None:
                self._pipeline.process(number, batch, self._round.now_ms())
                self._pipeline.flush()
            else:
                self._groups.add(batch.keys, batch.time_list() or [None] * len(batch), number, batch.rows())

    def _process_key(self, key: Hashable, entries: list[Entry]) -> None:
        entries.sort(key=_moment)
        now = self._round.now_ms()
        for number, run in groupby(entries, key=itemgetter(1)):
            timestamps, _, values = zip(*run, strict=True)
            times = list(timestamps) if any(moment is not None for moment in timestamps) else None
            self._pipeline.process(number, Batch(values, times, [key] * len(values)), now)
        self._head.end_of_key(now)
        self._pipeline.flush()


def _moment(entry: Entry) -> int:
    return MIN_WATERMARK if entry[0] is None else entry[0]


class Groups:
    """Group records by key, in the order in which they came."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._held: dict[Hashable, list[Entry]] = {}
        self._records = 0
        self._runs: list[IO[bytes]] = []

    def add(self, keys: Keys, timestamps: TimeList, number: int, values: Rows) -> None:
        held = self._held
        for key, moment, value in zip(keys, timestamps, values, strict=True):
            entries = held.get(key)
            if entries is None:
                entries = held[key] = []
            entries.append((moment, number, value))
        self._records += len(keys)
        if self._records >= MOST_RECORDS:
            self._spill()

    def _spill(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - it has no name, and ends with the process
        for group in self._ordered():
            pickle.dump(group, file, 5)
        file.seek(0)
        self._runs.append(file)
        self._held, self._records = {}, 0

    def _ordered(self) -> list[Group]:
        groups = [(encode_key(key), key, entries) for key, entries in self._held.items()]
        groups.sort(key=itemgetter(0))
        return groups

    def sorted(self) -> Iterator[tuple[Hashable, list[Entry]]]:
        """Yield every key with all of its records, by the bytes of the keys. The earliest run comes first, so the order
        of arrival is kept."""
        runs = [_read(file) for file in self._runs]
        merged = heapq.merge(*runs, self._ordered(), key=itemgetter(0))
        for _, same in groupby(merged, key=itemgetter(0)):
            (_, key, entries), *more = same
            for _, _, later in more:
                entries = entries + later
            yield key, entries
        for file in self._runs:
            file.close()


def _read(file: IO[bytes]) -> Iterator[Group]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
