"""A bounded source over values the program holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.common.counts import count
from tidegate.common.errors import RestoreError
from tidegate.connectors.ranges import BATCH_SIZE, RangeEnumerator
from tidegate.operators.ownership import own
from tidegate.operators.source import Batch, Source, SplitEnumerator, SplitInterval, SplitReader


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
            yield [own(value) for value in self._values[start : min(start + BATCH_SIZE, interval.end)]], None
