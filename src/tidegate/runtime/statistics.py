"""Statistics of accepted rounds, for listeners, faces and the benchmark, and the job's metrics on the driver.

A metric is the sum over accepted rounds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.metrics import COUNTER, DISTRIBUTION, GAUGE, METER, Change, Groups
from tidegate.operators.contracts.specs import sources_of
from tidegate.operators.flow.rows import Ack, RoundContext

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundStatistics:
    """An accepted round."""

    round: int
    checkpoint_id: int | None
    started_ms: int
    seconds: float
    records_in: int
    """Records the sources read."""
    records_out: int
    """Records that crossed an edge."""
    commit_seconds: float
    """How long the checkpoint lane has stored, committed and cleaned up since the previous round: in parallel to rounds."""
    rebuilds: int = 0
    """Local stores that were built from all their files: subtasks that came to a host that did not know them."""

    @property
    def records_per_second(self) -> float:
        """What the sources read, by the time of the round."""
        return self.records_in / self.seconds if self.seconds > 0 else 0.0


Listener = Callable[[RoundStatistics], None]


def statistics_of(
    context: RoundContext, seconds: float, acks: list[Ack], graph: JobGraph, commit_seconds: float
) -> RoundStatistics:
    sources = {graph.chain_of[operator.id] for operator in sources_of(graph)}
    return RoundStatistics(
        round=context.round,
        checkpoint_id=context.checkpoint_id,
        started_ms=context.now_ms,
        seconds=seconds,
        records_in=sum(ack.records_in for ack in acks if ack.chain in sources),
        records_out=sum(ack.records_out for ack in acks),
        commit_seconds=commit_seconds,
        rebuilds=sum(ack.rebuilds for ack in acks),
    )


def busy_seconds(acks: list[Ack], graph: JobGraph) -> float:
    """The round's time that grows with its records: the slowest subtask of each level. Starting workers does not count."""
    slowest: dict[int, float] = {}
    for ack in acks:
        level = graph.chains[ack.chain].level
        slowest[level] = max(slowest.get(level, 0.0), ack.seconds)
    return sum(slowest.values())


def tell(listeners: list[Listener], statistics: RoundStatistics) -> None:
    """Call the listeners. An error of a listener is logged, and is no failure of the job."""
    for listener in list(listeners):
        try:
            listener(statistics)
        except Exception as error:
            log.warning("round %d: listener %r failed: %r", statistics.round, listener, error)


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
