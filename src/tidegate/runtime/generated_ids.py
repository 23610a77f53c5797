"""Operators without a uid of the user's: told of once, by a job whose state another program may look for."""

from __future__ import annotations

import logging

from tidegate.graph.plan import JobGraph, Operator
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.sink import SinkGuarantee

log = logging.getLogger(__name__)


class GeneratedIds:
    """Of one job. Only operators that may hold state count: what belongs to nobody can get lost for nobody."""

    def __init__(self, program: Program, graph: JobGraph) -> None:
        given = {t.id for t in program.transformations if t.uid or t.uid_hash}
        self.operators = [o.name for o in graph.operators if o.id not in given and _may_hold_state(o)]
        self._told = False

    def warn(self) -> None:
        """Once, however often it is called."""
        if self.operators and not self._told:
            self._told = True
            log.warning(
                "these operators have no uid of their own: %s. Their state is found by an id made of their place in the program, "
                "so a changed program may not find it, or may find another's: call uid('...') on each "
                "(pipeline.auto-generate-uids: false makes this an error)",
                ", ".join(map(repr, self.operators)),
            )


def _may_hold_state(operator: Operator) -> bool:
    spec = operator.spec
    if operator.keyed is not None or spec.is_source:
        return True
    if spec.is_sink:
        function = spec.sink.function
        if hasattr(spec.sink, "channel_id"):  # of execute_and_collect: it has no place for a uid
            return False
        return spec.sink.guarantee is not SinkGuarantee.NONE or checkpointed(function) is not None
    return spec.method is not None and checkpointed(spec.function) is not None
