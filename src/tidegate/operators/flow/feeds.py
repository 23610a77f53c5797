"""Where the records of a round come from: the channels of a chain, or the splits of its source."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.operators.contracts.operator import EndOfInput, OperatorRound
from tidegate.operators.contracts.source import SplitInterval, TimedBatch
from tidegate.operators.flow.backlog import ChannelBacklog, LogReader, SplitBacklog, chosen
from tidegate.operators.flow.column_batch import ColumnBatch, Times, Values, packed_field
from tidegate.operators.flow.inputs import Channel, ChannelInput
from tidegate.operators.flow.pace import Pace
from tidegate.operators.flow.packing import KEYS, PLAIN, Packer
from tidegate.operators.flow.rows import BARRIER, MAX_WATERMARK, MIN_WATERMARK, Ack, Payload, Row, Status
from tidegate.state.in_flight import InFlightPart
from tidegate.state.snapshot import EMPTY

if TYPE_CHECKING:
    from tidegate.operators.flow.subtask import Subtask
    from tidegate.operators.kinds.source import SourceOperator


class SenderFailed(Exception):
    """A sending subtask gave up: what came from it is not the whole. Its own ack says why."""


class Feed(Protocol):
    """The input of a subtask in one round."""

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        """What is to be done, bit by bit; each step may leave rows to send."""
        ...

    def end(self) -> EndOfInput:
        """Step 4: the input of the round is complete, or this raises. The watermark of the chain's input is set."""
        ...

    def in_flight(self, path: str) -> InFlightPart | None:
        """Step 5: what was received and not processed, durable. ``path``: what the names of files begin with."""
        ...


def _pace(round: OperatorRound) -> Pace | None:
    deadline = round.context.deadline_ms
    return None if deadline is None else Pace(deadline, round.now_ms)


class ChannelFeed:
    """Chunks and barriers of the chain's channels.

    What waits from earlier rounds comes first: each chunk has the event time that was in front of it, so the channels begin where
    their senders have left them, as in any round. Past the deadline, and behind anything that waits, chunks are kept in the
    order in which they would have been processed; of channels all is known as if they had been.
    """

    def __init__(self, subtask: Subtask, round: OperatorRound, ack: Ack) -> None:
        self._subtask, self._round, self._ack, self._pace = subtask, round, ack, _pace(round)
        snapshot = round.plan.snapshots.get(subtask.head.id, EMPTY)
        self._backlog = ChannelBacklog(snapshot.in_flight, subtask.files, subtask.groups, subtask.pinned)
        # Every channel starts the round as active: only its barrier, behind all it sends, may say that it is idle.
        # A sender that was idle and reads again would otherwise be overtaken, and its records be late.
        before = round.context.statuses
        starts: dict[Channel, Status] = {
            (e.id, s): Status(before[e.source][s].watermark) if e.source in before else Status()
            for e, s in subtask.channels
        }
        head = subtask.head
        reached = snapshot.watermark if head.follows_input else MIN_WATERMARK
        self._input = ChannelInput(starts, max(reached, self._backlog.end), even=subtask.moves_time)
        current = self._backlog.watermark if self._backlog.waits else self._input.watermarks.current()
        head.above.watermark, head.above.idle = current, False
        round.holds_time = self._backlog.is_mixed

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        while (waiting := self._backlog.next()) is not None and not self._is_over:
            yield partial(self._work_off, waiting)
        for row in rows:
            yield partial(self._receive, row)

    @property
    def _is_over(self) -> bool:
        return self._pace is not None and self._pace.is_over()

    def _work_off(self, reader: LogReader) -> None:
        """The next chunk of what waits, or as much of it as there is time for."""
        subtask, row = self._subtask, reader.row
        self._pass(self._backlog.watermark)
        edge = subtask.edges[row.channel]
        values, keys, times = unpacked(subtask.packers[edge], row.values, row.keys, row.times)
        numbers = chosen(reader, keys, subtask.chain.head.operator.max_parallelism)
        if numbers is None:
            reader.took(self._process(edge, values, keys, times, self._pace, reader.taken))
        else:
            records = values.rows() if isinstance(values, ColumnBatch) else values
            values, keys = [records[n] for n in numbers], [keys[n] for n in numbers] if keys is not None else None
            taken = self._process(
                edge, values, keys, None if times is None else [times[n] for n in numbers], self._pace
            )
            reader.took(numbers[taken] if taken < len(numbers) else row.records)
        self._round.holds_time = self._backlog.is_mixed
        if not self._backlog.waits:
            self._pass(self._backlog.end)

    def _receive(self, row: Row) -> None:
        marks = self._input.watermarks
        for _, _, kind, edge, sender, _, watermark, payload in self._input.ready(row):
            if kind == BARRIER:
                marks.update(edge, sender, watermark, payload.idle)
            else:
                marks.update(edge, sender, watermark, False)
                if payload is not None:
                    self._take(edge, payload, marks.current())
            if self._backlog.waits:
                self._backlog.reach(marks.current())
            else:
                self._pass(marks.current())

    def _take(self, edge: int, payload: Payload, watermark: int) -> None:
        """A chunk is processed, or kept, or both. ``watermark``: event time behind it."""
        subtask, backlog, pace = self._subtask, self._backlog, self._pace
        channel = subtask.kept.get(edge)
        if channel is None:  # it has to be in the same checkpoint in all subtasks
            pace = None
        elif backlog.waits:
            return backlog.keep(channel, payload, watermark)
        values, keys, times = unpacked(subtask.packers[edge], *payload)
        taken = self._process(edge, values, keys, times, pace)
        if taken < len(values) and channel is not None:
            backlog.begin(channel, payload, subtask.head.above.watermark, watermark, taken)

    def _process(
        self,
        edge: int,
        values: Values,
        keys: list[Any] | None,
        times: list[Any] | None,
        pace: Pace | None,
        start: int = 0,
    ) -> int:
        """So many are through at the end, with those before ``start``."""
        subtask, number, end = self._subtask, self._subtask.inputs[edge], len(values)
        for first, upto in [(start, end)] if pace is None else pace.pieces(start, end):
            piece = values, keys, times
            if upto - first < end:
                own = None if keys is None else keys[first:upto]
                piece = part_of(values, first, upto), own, None if times is None else times[first:upto]
            self._ack.records_in += upto - first
            subtask.process(number, piece[0], piece[2], piece[1], self._round.now_ms())
            start = upto
        return start

    def _pass(self, watermark: int) -> None:
        """What came before the watermark is through."""
        self._advance(watermark)
        self._subtask.advance(self._round.now_ms())

    def _advance(self, watermark: int) -> None:
        above = self._subtask.head.above
        above.watermark = max(above.watermark, watermark)

    def in_flight(self, path: str) -> InFlightPart | None:
        return self._backlog.part(path, self._round.context.version, whole=self._round.plan.whole)

    def end(self) -> EndOfInput:
        self._input.check_complete(self._subtask.chain.name)
        self._ack.inputs = self._input.tokens
        if self._input.aligns_since is not None:
            self._ack.align_seconds = time.perf_counter() - self._input.aligns_since
        if self._input.failed:
            raise SenderFailed
        if self._backlog.waits:
            return EndOfInput.AHEAD
        if self._input.finished:
            return _ended(self._subtask, self._round)
        self._advance(self._input.watermarks.current())
        self._subtask.head.above.idle = self._input.watermarks.idle
        return EndOfInput.AHEAD


_MOST_OPEN = 64
"""Splits that are read side by side: each may hold a file or a connection."""


class SplitFeed:
    """The intervals that the plan gives to a source.

    If the reader can, splits are read side by side, always the one whose event time is behind: a round may span days, and a
    split that is read whole would hold back event time, with all the timers that wait for it, until the next one has caught up.
    Without watermarks the split of which the smallest part is read comes next: an assigner of timestamps behind the source sees
    all of them advance together.
    """

    def __init__(self, subtask: Subtask, source: SourceOperator, round: OperatorRound, ack: Ack) -> None:
        self._subtask, self._source, self._round, self._ack = subtask, source, round, ack
        self._open: list[_OpenSplit] = []
        self._pace = _pace(round)
        part = round.plan.snapshots.get(source.id, EMPTY).in_flight
        self._backlog = SplitBacklog(part, subtask.files)

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        yield self._begin
        while self._open:
            yield self._next_batch

    def _begin(self) -> None:
        """What waits of a split comes before its intervals."""
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
        elif (batch := current.next_batch(self._source)) is None:
            self._open.remove(current)
            if self._backlog.ends(current.split):
                self._source.finish(current.split)
            return
        else:
            taken = self._take(current.split, batch)
            if taken < len(batch[0]):
                self._keep(current.split, batch, taken)
        current.watermark = self._source.watermark(current.split)

    def _work_off(self, split: str, reader: LogReader) -> None:
        self._source.begin_split(split)
        reader.took(self._take(split, self._backlog.batch(reader), reader.taken))
        if not reader.waits:
            self._source.waiting(self._backlog.splits)

    def _take(self, split: str, batch: TimedBatch, start: int = 0) -> int:
        """So many of the records are through at the end, with those before ``start``."""
        values, times = batch
        end = len(values)
        for first, upto in [(start, end)] if self._pace is None else self._pace.pieces(start, end):
            piece = batch if upto - first == end else (part_of(values, first, upto), _part_of(times, first, upto))
            self._take_piece(split, piece)
            start = upto
        return start

    def _take_piece(self, split: str, batch: TimedBatch) -> None:
        self._ack.records_in += len(batch[0])
        for values, timestamps in self._source.pieces(split, batch):
            self._subtask.process(0, values, timestamps, None, self._round.now_ms())
            if self._source.cuts_batches:
                self._source.advance()
                self._subtask.advance(self._round.now_ms())
                self._subtask.announce()
        self._source.seen(split)
        self._subtask.advance(self._round.now_ms())

    def _keep_rest(self) -> None:
        """The time is over. What the plan has given is read all the same: the sources are past it."""
        for current in self._open:
            while (batch := current.next_batch(self._source, ends=self._ends)) is not None:
                self._keep(current.split, batch, 0)
            if self._backlog.ends(current.split) and current.split not in self._backlog.splits:
                self._source.finish(current.split)  # its last record was the last there was time for
        self._open.clear()
        self._source.waiting(self._backlog.splits)

    def _keep(self, split: str, batch: TimedBatch, taken: int) -> None:
        values, times = batch
        self._backlog.keep(split, part_of(values, taken, len(values)), _part_of(times, taken, len(values)))

    def _ends(self, split: str) -> None:
        if split in self._backlog.splits:
            self._backlog.end(split)
        else:
            self._source.finish(split)

    def in_flight(self, path: str) -> InFlightPart | None:
        return self._backlog.part(path, self._round.context.version, whole=self._round.plan.whole)

    def end(self) -> EndOfInput:
        if self._round.plan.source_finished and not self._backlog.waits:
            return _ended(self._subtask, self._round)
        return EndOfInput.AHEAD


class _OpenSplit:
    """A split that is being read: its intervals of the round, in order."""

    def __init__(self, split: str, intervals: deque[SplitInterval]) -> None:
        self.split, self._intervals = split, intervals
        self.watermark = MIN_WATERMARK
        self.part = 0.0
        """Of the round's records of the split that are read, about."""
        self._unit = 1 / max(1, sum(interval.units for interval in intervals))
        self._batches: Iterator[TimedBatch] | None = None

    def next_batch(self, source: SourceOperator, *, ends: Callable[[str], None] | None = None) -> TimedBatch | None:
        """None: the round has no more of it. ``ends``: told of its end, instead of the source; what comes is not processed now."""
        while self._intervals:
            if self._batches is None:
                if ends is None:
                    source.begin_split(self.split)
                self._batches = source.read(self._intervals[0])
            batch = next(self._batches, None)
            if batch is not None:
                self.part += len(batch[0]) * self._unit
                return batch
            self._batches = None
            if self._intervals.popleft().last:
                (ends or source.finish)(self.split)
        return None


def part_of(values: Values, start: int, end: int) -> Values:
    return values.part(start, end) if isinstance(values, ColumnBatch) else values[start:end]


def _part_of(times: Times | None, start: int, end: int) -> Times | None:
    return None if times is None else times[start:end]


def _ended(subtask: Subtask, round: OperatorRound) -> EndOfInput:
    subtask.head.above.watermark, subtask.head.above.idle = MAX_WATERMARK, False
    return EndOfInput.BEHIND if round.end_of_input is EndOfInput.BEHIND else EndOfInput.NOW


def unpacked(
    packer: Packer, values: bytes, keys: bytes | None, times: bytes | None
) -> tuple[Values, list[Any] | None, list[Any] | None]:
    """Values, keys or None, timestamps or None of a chunk."""
    records = packer.unpack(values)
    timestamps = None if times is None else PLAIN.unpack_list(times)
    if keys is not None and isinstance(records, ColumnBatch):
        records.key_field = packed_field(keys)
        if records.key_field is not None:
            return records, records.columns[records.key_field].tolist(), timestamps
    return records, None if keys is None else KEYS.unpack_list(keys), timestamps
