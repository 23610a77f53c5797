"""The guarantee of a job for its output, and the warning about stateful operators without a uid.

The guarantee is derived from sources, sinks and checkpoints: the weakest part decides (SPEC E9).

The warning is logged once in each job whose state another program may restore.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tidegate.base.errors import ProgramError
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.common.options import REQUIRE
from tidegate.graph.plan import JobGraph, Operator
from tidegate.graph.transformation import Program, Role
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.sink import Publication, Sink, SinkGuarantee
from tidegate.operators.contracts.specs import SinkNode, SourceNode, sinks_of, sources_of


class Promise(IntEnum):
    """The kinds of guarantee. A weaker guarantee is a smaller number."""

    NONE = 0
    AT_MOST_ONCE = 1
    AT_LEAST_ONCE = 2
    EXACTLY_ONCE = 3

    def __str__(self) -> str:
        return "no guarantee" if self is Promise.NONE else self.name.lower().replace("_", "-")

    @staticmethod
    def named(text: str) -> Promise:
        return Promise[text.upper().replace("-", "_")]


@dataclass(frozen=True)
class Guarantee:
    """A guarantee with its reason. ``reason`` names the part that decided, or is None. ``cure`` would raise the guarantee; None:
    nothing can raise it.

    ``loses``, ``repeats`` and ``reappears`` say what a reader of the output may see after a failure: missing records, duplicate
    records, or for a moment an old value in place of a newer one.
    """

    promise: Promise
    reason: str | None = None
    cure: str | None = None
    loses: bool = False
    repeats: bool = False
    reappears: bool = False

    @property
    def name(self) -> str:
        return str(self.promise)

    def __str__(self) -> str:
        return self.name if self.reason is None else f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class PathGuarantee:
    """The guarantee for records from one source to one sink. ``sink`` None: the records reach no sink, so only state depends on
    them."""

    source: str
    sink: str | None
    guarantee: Guarantee

    def __str__(self) -> str:
        return f"{self.source} -> {self.sink or '(no sink)'}: {self.guarantee}"

    def facts(self) -> dict[str, str | None]:
        """Return the guarantee as plain data, for faces."""
        of = self.guarantee
        return {"source": self.source, "sink": self.sink, "guarantee": of.name, "reason": of.reason, "cure": of.cure}


@dataclass(frozen=True)
class JobGuarantee(Guarantee):
    """The guarantee of the job: the guarantee of its weakest path. ``reason`` and ``cure`` belong to this path."""

    paths: tuple[PathGuarantee, ...] = ()

    def __str__(self) -> str:
        return super().__str__()

    def lines(self) -> Iterator[str]:
        """Yield a line for every path, with the cure that would raise its guarantee."""
        for path in self.paths:
            raised = f"; to raise it: {path.guarantee.cure}" if path.guarantee.cure else ""
            yield f"{path}{raised}"


WITHOUT_CHECKPOINTS = Guarantee(
    Promise.NONE,
    "without checkpoints a failure ends the job",
    "env.enable_checkpointing(...)",
    loses=True,
    repeats=True,
)


def guarantee_of(graph: JobGraph, policy: CheckpointPolicy | None) -> JobGuarantee:
    """Return the guarantee of a job. ``policy`` None: no checkpoints. Of several weakest paths the first one gives the reason."""
    ends = any(node.spec.is_bounded for node in sources_of(graph))
    paths = tuple(
        PathGuarantee(
            source.label,
            None if sink is None else sink.label,
            WITHOUT_CHECKPOINTS if policy is None else _of_path(source, sink, policy, ends),
        )
        for source, sink in _paths(graph)
    )
    if policy is None or not paths:
        least = WITHOUT_CHECKPOINTS if policy is None else Guarantee(Promise.EXACTLY_ONCE)
    else:
        least = min((path.guarantee for path in paths), key=lambda g: (g.promise, g.reason is None))
    every = [path.guarantee for path in paths] or [least]
    return JobGuarantee(
        least.promise,
        least.reason,
        least.cure,
        loses=any(g.loses for g in every),
        repeats=any(g.repeats for g in every),
        reappears=any(g.reappears for g in every),
        paths=paths,
    )


def check_required(graph: JobGraph, guarantee: JobGuarantee, required: str | None) -> None:
    """Refuse a job with a weaker guarantee than the required one, and name every path that is too weak."""
    if required is None or guarantee.promise >= Promise.named(required):
        return
    weak = [path for path in guarantee.paths if path.guarantee.promise < Promise.named(required)]
    cures = dict.fromkeys(path.guarantee.cure for path in weak if path.guarantee.cure)
    raise ProgramError(
        f"The job is not {required}, which {REQUIRE.key} requires",
        where=f"job '{graph.name}'",
        found="; ".join(map(str, weak)) or str(guarantee),
        cure="; ".join(cures) or guarantee.cure or f"remove {REQUIRE.key}",
    )


def _paths(graph: JobGraph) -> Iterator[tuple[SourceNode, SinkNode | None]]:
    """Yield every source with every sink that its records may reach."""
    reached = _reached_sinks(graph)
    for source in sources_of(graph):
        sinks = sorted((sink for sink in sinks_of(graph) if sink.id in reached[source.id]), key=lambda sink: sink.id)
        if not sinks:
            yield source, None
        for sink in sinks:
            yield source, sink


def _reached_sinks(graph: JobGraph) -> dict[int, set[int]]:
    """Map operator ids to the ids of the sinks downstream. Ids grow along the inputs, so readers come first in this order."""
    below: dict[int, list[int]] = {operator.id: [] for operator in graph.operators}
    for chain in graph.chains:
        for node in chain.head.walk():
            below[node.operator.id] += [child.operator.id for _, child in node.children]
            below[node.operator.id] += [edge.target for edge in node.edges]
    reached = {sink.id: {sink.id} for sink in sinks_of(graph)}
    for operator_id in sorted(below, reverse=True):
        for reader in below[operator_id]:
            reached.setdefault(operator_id, set()).update(reached[reader])
        reached.setdefault(operator_id, set())
    return reached


def _of_path(source: SourceNode, sink: SinkNode | None, policy: CheckpointPolicy, ends: bool) -> Guarantee:
    """Return the guarantee of one path. ``ends``: a source of the job is bounded."""
    read = source.spec.source
    at_once = policy.at_least_once
    written = None if sink is None else sink.spec.sink
    kind = SinkGuarantee.TWO_PHASE_COMMIT if written is None else _kept(written, at_once)
    # Output that is committed with its round is duplicated if the source is read again. A sink of the kinds in _REPEATS duplicates
    # output with every retry of a task.
    itself = written is not None and _kept(written) in _REPEATS
    loses, repeats = not read.can_replay, itself or (kind in _REPEATS and read.can_replay)
    # Output that waits for its checkpoint is never older than the output that a reader has seen.
    reappears = kind is SinkGuarantee.IDEMPOTENT and written is not None and not written.marks_checkpoints
    name = "" if sink is None else sink.label
    if kind is SinkGuarantee.BEST_EFFORT:
        assert written is not None
        reason = f"sink {name} does not wait until its output is safe"
        return Guarantee(Promise.NONE, reason, written.to_raise, True, repeats, reappears)
    if loses:
        reason = f"source {source.label} cannot be read again"
        if repeats:
            reason += f", and sink {name} repeats output when a task is tried again"
        return Guarantee(Promise.AT_MOST_ONCE, reason, read.to_raise, loses, repeats, reappears)
    if ends and not policy.after_finish and written is not None and _waits(written, at_once):
        return Guarantee(Promise.AT_MOST_ONCE, _NO_FINAL, _FINAL, True, repeats, reappears)
    if repeats:
        assert written is not None
        by_mode = at_once and _kept(written) not in _REPEATS
        reason = f"sink {name} repeats output after a failure"
        reason, cure = (_MODE, _OTHER_MODE) if by_mode else (reason, written.to_raise)
        return Guarantee(Promise.AT_LEAST_ONCE, reason, cure, loses, repeats, reappears)
    seen = f"old values may reappear for a moment after a failure: sink {name} overwrites" if reappears else None
    return Guarantee(Promise.EXACTLY_ONCE, seen, reappears=reappears)


_REPEATS = {SinkGuarantee.NONE, SinkGuarantee.WRITE_AHEAD, SinkGuarantee.BEST_EFFORT}


_MODE = (
    "execution.checkpointing.mode is AT_LEAST_ONCE, so output is committed with its round and repeats after a failure"
)
_NO_FINAL = (
    "execution.checkpointing.checkpoints-after-tasks-finish is false and a source ends, so the output after the last checkpoint "
    "is never committed"
)
_FINAL = "execution.checkpointing.checkpoints-after-tasks-finish: true"
_OTHER_MODE = "execution.checkpointing.mode: EXACTLY_ONCE"


def _kept(sink: Sink, at_once: bool = False) -> SinkGuarantee:
    """Return the guarantee that the sink keeps in this job. A transaction for each round is no better than none: after a failure,
    committed rounds are read again. The same holds for a sink that overwrites by checkpoint id: other rounds have other ids."""
    by_checkpoint = sink.guarantee is SinkGuarantee.IDEMPOTENT and sink.marks_checkpoints
    committed = sink.guarantee is SinkGuarantee.TWO_PHASE_COMMIT or by_checkpoint
    return SinkGuarantee.NONE if committed and (at_once or sink.publication is Publication.ROUND) else sink.guarantee


def _waits(sink: Sink, at_once: bool) -> bool:
    """Whether the output of the sink becomes visible with checkpoints."""
    return not at_once and sink.publication is not Publication.ROUND


log = logging.getLogger(__name__)


class GeneratedIds:
    """The names of the operators without a uid in one job. Operators that cannot hold state do not count: a changed id loses
    nothing."""

    def __init__(self, program: Program, graph: JobGraph) -> None:
        given = {t.id for t in program.transformations if t.uid or t.uid_hash}
        sinks = {node.id for node in sinks_of(graph) if _keeps_output(node.spec.sink)}
        stateful = [o for o in graph.operators if o.id in sinks or _may_hold_state(o)]
        self.operators = [o.name for o in stateful if o.id not in given]
        self._told = False

    def warn(self) -> None:
        """Log the warning at the first call; later calls do nothing."""
        if self.operators and not self._told:
            self._told = True
            log.warning(
                "these operators have no uid: %s. Their state is found by an id derived from their position in the program, "
                "so a changed program may miss it, or may find the state of another operator. Call uid('...') on each operator "
                "(pipeline.auto-generate-uids: false makes this an error)",
                ", ".join(map(repr, self.operators)),
            )


def _may_hold_state(operator: Operator) -> bool:
    keyed_or_source = operator.keyed is not None or operator.spec.role is Role.SOURCE
    return keyed_or_source or checkpointed(operator.spec.user_function) is not None


def _keeps_output(sink: Sink) -> bool:
    return sink.can_have_uid and (sink.guarantee is not SinkGuarantee.NONE or checkpointed(sink.function) is not None)
