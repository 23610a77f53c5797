"""What user functions measure: counters, gauges, meters, distributions, in groups (PyFlink's names)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Metric(ABC):  # noqa: B024 - PyFlink's root of all metrics
    """What is shown of it stands in the accepted rounds: what a discarded round has measured was not."""


class Counter(Metric):
    """A number that goes up and down."""

    @abstractmethod
    def inc(self, n: int = 1) -> None:
        """More by ``n``."""

    @abstractmethod
    def dec(self, n: int = 1) -> None:
        """Less by ``n``."""

    @abstractmethod
    def get_count(self) -> int:
        """What this copy of the function has counted since it was opened. The sum over all copies is the job's."""


class Meter(Metric):
    """A counter that is shown as a rate, too."""

    @abstractmethod
    def mark_event(self, value: int = 1) -> None:
        """So many events have happened."""

    @abstractmethod
    def get_count(self) -> int:
        """What this copy of the function has counted since it was opened."""


class Distribution(Metric):
    """Shown as count, sum, least and greatest."""

    @abstractmethod
    def update(self, value: int) -> None:
        """A value was seen."""


class MetricGroup(ABC):
    """Where metrics are registered, in ``open``. Asked for the same name again it gives the same metric."""

    @abstractmethod
    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group inside this one. With ``extra``: a variable of that name and value, a label in Prometheus."""

    @abstractmethod
    def counter(self, name: str) -> Counter:
        """A counter of this name; the same one for the same name."""

    @abstractmethod
    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """``obj`` is asked at the end of every round."""

    @abstractmethod
    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """The rate is that of the latest so many seconds."""

    @abstractmethod
    def distribution(self, name: str) -> Distribution:
        """A distribution of this name; the same one for the same name."""
