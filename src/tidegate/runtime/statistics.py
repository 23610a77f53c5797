"""Statistics of accepted rounds, for listeners, faces and the benchmark, and the job's metrics on the driver.

A metric is the sum over accepted rounds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.metrics import COUNTER, DISTRIBUTION, GAUGE, METER, Change, Groups
from tidegate.operators.contracts.specs import sources_of
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.figures import Parts, slowest_tasks

log = logging.getLogger(__name__)


ROUND_PARTS = ("plan", "schedule", "read", "user", "pack", "snapshot", "accept", "store", "commit")
"""Plan on the driver; Spark's scheduling and transport; in tasks: reading input, the loop with the user's functions, packing of
channels, snapshots; the driver's acceptance; steps 7 and 8, which run beside rounds."""


@dataclass(frozen=True)
class RoundStatistics:
    """The statistics of an accepted round."""

    round: int
    checkpoint_id: int | None
    started_ms: int
    seconds: float
    records_in: int
    """Records that the sources read."""
    records_out: int
    """Records that crossed an edge."""
    commit_seconds: float
    """How long the checkpoint lane has stored, committed and cleaned up since the previous round, in parallel to rounds."""
    rebuilds: int = 0
    """Local stores that were built from all their files, because a subtask moved to a host that did not have its store."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Where the time of the round went, in seconds by ``ROUND_PARTS``. The parts of levels are those of their slowest subtask."""
    levels: tuple[float, ...] = ()
    """How long the slowest task of each level worked, in seconds."""

    @property
    def records_per_second(self) -> float:
        """The number of records that the sources read, divided by the time of the round."""
        return self.records_in / self.seconds if self.seconds > 0 else 0.0


Listener = Callable[[RoundStatistics], object]


def statistics_of(
    context: RoundContext,
    seconds: float,
    acks: list[Ack],
    graph: JobGraph,
    commit_seconds: float,
    spent: Mapping[str, float] = MappingProxyType({}),
) -> RoundStatistics:
    """Return the statistics of a round. ``spent``: the parts (``ROUND_PARTS``) that the driver has measured, in seconds."""
    sources = {graph.chain_of[operator.id] for operator in sources_of(graph)}
    levels = slowest_tasks(acks, {chain.id: chain.level for chain in graph.chains})
    return RoundStatistics(
        round=context.round,
        checkpoint_id=context.checkpoint_id,
        started_ms=context.now_ms,
        seconds=seconds,
        records_in=sum(ack.records_in for ack in acks if ack.chain in sources),
        records_out=sum(ack.records_out for ack in acks),
        commit_seconds=commit_seconds,
        rebuilds=sum(ack.rebuilds for ack in acks),
        parts=_parts(seconds, levels, spent),
        levels=tuple(map(sum, levels)),
    )


def _parts(seconds: float, levels: list[Parts], spent: Mapping[str, float]) -> dict[str, float]:
    read, user, pack, snapshot = map(sum, zip(*levels, strict=True))
    schedule = max(0.0, seconds - read - user - pack - snapshot)
    of_tasks = {"schedule": schedule, "read": read, "user": user, "pack": pack, "snapshot": snapshot}
    return {part: of_tasks.get(part, spent.get(part, 0.0)) for part in ROUND_PARTS}


def busy_seconds(acks: list[Ack], graph: JobGraph) -> float:
    """Return the part of the round's time that grows with its records: the sum of the slowest subtasks of all levels. The start of
    workers does not count."""
    slowest: dict[int, float] = {}
    for ack in acks:
        level = graph.chains[ack.chain].level
        slowest[level] = max(slowest.get(level, 0.0), ack.seconds)
    return sum(slowest.values())


def tell(listeners: list[Listener], statistics: RoundStatistics) -> None:
    """Call the listeners. An error of a listener is logged, and does not fail the job."""
    for listener in list(listeners):
        try:
            listener(statistics)
        except Exception as error:
            log.warning("round %d: listener %r failed: %r", statistics.round, listener, error)


@dataclass(frozen=True)
class MetricView:
    """A metric of a function in one subtask. ``value``: the count, the last value of a gauge, or the sum of a distribution.

    Counters, meters and distributions cover the accepted rounds of all attempts. Records that a restart repeats are counted again.
    """

    operator: int
    subtask: int
    groups: Groups
    name: str
    kind: str
    value: float
    rate: float | None = None
    """For a meter: events per second in its time span."""
    count: int | None = None
    """For a distribution, like ``least`` and ``greatest``."""
    least: float | None = None
    greatest: float | None = None

    @property
    def full_name(self) -> str:
        """The name with the names of its groups."""
        return ".".join([*(name for name, extra in self.groups if extra is None), self.name])


Key = tuple[int, int, Groups, str]


class JobMetrics:
    """The metrics of a job. They belong to the job's thread. ``shown`` is replaced, never changed, so any thread may read it."""

    def __init__(self) -> None:
        self.shown: Mapping[Key, MetricView] = {}
        self._events: dict[Key, tuple[int, deque[tuple[int, int]]]] = {}
        """For a meter: its time span, and the times and numbers of its events."""

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
