"""Collect the output of a window operator with its timestamps, and hand it on in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate.base.user_code import UserValue
from tidegate.graph.output_tag import OutputTag
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.loop.ownership import own

LATE_RECORDS_DROPPED = "numLateRecordsDropped"
"""The metric, by Flink's name: records that are too late for all their windows, without a side output for them."""
_BATCH = 4096
"""Records that are handed on together."""


class Emission:
    """Collect results. ``emit``: takes the batches. ``convert``: converts results to values of the declared type, or
    None; a result with a tag stays unchanged."""

    def __init__(self, emit: Callable[[Batch], None], convert: Callable[[UserValue], UserValue] | None) -> None:
        self._emit, self._convert = emit, convert
        self._values: list[UserValue] = []
        self._times: list[int | None] = []

    def clear(self) -> None:
        """Drop what a failed round has left."""
        self._values, self._times = [], []

    def results(self, results: Iterable[UserValue] | None, time: int) -> None:
        """Add the output of a user function, which the function may still change."""
        values, convert = self._values, self._convert
        for result in results or ():
            tagged = result.__class__ is tuple and len(result) == 2 and result[0].__class__ is OutputTag
            values.append(own(result if convert is None or tagged else convert(result)))
        self._times.extend([time] * (len(values) - len(self._times)))

    def owned(self, results: list[UserValue], time: int) -> None:
        """Add results that no one else can change."""
        self._values += results if self._convert is None else map(self._convert, results)
        self._times += [time] * len(results)

    def late(self, tag: OutputTag, value: UserValue, time: int | None) -> None:
        """Add a record that is too late."""
        self._values.append((tag, value))
        self._times.append(time)

    def flush_full(self) -> None:
        if len(self._values) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._values:
            values, times = self._values, self._times
            self.clear()
            self._emit(Batch(values, times))
