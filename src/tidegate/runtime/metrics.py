"""The job's metrics on the driver: the sums over accepted rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.operators.contracts.metrics import COUNTER, DISTRIBUTION, GAUGE, METER, Change, Groups
from tidegate.operators.flow.rows import Ack


@dataclass(frozen=True)
class MetricView:
    """A metric of a function in one subtask. ``value``: what was counted, what a gauge was last, or of a distribution the sum.

    Counters, meters and distributions tell what accepted rounds have done, of all attempts: what a restart repeats is counted
    again, as the records themselves are.
    """

    operator: int
    subtask: int
    groups: Groups
    name: str
    kind: str
    value: float
    rate: float | None = None
    """Of a meter: events a second, in its time span."""
    count: int | None = None
    """Of a distribution, as the two below."""
    least: float | None = None
    greatest: float | None = None

    @property
    def full_name(self) -> str:
        """With the names of its groups."""
        return ".".join([*(name for name, extra in self.groups if extra is None), self.name])


Key = tuple[int, int, Groups, str]


class JobMetrics:
    """Belongs to the job's thread. ``shown`` is replaced, never changed: any thread may read it."""

    def __init__(self) -> None:
        self.shown: Mapping[Key, MetricView] = {}
        self._events: dict[Key, tuple[int, deque[tuple[int, int]]]] = {}
        """Of a meter: its time span, and when how many events came."""

    def add(self, acks: Iterable[Ack], now_ms: int) -> bool:
        """Add an accepted round, and return whether it changed anything."""
        changes = [(ack.subtask, o, change) for ack in acks for o, every in ack.metrics.items() for change in every]
        if not changes and not self._events:
            return False
        shown = dict(self.shown)
        for subtask, operator, change in changes:
            key = (operator, subtask, change.groups, change.name)
            shown[key] = _changed(shown.get(key) or _new(key, change.kind), change)
            if change.kind == METER:
                self._events.setdefault(key, (change.span_s * 1000, deque()))[1].append((now_ms, change.value))
        for key, (span_ms, events) in self._events.items():
            while events and events[0][0] <= now_ms - span_ms:
                events.popleft()
            shown[key] = replace(shown[key], rate=sum(n for _, n in events) * 1000 / max(1, span_ms))
        self.shown = shown
        return True


def _new(key: Key, kind: str) -> MetricView:
    return MetricView(*key, kind=kind, value=0)


def _changed(view: MetricView, change: Change) -> MetricView:
    value: Any = change.value
    if change.kind == GAUGE:
        return replace(view, value=value)
    if change.kind in (COUNTER, METER):
        return replace(view, value=view.value + value)
    assert change.kind == DISTRIBUTION
    count, total, least, greatest = value
    return replace(
        view,
        value=view.value + total,
        count=(view.count or 0) + count,
        least=least if view.least is None else min(view.least, least),
        greatest=greatest if view.greatest is None else max(view.greatest, greatest),
    )
