"""Generate watermarks per split or operator, and combine them over channels."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from tidegate.base.errors import UserCodeError
from tidegate.common import scalar_conversion as scalars
from tidegate.operators.contracts.batch import HIGHEST, LOWEST, Batch
from tidegate.operators.flow.rows import MIN_WATERMARK, Generator, Status
from tidegate.operators.loop.blame import RecordRefused, reprlib_repr
from tidegate.operators.loop.rewrites.rewrite import OfColumn


class EventTime:
    """Hold the event time in a part of a chain, set by its input or by an assigner of watermarks. ``idle``: no records
    are expected."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False


Piece = tuple[Any, Batch]
"""Some records of a batch, and the generator that has seen them."""


class Strategy:
    """Apply a WatermarkStrategy. None means: no timestamps of its own, no watermarks.

    A generator holds the knowledge about a split: a ``Generator``, or a user's object (``generators.py``).
    """

    divides_batches: bool = False
    """Watermarks follow single records, not whole batches."""
    operator: str = ""
    """The name of the operator, for messages."""
    of_column: OfColumn | None = None
    """``extract`` for whole batches of records without timestamps."""

    def __init__(self, strategy: Any, batch_mode: bool = False, interval_ms: int = 200) -> None:
        self.emits = strategy is not None and strategy.kind != "none" and not batch_mode and interval_ms > 0
        self.delay = int(strategy.out_of_orderness_ms or 0) + 1 if self.emits else 0
        self.idleness_ms: int | None = strategy.idleness_ms if strategy is not None else None
        assigner = strategy.timestamp_assigner if strategy is not None else None
        self.extract: Callable[[Any, int], int] | None = getattr(assigner, "extract_timestamp", assigner)

    def timed(self, batch: Batch) -> Batch:
        """Return the batch with the timestamps of the assigner, which sees a record's former timestamp, or MIN."""
        if self.extract is None:
            return batch
        extract, former = self.extract, batch.time_list()
        if former is None:
            if self.of_column is not None and (column := self.of_column(batch, MIN_WATERMARK)) is not None:
                return batch.with_times(column)
            return batch.with_times(self._checked([extract(value, MIN_WATERMARK) for value in batch.rows()], batch))
        both = zip(batch.rows(), former, strict=True)
        times = [extract(value, MIN_WATERMARK if t is None else t) for value, t in both]
        return batch.with_times(self._checked(times, batch))

    def _checked(self, times: list[Any], batch: Batch) -> list[int]:
        """Return the times as ints of 64 bits, checked as a whole. ``batch``: has the records, to name a record without
        a valid time. As in PyFlink, every value with an integer value is a time: floats are truncated."""
        if set(map(type, times)) == _INT:
            if min(times) >= LOWEST and max(times) <= HIGHEST:
                return times
            raise self._refused(times, batch)
        try:
            return [_whole(time) for time in times]
        except Exception:
            raise self._refused(times, batch) from None

    def whole_time(self, time: Any) -> int:
        """Return a time as an int of 64 bits, as ``timed`` does for a batch."""
        try:
            if type(time) is not int:
                whole: int = _whole(time)
                return whole
        except Exception:
            raise RecordRefused(partial(self._refusal, time)) from None
        raise RecordRefused(partial(self._refusal, time))

    def seen(self, generator: Any, times: list[int], now_ms: int) -> Any:
        """Return the generator after records with these times. Not for strategies that divide batches."""
        greatest = max(times)
        return Generator(max(generator.greatest, greatest), now_ms)

    def restored(self, row: Sequence[Any], now_ms: int) -> Any:
        """Return the generator that gave the row in an earlier round; for an empty row: a new generator."""
        return Generator(*row[:2]) if row else Generator(active_ms=now_ms)

    def row(self, generator: Any) -> tuple[Any, ...]:
        """Return the generator as plain data."""
        return tuple(generator)

    def pieces(self, generator: Any, batch: Batch, now_ms: int) -> Iterator[Piece]:
        """Yield the batch in pieces: event time may advance after each piece."""
        greatest = batch.greatest_time()
        yield Generator(generator.greatest if greatest is None else max(generator.greatest, greatest), now_ms), batch

    def periodic(self, generator: Any, now_ms: int) -> None:
        """Call the generator after records, or time, have passed."""

    def _refused(self, times: list[Any], batch: Batch) -> UserCodeError:
        wrong = next(n for n, time in enumerate(times) if not _is_time(time))
        record = next(islice(batch, wrong, None), "not known")
        return self._refusal(times[wrong], reprlib_repr(record))

    def _refusal(self, time: Any, record: str) -> UserCodeError:
        code = getattr(self.extract, "__code__", None)
        place = f", {code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else ""
        return UserCodeError(
            "A timestamp assigner must return the record's event time in milliseconds, an int of 64 bits",
            where=f"timestamp assigner of operator '{self.operator}'{place}",
            found=f"{reprlib_repr(time)} of type {type(time).__name__}; record {record}",
            cure="return an int for every record, for example int(seconds * 1000), or filter other records before",
        )

    def watermark(self, generator: Any) -> int:
        if not self.emits or generator.greatest == MIN_WATERMARK:
            return MIN_WATERMARK
        return max(MIN_WATERMARK, int(generator.greatest) - self.delay)

    def held(self, generator: Any, now_ms: int) -> Any:
        """Return the generator as if a record had just been seen."""
        return Generator(generator.greatest, now_ms)

    def is_idle(self, generator: Any, now_ms: int) -> bool:
        return self.idleness_ms is not None and bool(now_ms - generator.active_ms >= self.idleness_ms)

    def next_look_ms(self, generator: Any, now_ms: int) -> int | None:
        """Return when an active generator wants a round without a record: it then turns idle."""
        return None if self.idleness_ms is None else int(generator.active_ms) + self.idleness_ms


_INT = {int}
_whole = scalars.integer(64)


def _is_time(value: Any) -> bool:
    try:
        _whole(value)
    except Exception:
        return False
    return True


BETWEEN = ""
"""The key in place of a split: the generator of the split that has ended last, or a new one, until the next split
begins."""


class SplitWatermarks:
    """Combine the watermarks of a source subtask: the least over its active splits that are not idle. ``held``: no one
    has looked whether these splits have more records, so the time until they are idle starts again. ``awaited``: the
    subtask gets another split when it has none, and is not idle meanwhile."""

    def __init__(
        self, strategy: Strategy, splits: dict[str, Any], *, held: bool = False, awaited: bool = False
    ) -> None:
        self.strategy, self._held, self._awaited = strategy, held, awaited
        self.splits = dict(splits)
        if not awaited:
            self.splits.pop(BETWEEN, None)
        self.waiting: Collection[str] = ()
        """Splits with records that wait to be processed: they are not idle, however long the records wait."""

    def start(self, split: str, now_ms: int) -> None:
        if split not in self.splits:
            self.splits.pop(BETWEEN, None)
            self.splits[split] = self.strategy.restored((), now_ms)

    def await_first(self, now_ms: int) -> None:
        """Wait for the first split: the subtask has had none yet, or none since a rescale. Its watermark stays where it
        is."""
        if self._awaited and not self.splits:
            self.splits[BETWEEN] = self.strategy.restored((), now_ms)

    def periodic(self, now_ms: int, split: str | None = None) -> None:
        """Call the generator after records of the split have passed; None: call all generators after time has
        passed."""
        for generator in self.splits.values() if split is None else [self.splits[split]]:
            self.strategy.periodic(generator, now_ms)

    def watermark(self, split: str) -> int:
        return self.strategy.watermark(self.splits[split])

    def finish(self, split: str) -> None:
        generator = self.splits.pop(split, None)
        if self._awaited and generator is not None and not self.splits:
            self.splits[BETWEEN] = generator

    def status(self, before: int, now_ms: int) -> Status:
        """Return the status. ``before``: the watermark so far, which never falls. No active split, or all idle: the
        subtask is idle."""
        if not self.strategy.emits:
            return Status(before, False)
        if self._held:
            self.splits = {split: self.strategy.held(g, now_ms) for split, g in self.splits.items()}
        idle, waiting = self.strategy.is_idle, self.waiting
        active = [g for split, g in self.splits.items() if not idle(g, now_ms) or split in waiting]
        if not active:
            return Status(before, not self.waiting)  # splits that are read in turn may not have begun
        return Status(max(before, min(self.strategy.watermark(g) for g in active)), False)

    def next_look_ms(self, now_ms: int) -> int | None:
        """Return when the next split wants a round without a record."""
        strategy, every = self.strategy, self.splits.values()
        looks = [
            strategy.next_look_ms(g, now_ms)
            for g in every
            if strategy.divides_batches or not strategy.is_idle(g, now_ms)
        ]
        return min((t for t in looks if t is not None), default=None)


class ChannelWatermarks:
    """Combine the watermarks of a chain's input: the least over all channels that are not idle; never falls."""

    def __init__(self, channels: dict[tuple[int, int], Status], before: int = MIN_WATERMARK) -> None:
        """Start with the channels. ``before``: what the chain had reached in earlier rounds; idle channels must not
        take it back."""
        self._channels = dict(channels)
        self._current = before
        self._least = [(status.watermark, channel) for channel, status in channels.items() if not status.idle]
        """A heap. An entry whose watermark is no longer that of its channel, or whose channel is idle, is skipped: there may be
        thousands of channels, and all of them move in a round."""
        heapq.heapify(self._least)

    def update(self, edge: int, subtask: int, watermark: int, idle: bool) -> None:
        channel = (edge, subtask)
        before = self._channels[channel]
        if watermark != before.watermark or idle != before.idle:
            now = self._channels[channel] = Status(max(before.watermark, watermark), idle)
            if not idle:
                heapq.heappush(self._least, (now.watermark, channel))

    def current(self) -> int:
        least, channels = self._least, self._channels
        while least and channels[least[0][1]] != (least[0][0], False):
            heapq.heappop(least)
        if least and least[0][0] > self._current:
            self._current = least[0][0]
        return self._current

    @property
    def idle(self) -> bool:
        return all(c.idle for c in self._channels.values())


def split_status(strategy: Any, row: Sequence[Any], now_ms: int) -> Status:
    """Return the status of a split, by the row that its generator has left."""
    if strategy.kind == "custom" and len(row) == 4:
        watermark, active_ms, idle, _ = row
        return Status(watermark, idle or Strategy(strategy).is_idle(Generator(watermark, active_ms), now_ms))
    meant, generator = Strategy(strategy), Generator(*row[:2])
    return Status(meant.watermark(generator), meant.is_idle(generator, now_ms))
