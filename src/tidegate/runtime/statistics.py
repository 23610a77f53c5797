"""The statistics of a round, for listeners, faces and the benchmark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.graph.plan import JobGraph
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
