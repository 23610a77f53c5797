"""A bounded source of consecutive integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.connectors.values.ranges import BATCH_SIZE, RangeEnumerator
from tidegate.operators.contracts.source import Batch, Source, SplitEnumerator, SplitInterval, SplitReader


class NumberSequenceSource(Source):
    """``start`` to ``end``, both included, cut into as many contiguous parts as the source's parallelism at its
    first start.
    """

    gives_time = False

    def __init__(self, start: int, end: int) -> None:
        self.start = expect_int("NumberSequenceSource", start, "pass whole numbers")
        self.end = expect_int("NumberSequenceSource", end, "pass whole numbers")
        if start > end:
            raise ProgramError(
                "a number sequence runs upwards",
                where="NumberSequenceSource",
                found=f"start {start} > end {end}",
                cure="swap them",
            )

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            return RangeEnumerator.start(self.start, self.end + 1, parallelism)
        return RangeEnumerator.restore(restored, parallelism)

    def create_reader(self, subtask: int) -> SplitReader:
        """Reads the numbers of its splits."""
        return _NumberReader()


class _NumberReader(SplitReader):
    interleaves = True

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        end: int = interval.end
        for start in range(interval.start, end, BATCH_SIZE):
            yield Batch(range(start, min(start + BATCH_SIZE, end)))
