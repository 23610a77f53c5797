"""A source that first fills the state, then hands out next to nothing each round, and clocks the driver while it does.

The time between two calls of ``plan`` is what a round costs as seen from outside, whatever the engine counts itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.operators.contracts.source import Batch, Source, SourcePlan, SplitEnumerator, SplitInterval, SplitReader

between_rounds: Callable[[int], None] | None = None
"""Called on the driver with the number of trickle rounds done so far, outside of what is clocked."""
clocked: list[tuple[float, float]] = []
"""Per trickle round: when ``plan`` returned it, and when the engine asked for the next one (seconds)."""
_handed_out: float | None = None


def reset(hook: Callable[[int], None] | None) -> None:
    """Before each job; the module's state is the driver's, because the class is pickled by reference."""
    global between_rounds, _handed_out
    between_rounds = hook
    _handed_out = None
    clocked.clear()


class TrickleSource(Source):
    """Numbers 0 .. preload - 1 as fast as the engine likes, then ``rounds`` rounds of ``per_round`` numbers each.

    ``at_least``: of the first ones a round gets so many, also where a short checkpoint interval would make it smaller.
    """

    def __init__(self, preload: int, rounds: int, per_round: int, at_least: int = 1) -> None:
        self.preload, self.rounds, self.per_round, self.at_least = preload, rounds, per_round, at_least

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _TrickleEnumerator(self, parallelism, restored or 0)

    def create_reader(self, subtask: int) -> SplitReader:
        return _RangeReader()


class _TrickleEnumerator(SplitEnumerator):
    def __init__(self, source: TrickleSource, parallelism: int, position: int) -> None:
        self.source, self.parallelism, self.position = source, parallelism, position

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        global _handed_out
        source, end = self.source, self.source.preload + self.source.rounds * self.source.per_round
        if _handed_out is not None:
            clocked.append((_handed_out, time.perf_counter()))
            _handed_out = None
            if between_rounds is not None:
                between_rounds(len(clocked))
        if self.position >= end:
            return SourcePlan(finished=True)
        if self.position < source.preload:
            return self._cut(min(max(limit, source.at_least), source.preload - self.position), backlog=True)
        plan = self._cut(source.per_round, backlog=True)
        _handed_out = time.perf_counter()
        return plan

    def _cut(self, count: int, backlog: bool) -> SourcePlan:
        start, n = self.position, self.parallelism
        bounds = [start + count * i // n for i in range(n + 1)]
        self.position = start + count
        intervals = [
            SplitInterval(f"trickle-{i}", i, bounds[i], bounds[i + 1], units=bounds[i + 1] - bounds[i])
            for i in range(n)
        ]
        return SourcePlan(intervals, backlog=backlog)

    def snapshot(self) -> int:
        return self.position


class _RangeReader(SplitReader):
    BATCH = 4096

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for start in range(interval.start, interval.end, self.BATCH):
            yield Batch(list(range(start, min(start + self.BATCH, interval.end))))
