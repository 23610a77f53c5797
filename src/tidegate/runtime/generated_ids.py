"""Stateful operators without a uid: one warning in each job whose state another program may restore."""

from __future__ import annotations

import logging

from tidegate.graph.plan import JobGraph, Operator
from tidegate.graph.transformation import Program, Role
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.sink import Sink, SinkGuarantee
from tidegate.operators.contracts.specs import sinks_of

log = logging.getLogger(__name__)


class GeneratedIds:
    """The names of such operators in one job. Operators that cannot hold state do not count: a changed id loses nothing."""

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
