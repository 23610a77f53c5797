"""Evictors remove records from a window before or after its function is called. These are Java's, in PyFlink's
spelling.

A window with an evictor keeps its records one by one, whatever function it has: an aggregate cannot be undone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.base.user_code import UserValue
from tidegate.common.time import Span, millis_of
from tidegate.metrics.metricbase import MetricGroup
from tidegate.operators.windows.triggers import delta_callable
from tidegate.operators.windows.window import Window

T = TypeVar("T", contravariant=True)
W = TypeVar("W", contravariant=True)


class TimestampedValue(NamedTuple):
    """A record of a window. ``timestamp``: None if the record has none."""

    value: UserValue
    timestamp: int | None

    def get_value(self) -> UserValue:
        """Return the record."""
        return self.value

    def get_timestamp(self) -> int | None:
        """Return the record's timestamp."""
        return self.timestamp

    def has_timestamp(self) -> bool:
        """Tell whether the record has a timestamp."""
        return self.timestamp is not None


class Evictor(ABC, Generic[T, W]):
    """Remove records from a window, before or after its function is called. ``elements`` is a list, in the order in
    which the records came: remove from it the records that must leave the window for good."""

    class EvictorContext(ABC):
        """Give an evictor its context."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the clock, in milliseconds."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the operator's watermark."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Return the group in which the evictor registers its metrics."""

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: W, evictor_context: Evictor.EvictorContext, /
    ) -> None:
        """Remove records before the function is called."""

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: W, evictor_context: Evictor.EvictorContext, /
    ) -> None:
        """Remove records after the function was called."""


class _OneSided(Evictor[object, Window]):
    """Evict before the function is called, or after it."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def _evict(self, elements: list[TimestampedValue]) -> None:
        raise NotImplementedError

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: Evictor.EvictorContext
    ) -> None:
        if not self._after:
            self._evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: Evictor.EvictorContext
    ) -> None:
        if self._after:
            self._evict(elements)


class CountEvictor(_OneSided):
    """Keep the last ``max_count`` records."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if expect_int("CountEvictor", max_count, "a number of records") < 0:
            raise ProgramError(
                "The count of a CountEvictor must be at least 0", found=str(max_count), cure="CountEvictor.of(10)"
            )
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return an evictor that keeps this number of the last records of a window."""
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(0, len(elements) - self._max_count)]


class TimeEvictor(_OneSided):
    """Keep the records that are less than ``window_size`` older than the latest record."""

    def __init__(self, window_size: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._window_size = window_size

    @staticmethod
    def of(window_size: Span, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that keeps records which are at most this much older than the newest record."""
        return TimeEvictor(millis_of("TimeEvictor.of", window_size), do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if times and elements[0].has_timestamp():
            limit = max(times) - self._window_size
            elements[:] = [e for e in elements if e.timestamp is None or e.timestamp > limit]


class DeltaEvictor(_OneSided):
    """Keep the records that are nearer than ``threshold`` to the last record, by ``delta_function(record, last)``."""

    def __init__(self, threshold: float, delta_function: object, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._threshold, self._delta = threshold, delta_callable("DeltaEvictor", delta_function)

    @staticmethod
    def of(threshold: float, delta_function: object, do_evict_after: bool = False) -> DeltaEvictor:
        """Return an evictor that drops records which differ too much from the last record."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [e for e in elements if self._delta(e.value, last) < self._threshold]
