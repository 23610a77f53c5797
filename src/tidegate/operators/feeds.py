"""Where the records of a round come from: the channels of a chain, or the splits of its source."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.operators.column_batch import ColumnBatch, Values, packed_field
from tidegate.operators.inputs import Channel, ChannelInput
from tidegate.operators.operator import EndOfInput, OperatorRound
from tidegate.operators.packing import KEYS, PLAIN, Packer
from tidegate.operators.rows import BARRIER, MAX_WATERMARK, MIN_WATERMARK, Ack, Row, Status
from tidegate.operators.source import SplitInterval, TimedBatch
from tidegate.state.snapshot import EMPTY

if TYPE_CHECKING:
    from tidegate.operators.kinds.source import SourceOperator
    from tidegate.operators.subtask import Subtask


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


class ChannelFeed:
    """Chunks and barriers of the chain's channels."""

    def __init__(self, subtask: Subtask, round: OperatorRound, ack: Ack) -> None:
        self._subtask, self._round, self._ack = subtask, round, ack
        # Every channel starts the round as active: only its barrier, behind all it sends, may say that it is idle.
        # A sender that was idle and reads again would otherwise be overtaken, and its records be late.
        before = round.context.statuses
        starts: dict[Channel, Status] = {
            (e.id, s): Status(before[e.source][s].watermark) if e.source in before else Status()
            for e, s in subtask.channels
        }
        head = subtask.head
        reached = round.plan.snapshots.get(head.id, EMPTY).watermark if head.follows_input else MIN_WATERMARK
        self._input = ChannelInput(starts, reached)
        head.above.watermark, head.above.idle = self._input.watermarks.current(), False

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        for row in rows:
            yield partial(self._receive, row)

    def _receive(self, row: Row) -> None:
        subtask, marks = self._subtask, self._input.watermarks
        for _, _, kind, edge, sender, _, watermark, payload in self._input.ready(row):
            if kind == BARRIER:
                marks.update(edge, sender, watermark, payload.idle)
            else:
                if payload is not None:
                    values, keys, timestamps = unpacked(subtask.packers[edge], *payload)
                    self._ack.records_in += len(values)
                    subtask.process(subtask.inputs[edge], values, timestamps, keys, self._round.now_ms())
                marks.update(edge, sender, watermark, False)
            self._advance(marks.current())
            subtask.advance(self._round.now_ms())

    def _advance(self, watermark: int) -> None:
        above = self._subtask.head.above
        above.watermark = max(above.watermark, watermark)

    def end(self) -> EndOfInput:
        self._input.check_complete(self._subtask.chain.name)
        self._ack.inputs = self._input.tokens
        if self._input.aligns_since is not None:
            self._ack.align_seconds = time.perf_counter() - self._input.aligns_since
        if self._input.failed:
            raise SenderFailed
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
    """

    def __init__(self, subtask: Subtask, source: SourceOperator, round: OperatorRound, ack: Ack) -> None:
        self._subtask, self._source, self._round, self._ack = subtask, source, round, ack
        self._open: list[_OpenSplit] = []

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        yield self._begin
        while self._open:
            yield self._next_batch

    def _begin(self) -> None:
        by_split: dict[str, deque[SplitInterval]] = {}
        for interval in self._round.plan.intervals:
            by_split.setdefault(interval.split, deque()).append(interval)
        if by_split:
            self._source.begin_reading(by_split)
            self._open = [_OpenSplit(split, intervals) for split, intervals in by_split.items()]
            self._most = _MOST_OPEN if self._source.interleaves else 1

    def _next_batch(self) -> None:
        current = self._open[0]
        if self._most > 1 and len(self._open) > 1:
            current = min(self._open[: self._most], key=lambda split: split.watermark)
        batch = current.next_batch(self._source)
        if batch is None:
            self._open.remove(current)
            return
        self._ack.records_in += len(batch[0])
        for values, timestamps in self._source.pieces(current.split, batch):
            self._subtask.process(0, values, timestamps, None, self._round.now_ms())
            if self._source.cuts_batches:
                self._source.advance()
                self._subtask.advance(self._round.now_ms())
                self._subtask.announce()
        self._source.seen(current.split)
        self._subtask.advance(self._round.now_ms())
        current.watermark = self._source.watermark(current.split)

    def end(self) -> EndOfInput:
        return _ended(self._subtask, self._round) if self._round.plan.source_finished else EndOfInput.AHEAD


class _OpenSplit:
    """A split that is being read: its intervals of the round, in order."""

    def __init__(self, split: str, intervals: deque[SplitInterval]) -> None:
        self.split, self._intervals = split, intervals
        self.watermark = MIN_WATERMARK
        self._batches: Iterator[TimedBatch] | None = None

    def next_batch(self, source: SourceOperator) -> TimedBatch | None:
        """None: the round has no more of it."""
        while self._intervals:
            if self._batches is None:
                self._batches = source.read(self._intervals[0])
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            if self._intervals.popleft().last:
                source.finish(self.split)
        return None


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
