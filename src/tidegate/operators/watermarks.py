"""Watermarks: generated per split or operator, combined over channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from tidegate.common.errors import UserCodeError
from tidegate.operators.blame import reprlib_repr
from tidegate.operators.column_batch import Values
from tidegate.operators.rows import MIN_WATERMARK, Generator, Status


class Domain:
    """One watermark that holds for a part of a chain: its input's, or that of an assigner inside."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False


class Strategy:
    """What a WatermarkStrategy means for the engine; None means: no timestamps of its own, no watermarks."""

    def __init__(self, strategy: Any, batch_mode: bool = False) -> None:
        self.emits = strategy is not None and strategy.kind != "none" and not batch_mode
        self.delay = int(strategy.out_of_orderness_ms or 0) + 1 if self.emits else 0
        self.idleness_ms: int | None = strategy.idleness_ms if strategy is not None else None
        assigner = strategy.timestamp_assigner if strategy is not None else None
        self.extract: Callable[[Any, int], int] | None = getattr(assigner, "extract_timestamp", assigner)

    def timestamps(self, values: Iterable[Any], timestamps: list[int] | None) -> list[int] | None:
        """The event timestamps of a batch; the assigner sees the record's former timestamp, or MIN."""
        if self.extract is None:
            return timestamps
        extract = self.extract
        if timestamps is None:
            return [extract(value, MIN_WATERMARK) for value in values]
        return [extract(value, MIN_WATERMARK if t is None else t) for value, t in zip(values, timestamps, strict=True)]

    def seen(self, generator: Generator, timestamps: list[int] | None, now_ms: int, values: Values = ()) -> Generator:
        """``values``: the records of the timestamps, to name the one that has none."""
        if not timestamps:
            return Generator(generator.greatest, now_ms)
        try:
            return Generator(max(generator.greatest, max(timestamps)), now_ms)
        except TypeError:
            if self.extract is None:
                raise
            raise self._refused(timestamps, values) from None

    def _refused(self, timestamps: list[Any], values: Values) -> UserCodeError:
        wrong = next((n for n, moment in enumerate(timestamps) if not isinstance(moment, int)), 0)
        code = getattr(self.extract, "__code__", None)
        place = f", {code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else ""
        return UserCodeError(
            "A timestamp assigner returns the record's event time in milliseconds, an int",
            where=f"timestamp assigner{place}",
            found=f"{reprlib_repr(timestamps[wrong])}; record {reprlib_repr(next(islice(values, wrong, None), 'not known'))}",
            cure="return a time for every record, or filter records without one before",
        )

    def watermark(self, generator: Generator) -> int:
        if not self.emits or generator.greatest == MIN_WATERMARK:
            return MIN_WATERMARK
        return max(MIN_WATERMARK, generator.greatest - self.delay)

    def is_idle(self, generator: Generator, now_ms: int) -> bool:
        return self.idleness_ms is not None and now_ms - generator.active_ms >= self.idleness_ms

    def idle_at(self, generator: Generator) -> int | None:
        return None if self.idleness_ms is None else generator.active_ms + self.idleness_ms


class SplitWatermarks:
    """The watermark of a source subtask: the least over its active splits that are not idle."""

    def __init__(self, strategy: Strategy, splits: dict[str, Generator]) -> None:
        self.strategy = strategy
        self.splits = dict(splits)

    def start(self, split: str, now_ms: int) -> None:
        self.splits.setdefault(split, Generator(active_ms=now_ms))

    def seen(self, split: str, timestamps: list[int] | None, now_ms: int, values: Values = ()) -> None:
        self.splits[split] = self.strategy.seen(self.splits[split], timestamps, now_ms, values)

    def finish(self, split: str) -> None:
        self.splits.pop(split, None)

    def status(self, before: int, now_ms: int) -> Status:
        """``before``: the watermark so far, which never falls. No active split, or all idle: the subtask is idle."""
        if not self.strategy.emits:
            return Status(before, False)
        active = [g for g in self.splits.values() if not self.strategy.is_idle(g, now_ms)]
        if not active:
            return Status(before, True)
        return Status(max(before, min(self.strategy.watermark(g) for g in active)), False)

    def next_idle_ms(self, now_ms: int) -> int | None:
        """When the next split that is active now turns idle."""
        times = [self.strategy.idle_at(g) for g in self.splits.values() if not self.strategy.is_idle(g, now_ms)]
        return min((t for t in times if t is not None), default=None)


class ChannelWatermarks:
    """The watermark of a chain's input: the least over all channels that are not idle; never falls."""

    def __init__(self, channels: dict[tuple[int, int], Status], before: int = MIN_WATERMARK) -> None:
        """``before``: what the chain had reached in earlier rounds; idle channels must not take it back."""
        self._channels = dict(channels)
        self._current = before
        self._stale = True

    def update(self, edge: int, subtask: int, watermark: int, idle: bool) -> None:
        channel = (edge, subtask)
        before = self._channels[channel]
        if watermark != before.watermark or idle != before.idle:
            self._channels[channel] = Status(max(before.watermark, watermark), idle)
            self._stale = True

    def current(self) -> int:
        if self._stale:
            self._stale = False
            active = [c.watermark for c in self._channels.values() if not c.idle]
            if active:
                self._current = max(self._current, min(active))
        return self._current

    @property
    def idle(self) -> bool:
        return all(c.idle for c in self._channels.values())
