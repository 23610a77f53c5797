"""A bounded source that hands over column batches, and the same records as lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tidegate.connectors.values.ranges import BATCH_SIZE, RangeEnumerator
from tidegate.operators.contracts.batch import ColumnBatch
from tidegate.operators.contracts.source import Batch, Source, SplitEnumerator, SplitInterval, SplitReader

Record = tuple[int, float, str, bool]


def record(n: int) -> Record:
    """Number, half of it, a name that comes again and again, whether it is a multiple of three."""
    return n, n * 0.5, f"user-{n % 7}", n % 3 == 0


class ColumnSource(Source):
    """``record(n)`` for every n below ``count``, with n as its timestamp. ``as_columns`` False: in lists, as other sources do."""

    def __init__(self, count: int, *, as_columns: bool = True) -> None:
        self.count, self.as_columns = count, as_columns

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            return RangeEnumerator.start(0, self.count, parallelism)
        return RangeEnumerator.restore(restored, parallelism)

    def create_reader(self, subtask: int) -> SplitReader:
        return _Reader(self.as_columns)


class _Reader(SplitReader):
    interleaves = True

    def __init__(self, as_columns: bool) -> None:
        self._as_columns = as_columns

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for start in range(interval.start, interval.end, BATCH_SIZE):
            numbers = range(start, min(start + BATCH_SIZE, interval.end))
            batch = _columns(numbers) if self._as_columns else Batch(list(map(record, numbers)))
            yield batch.with_times(list(numbers))


def _columns(numbers: range) -> ColumnBatch:
    column = np.arange(numbers.start, numbers.stop)
    return ColumnBatch.of_tuples(column, column * 0.5, [f"user-{n % 7}" for n in numbers], column % 3 == 0)
