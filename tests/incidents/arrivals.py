"""A source whose partitions get records at rates of their own, and a sink whose database is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tests.sinks import LedgerSink
from tidegate.base.errors import RetryableCommitError
from tidegate.operators.contracts.sink import Committer, CommitterContext
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Lag,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)


class ArrivalSource(Source):
    """One partition for each rate, in records a second since ``started``. Record n of partition p is ``(p, n)``, with the time
    of its arrival. A round reads at most ``most`` records of each partition."""

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, *rates: float, most: int = 1_000_000) -> None:
        self.rates, self.most, self.started = rates, most, time.time()

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _Arrivals(self, parallelism, restored or [0] * len(self.rates))

    def create_reader(self, subtask: int) -> SplitReader:
        return _Reader(self)


class _Arrivals(SplitEnumerator):
    def __init__(self, source: ArrivalSource, parallelism: int, positions: list[int]) -> None:
        self._source, self._parallelism, self._positions = source, parallelism, list(positions)
        self._left = [0] * len(positions)

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        passed = time.time() - self._source.started
        intervals = []
        for split, rate in enumerate(self._source.rates):
            start = self._positions[split]
            arrived = max(start, int(rate * passed))
            end = min(arrived, start + self._source.most)
            self._positions[split], self._left[split] = end, arrived - end
            intervals.append(SplitInterval(str(split), split % self._parallelism, start, end, end - start))
        return SourcePlan(intervals, backlog=any(self._left), wake_up_ms=now_ms + 100)

    def snapshot(self) -> Any:
        return list(self._positions)

    @property
    def behind(self) -> int:
        return sum(self._left)

    @property
    def lag(self) -> Lag:
        left: dict[int, int] = {}
        for split, number in enumerate(self._left):
            left[split % self._parallelism] = left.get(split % self._parallelism, 0) + number
        return Lag(left)


class _Reader(SplitReader):
    interleaves = True

    def __init__(self, source: ArrivalSource) -> None:
        self._source = source

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        split = int(interval.split)
        rate, started_ms = self._source.rates[split], self._source.started * 1000
        for start in range(interval.start, interval.end, 500):
            numbers = range(start, min(interval.end, start + 500))
            times = [int(started_ms + n * 1000 / rate) for n in numbers]
            yield Batch([(split, n) for n in numbers], times)


class AwaySink(LedgerSink):
    """A sink whose database refuses every commit."""

    def create_committer(self, context: CommitterContext) -> Committer:
        return _AwayCommitter()


class _AwayCommitter(Committer):
    def commit(self, committables: list[Any]) -> None:
        raise RetryableCommitError(
            "The database refuses connections", where="orders-db:5432", cure="start the database"
        )

    def abort(self, committables: list[Any]) -> None:
        """Nothing is prepared outside."""
