"""Bounded sources whose splits are ranges of integers: number sequences and collections."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ProgramError, RestoreError
from tidegate.base.plain_text import count
from tidegate.common.types import Row
from tidegate.operators.contracts.source import (
    Batch,
    Lag,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)
from tidegate.operators.loop.ownership import own

BATCH_SIZE = 8192
"""Records that a reader hands on together. On columns every batch costs some 35 us, whatever its size. With 8192 a record took a
sixth less time than with 4096, and the columns still fit into the processor's cache (``state/key_groups.py``, ``BLOCK``)."""


@dataclass
class RangeSplit:
    """The range ``[position, end)`` that is not read yet. ``number`` never changes and decides the subtask."""

    number: int
    position: int
    end: int

    @property
    def remaining(self) -> int:
        return self.end - self.position


def split_range(start: int, end: int, pieces: int) -> list[RangeSplit]:
    """Divide ``[start, end)`` into at most ``pieces`` contiguous splits of nearly the same size. No split is empty."""
    bounds = [start + (end - start) * i // pieces for i in range(pieces + 1)]
    pairs = [(a, b) for a, b in itertools.pairwise(bounds) if a < b]
    return [RangeSplit(number, a, b) for number, (a, b) in enumerate(pairs)]


def shares(limit: int, remaining: list[int]) -> list[int]:
    """Spread ``limit`` evenly. Unused shares go to the other splits, and the remainder to the splits with most left."""
    taken = [0] * len(remaining)
    left, ascending = limit, sorted(range(len(remaining)), key=remaining.__getitem__)
    for place, index in enumerate(ascending):
        taken[index] = min(remaining[index], left // (len(ascending) - place))
        left -= taken[index]
    for index in reversed(ascending):
        if left > 0 and taken[index] < remaining[index]:
            taken[index] += 1
            left -= 1
    return taken


class RangeEnumerator(SplitEnumerator):
    """Plan the ranges piece by piece. A rescale changes only the subtasks of the splits."""

    def __init__(self, splits: list[RangeSplit], parallelism: int, bounds: tuple[int, int]) -> None:
        self._splits, self._parallelism, self._bounds = splits, parallelism, bounds
        self._held: frozenset[str] = frozenset()
        self._announced = False

    can_hold = True

    def hold(self, splits: frozenset[str]) -> None:
        self._held = splits

    @classmethod
    def start(cls, start: int, end: int, parallelism: int) -> RangeEnumerator:
        return cls(split_range(start, end, parallelism), parallelism, (start, end))

    @classmethod
    def restore(cls, restored: Any, parallelism: int) -> RangeEnumerator:
        splits = [RangeSplit(*fields) for fields in restored["splits"]]
        return cls(splits, parallelism, (restored["bounds"][0], restored["bounds"][1]))

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        remaining = [0 if str(split.number) in self._held else split.remaining for split in self._splits]
        taken = shares(max(1, limit), remaining)
        pairs = zip(self._splits, taken, strict=True)
        # Event time waits for every split from the first round on, also if the limit is too small for all splits.
        intervals = [self._take(split, units) for split, units in pairs if units or not self._announced]
        self._announced = True
        self._splits = [split for split in self._splits if split.remaining]
        return SourcePlan(intervals, backlog=bool(self._splits), finished=not self._splits)

    def _take(self, split: RangeSplit, units: int) -> SplitInterval:
        start, split.position = split.position, split.position + units
        subtask = split.number % self._parallelism
        return SplitInterval(str(split.number), subtask, start, split.position, units, last=not split.remaining)

    @property
    def behind(self) -> int:
        return sum(split.remaining for split in self._splits)

    @property
    def lag(self) -> Lag:
        left: Counter[int] = Counter()
        for split in self._splits:
            left[split.number % self._parallelism] += split.remaining
        return Lag(left)

    def snapshot(self) -> Any:
        return {
            "bounds": list(self._bounds),
            "splits": [[split.number, split.position, split.end] for split in self._splits],
        }


class NumberSequenceSource(Source[int]):
    """Read the integers from ``start`` to ``end``, both included.

    The sequence is divided into contiguous splits. Their number is the source's parallelism at its first start.
    """

    gives_time = False

    def __init__(self, start: int, end: int) -> None:
        self.start = expect_int("NumberSequenceSource", start, "pass whole numbers")
        self.end = expect_int("NumberSequenceSource", end, "pass whole numbers")
        if start > end:
            raise ProgramError(
                "A number sequence starts above its end",
                where="NumberSequenceSource",
                found=f"start {start} > end {end}",
                cure="swap start and end",
            )

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            return RangeEnumerator.start(self.start, self.end + 1, parallelism)
        return RangeEnumerator.restore(restored, parallelism)

    def create_reader(self, subtask: int) -> SplitReader:
        """Make a reader that yields the numbers of its splits."""
        return _NumberReader()


class _NumberReader(SplitReader):
    interleaves = True

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        end: int = interval.end
        for start in range(interval.start, end, BATCH_SIZE):
            yield Batch(range(start, min(start + BATCH_SIZE, end)))


def records_of(method: str, collection: Any) -> Iterable[Any]:
    """Return the records of a collection. Refuse objects that iterate over something else than records."""
    package = type(collection).__module__.partition(".")[0]
    if isinstance(collection, np.ndarray):
        collection = collection.tolist()  # Python's values; an array without dimensions gives a single value
    if hasattr(collection, "columns") and package in _FRAMES:
        raise wrong(method, "a collection of records, and a DataFrame is none", collection, _FRAMES[package])
    for kind, what, cure in _NO_RECORDS:
        if isinstance(collection, kind):
            raise wrong(method, f"a collection of records, and {what}", collection, cure)
    if not isinstance(collection, Iterable):
        raise wrong(method, "a collection of records", collection, "pass for example a list")
    return collection


_FRAMES = {
    "pyspark": "use env.from_dataframe(frame)",
    "pandas": "use list(frame.itertuples(index=False, name=None)), or env.from_dataframe(spark.createDataFrame(frame))",
    "polars": "use frame.rows(), or env.from_dataframe(spark.createDataFrame(frame.to_pandas()))",
    "pyarrow": "use [tuple(row.values()) for row in table.to_pylist()]",
}
_NO_RECORDS: list[tuple[Any, str, str]] = [
    (str | bytes | bytearray | memoryview, "a text is a single one", "put it into a list: [text]"),
    (Mapping, "a dict gives its keys only", "use list(records.items())"),
    (set | frozenset, "a set has another order in each process", "use sorted(records)"),
    (Row, "a row is a single one", "put it into a list: [row]"),
]
"""Classes whose elements are no records, or have no order: the reason and the cure."""


class CollectionSource(Source):
    """Read values of the program in their order. With several subtasks each of them reads one contiguous part.

    The values are pickled with the source, so they must fit comfortably into memory.
    """

    gives_time = False

    def __init__(self, values: Iterable[Any], type_info: Any = None) -> None:
        self.values = list(values)
        self.type_info = type_info

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is None:
            return RangeEnumerator.start(0, len(self.values), parallelism)
        if restored["bounds"][1] != len(self.values):
            raise RestoreError(
                "The collection of a source is not the one it started with, so the source cannot continue",
                where="CollectionSource",
                found=f"{count(len(self.values), 'value')} now, {restored['bounds'][1]} in the checkpoint",
                cure="restore with the same values, or give the source another uid to start it anew",
            )
        return RangeEnumerator.restore(restored, parallelism)

    def create_reader(self, subtask: int) -> SplitReader:
        return _CollectionReader(self.values)


class _CollectionReader(SplitReader):
    interleaves = True

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for start in range(interval.start, interval.end, BATCH_SIZE):
            # Copies: functions may change their arguments, and a repeated round needs the original values.
            yield Batch([own(value) for value in self._values[start : min(start + BATCH_SIZE, interval.end)]])
