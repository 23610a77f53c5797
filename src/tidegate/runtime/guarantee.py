"""What a job promises of its output, computed from its sources, sinks and checkpoints: the weakest part decides."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.graph.plan import JobGraph
from tidegate.operators.sink import Publication, Sink, SinkGuarantee

_ONCE = {SinkGuarantee.IDEMPOTENT, SinkGuarantee.TWO_PHASE_COMMIT}


@dataclass(frozen=True)
class Guarantee:
    """``name``: exactly-once, at-least-once, at-most-once, no guarantee. ``reason``: what decided, None for the first."""

    name: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.name if self.reason is None else f"{self.name} ({self.reason})"


def guarantee_of(graph: JobGraph, policy: CheckpointPolicy | None) -> Guarantee:
    if policy is None:
        return Guarantee("no guarantee", "without checkpoints a failure ends the job")
    for source in graph.sources:
        if not source.spec.source.can_replay:
            return Guarantee("at-most-once", f"source '{source.name}' cannot be read again")
    if policy.at_least_once:
        return Guarantee("at-least-once", "execution.checkpointing.mode")
    for sink in graph.sinks:
        if not _writes_once(sink.spec.sink):
            return Guarantee(
                "at-least-once", f"sink '{sink.name.removeprefix('Sink: ')}' repeats output after a failure"
            )
    return Guarantee("exactly-once")


def _writes_once(sink: Sink) -> bool:
    return sink.guarantee in _ONCE and (
        sink.publication is not Publication.ROUND or sink.guarantee is SinkGuarantee.IDEMPOTENT
    )
