"""Process functions with a second input that every subtask sees all of, and with the state that is made of it."""

from __future__ import annotations

from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.contexts import SubtaskRuntimeContext
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.operator import OperatorRound, Site
from tidegate.operators.contracts.specs import BroadcastProcessSpec
from tidegate.operators.kinds.broadcast_contexts import BroadcastContext, ReadOnlyContext
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.loop.codegen import LoopSource
from tidegate.state.snapshot import OperatorSnapshot, Redistribution


class BroadcastProcessOperator(FunctionOperator):
    """The first input may be keyed; then the second has no current key, and timers belong to the first."""

    def __init__(self, node: ChainNode, site: Site) -> None:
        self._declared = node.operator.spec_as(BroadcastProcessSpec).broadcast_states
        super().__init__(node, site)
        assert self.own_state is not None
        states, declared = self.own_state.states, self._declared
        backend = None if self.by_key is None else self.by_key.backend
        timers = self.context.timer_service()
        self.context = ReadOnlyContext(timers, backend, states, declared)
        self._broadcast_context = BroadcastContext(timers, backend, states, declared)

    def _own_state(self, keyed_store: SubtaskRuntimeContext | None) -> OwnState:
        return OwnState(self.operator, self.site, checkpointed(self.operator.spec.user_function), keyed_store)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.own_state is not None
        for descriptor in self._declared:
            self.own_state.states.check(descriptor, Redistribution.BROADCAST)

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        context = self.write_time(source, value, depth, self._broadcast_context if input else self.context)
        function, owner = self.functions[input], source.owner(self.node, value)
        source.call_each(f"{self.id}", function, [value, context], depth, owner, keyed, source.emitter(self))
