"""Metrics of user functions: counters, gauges, meters, distributions, in groups (PyFlink's names)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Metric(ABC):  # noqa: B024 - PyFlink's root of all metrics
    """A metric. It shows only accepted rounds: the values of a discarded round do not count."""


class Counter(Metric):
    """A number that goes up and down."""

    @abstractmethod
    def inc(self, n: int = 1) -> None:
        """Add ``n``."""

    @abstractmethod
    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""

    @abstractmethod
    def get_count(self) -> int:
        """Return the count of this copy of the function since ``open``. The job's count is the sum over all copies."""


class Meter(Metric):
    """A counter that is also shown as a rate."""

    @abstractmethod
    def mark_event(self, value: int = 1) -> None:
        """Count ``value`` events."""

    @abstractmethod
    def get_count(self) -> int:
        """Return the count of this copy of the function since ``open``."""


class Distribution(Metric):
    """Shown as count, sum, least and greatest."""

    @abstractmethod
    def update(self, value: int) -> None:
        """Add a value."""


class MetricGroup(ABC):
    """A group of metrics, registered in ``open``. The same name returns the same metric."""

    @abstractmethod
    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return a group inside this one. With ``extra``: a variable of that name and value, a label in Prometheus."""

    @abstractmethod
    def counter(self, name: str) -> Counter:
        """Return the counter of this name."""

    @abstractmethod
    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Register a gauge: ``obj`` is called at the end of every round."""

    @abstractmethod
    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter of this name; its rate is that of the latest ``time_span_in_seconds``."""

    @abstractmethod
    def distribution(self, name: str) -> Distribution:
        """Return the distribution of this name."""
