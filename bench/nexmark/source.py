"""The Nexmark events as a source of Tidegate: lines are made where they are read, so no disk and no broker limits a program.

``env.from_source(NexmarkSource(10_000_000, parts=2), WatermarkStrategy.no_watermarks(), "events", Types.STRING())``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generator import Generator

from tidegate.operators.contracts.source import Batch, Source, SourcePlan, SplitEnumerator, SplitInterval, SplitReader

LINES = 2_000
"""Lines that a reader hands on together."""


class NexmarkSource(Source):
    """Read ``events`` lines. Split ``p`` of ``parts`` has the event numbers ``n`` with ``n % parts == p``, as the files have."""

    gives_time = False

    def __init__(self, events: int, parts: int = 2, seed: int = 1) -> None:
        self.events, self.parts, self.seed = events, parts, seed

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        positions = list(restored) if restored is not None else list(range(self.parts))
        return _Enumerator(positions, self.events, parallelism)

    def create_reader(self, subtask: int) -> SplitReader:
        return _Reader(Generator(self.seed), self.parts)


class _Enumerator(SplitEnumerator):
    """A position is the next number of each split."""

    def __init__(self, positions: list[int], events: int, parallelism: int) -> None:
        self._positions, self._events, self._parallelism = positions, events, parallelism

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        step = len(self._positions)
        share = max(1, limit // step)
        intervals = []
        for split, start in enumerate(self._positions):
            units = min(share, len(range(start, self._events, step)))
            end = start + units * step
            self._positions[split] = end
            last = end >= self._events
            if units or start < step:  # event time waits for every split from the first plan on
                intervals.append(SplitInterval(str(split), split % self._parallelism, start, end, units, last=last))
        finished = all(position >= self._events for position in self._positions)
        return SourcePlan(intervals, backlog=not finished, finished=finished)

    def snapshot(self) -> Any:
        return list(self._positions)

    @property
    def behind(self) -> int:
        step = len(self._positions)
        return sum(len(range(position, self._events, step)) for position in self._positions)


class _Reader(SplitReader):
    interleaves = True

    def __init__(self, generator: Generator, parts: int) -> None:
        self._generator, self._parts = generator, parts

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for made in self._generator.lines(interval.start, interval.end, self._parts):
            lines = made.decode("ascii").splitlines()
            for at in range(0, len(lines), LINES):
                yield Batch(lines[at : at + LINES])
