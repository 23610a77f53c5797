"""A bounded source over values the program holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tidegate.base.arguments import wrong
from tidegate.base.counts import count
from tidegate.base.errors import RestoreError
from tidegate.common.types import Row
from tidegate.connectors.values.ranges import BATCH_SIZE, RangeEnumerator
from tidegate.operators.contracts.source import Batch, Source, SplitEnumerator, SplitInterval, SplitReader
from tidegate.operators.loop.ownership import own


def records_of(method: str, collection: Any) -> Iterable[Any]:
    """The records of what a program hands over as a collection. Refused: what iterates over something else than its records."""
    package = type(collection).__module__.partition(".")[0]
    if isinstance(collection, np.ndarray):
        collection = collection.tolist()  # Python's values; of an array without dimensions it is a single one
    if hasattr(collection, "columns") and package in _FRAMES:
        raise wrong(method, "a collection of records, and a DataFrame is none", collection, _FRAMES[package])
    for kind, what, cure in _NO_RECORDS:
        if isinstance(collection, kind):
            raise wrong(method, f"a collection of records, and {what}", collection, cure)
    if not isinstance(collection, Iterable):
        raise wrong(method, "a collection of records", collection, "for example a list")
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
"""Classes whose elements are not records, or not in an order: what, and the cure."""


class CollectionSource(Source):
    """The values in order; with parallelism above one each subtask reads one contiguous part. They travel pickled
    with the source, so this is for what fits comfortably into memory.
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
                "a collection source can only continue with the collection it started with",
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
            # copies: functions may change what they are given, and a round that is run again begins with these values
            yield Batch([own(value) for value in self._values[start : min(start + BATCH_SIZE, interval.end)]])
