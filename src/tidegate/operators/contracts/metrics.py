"""Collect the metrics of an operator's functions in one subtask: the changes of a round go to the driver with the ack.

A subtask may run in a different worker in each round, so no worker knows a total. A worker sends what the round has
added, and the driver adds up the changes of accepted rounds. An operator without metrics sends nothing and does
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.metrics.metricbase import Counter, Distribution, Meter, MetricGroup

log = logging.getLogger(__name__)

Groups = tuple[tuple[str, str | None], ...]
"""From the outermost group to the innermost: a name, or a variable with its value."""
COUNTER, GAUGE, METER, DISTRIBUTION = "counter", "gauge", "meter", "distribution"


class Change(NamedTuple):
    """Hold the change of a metric in a round: ``value`` is what was added (counter, meter), the current value (gauge),
    or count, sum, least and greatest of the round (distribution). ``span_s``: of a meter."""

    kind: str
    groups: Groups
    name: str
    value: Any
    span_s: int = 0


class _Counted(Counter):
    __slots__ = ("added", "before", "kind", "span_s")

    def __init__(self, kind: str, span_s: int = 0) -> None:
        self.kind, self.span_s = kind, span_s
        self.added = self.before = 0

    def inc(self, n: int = 1) -> None:
        self.added += n

    def dec(self, n: int = 1) -> None:
        self.added -= n

    def get_count(self) -> int:
        return self.before + self.added

    def begin(self) -> None:
        self.before += self.added
        self.added = 0

    def change(self) -> Any:
        return self.added or None


class _Metered(_Counted, Meter):
    __slots__ = ()

    def mark_event(self, value: int = 1) -> None:
        self.added += value


class _Distributed(Distribution):
    __slots__ = ("kind", "seen", "span_s")

    def __init__(self) -> None:
        self.kind, self.span_s = DISTRIBUTION, 0
        self.seen: list[Any] | None = None

    def update(self, value: int) -> None:
        seen = self.seen
        if seen is None:
            self.seen = [1, value, value, value]
            return
        seen[0] += 1
        seen[1] += value
        if value < seen[2]:
            seen[2] = value
        elif value > seen[3]:
            seen[3] = value

    def begin(self) -> None:
        self.seen = None

    def change(self) -> Any:
        return self.seen


class _Gauge:
    __slots__ = ("ask", "kind", "span_s", "warned")

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.kind, self.span_s, self.ask, self.warned = GAUGE, 0, ask, False

    def begin(self) -> None:
        pass

    def change(self) -> Any:
        """Read the gauge. A gauge that fails shows nothing: a measurement must not fail a job."""
        try:
            value = self.ask()
            if isinstance(value, int | float):
                return value
            raise TypeError(f"the gauge returned {value!r:.100} of type {type(value).__name__}, not a number")
        except Exception as error:
            if not self.warned:
                log.warning("cannot read a gauge: %s: %s", type(error).__name__, error)
            self.warned = True
            return None


class SubtaskMetrics:
    """Hold all metrics of an operator's functions in one subtask."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self._metrics: dict[tuple[Groups, str], Any] = {}

    def registered(self, groups: Groups, name: str, kind: str, make: Callable[[], Any]) -> Any:
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(
                "A metric must have a name",
                where=f"metrics of operator '{self.operator}'",
                found=repr(name),
                cure='"errors"',
            )
        metric = self._metrics.setdefault((groups, name), None) or make()
        if metric.kind != kind:
            raise ProgramError(
                "Two metrics of one group have the same name",
                where=f"metric '{name}' of operator '{self.operator}'",
                found=f"a {metric.kind} and a {kind}",
                cure="give one metric another name, or put one metric into another group",
            )
        self._metrics[groups, name] = metric
        return metric

    def begin(self) -> None:
        """Begin a round: the changes of an earlier round were sent, or do not count."""
        for metric in self._metrics.values():
            metric.begin()

    def changes(self) -> list[Change]:
        found = []
        for (groups, name), metric in self._metrics.items():
            value = metric.change()
            if value is not None:
                found.append(Change(metric.kind, groups, name, value, metric.span_s))
        return found


class SubtaskMetricGroup(MetricGroup):
    """See ``metrics/metricbase.py``."""

    def __init__(self, metrics: SubtaskMetrics, groups: Groups = ()) -> None:
        self._metrics, self._groups = metrics, groups

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        return SubtaskMetricGroup(self._metrics, (*self._groups, (str(name), None if extra is None else str(extra))))

    def counter(self, name: str) -> Counter:
        counter: Counter = self._metrics.registered(self._groups, name, COUNTER, lambda: _Counted(COUNTER))
        return counter

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        if not callable(obj):
            raise ArgumentTypeError(
                "A gauge must be a function without arguments",
                found=repr(obj),
                cure="for example lambda: len(self.cache)",
            )
        self._metrics.registered(self._groups, name, GAUGE, lambda: _Gauge(obj)).ask = obj

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        meter: Meter = self._metrics.registered(
            self._groups, name, METER, lambda: _Metered(METER, time_span_in_seconds)
        )
        return meter

    def distribution(self, name: str) -> Distribution:
        distribution: Distribution = self._metrics.registered(self._groups, name, DISTRIBUTION, _Distributed)
        return distribution
