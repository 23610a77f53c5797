"""Kinds of operators that call a function for each record, and do little more: map, filter, process, reduce ..."""

from __future__ import annotations

from tidegate.base.user_code import UserValue
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.contexts import ProcessContext, SubtaskRuntimeContext
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.operator import OperatorRound, OperatorSetup
from tidegate.operators.contracts.specs import BroadcastProcessSpec, ReduceSpec
from tidegate.operators.kinds.broadcast_contexts import BroadcastContext, ReadOnlyContext
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.loop.codegen import LoopSource
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.snapshot import OperatorSnapshot, Redistribution


class MapOperator(FunctionOperator):
    """One record out for each record in."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out = f"tg_v{self.id}"
        source.call(f"{self.id}", self.function, [value], out, depth, source.owner(self.node, value), keyed)
        source.consumers(self, None, out, depth)


class CoMapOperator(FunctionOperator):
    """Two inputs, a function for each: at most one record out for each record in. As in PyFlink, None is no record: a function that
    only changes state returns nothing."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.functions[input], [value], out, depth, owner, keyed)
        source.line(depth, f"if {out} is not None:", owner)
        source.consumers(self, None, out, depth + 1)


class FilterOperator(FunctionOperator):
    """The records its function is true for."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        passes, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.function, [value], passes, depth, owner, keyed)
        source.line(depth, f"if {passes}:", owner)
        source.consumers(self, None, value, depth + 1)


class FlatMapOperator(FunctionOperator):
    """Any number of records out for each record in; of several inputs each has a function of its own."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.call_each(f"{self.id}", self.functions[input], [value], depth, owner, keyed, source.emitter(self))


class ProcessOperator(FunctionOperator):
    """Any number of records out, also to side outputs; time, state and timers by the context. Of several inputs each has a method
    of its own, and all share state and timers."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        context = self.write_time(source, value, depth, self.context_of(input))
        function, owner = self.functions[input], source.owner(self.node, value)
        source.call_each(f"{self.id}", function, [value, context], depth, owner, keyed, source.emitter(self))

    def context_of(self, input: int) -> ProcessContext | BroadcastContext:
        """What the function gets with a record of the input."""
        return self.context


class BroadcastProcessOperator(ProcessOperator):
    """A process function whose second input every subtask sees all of, with the state that is made of it. The first input may be
    keyed; then the second has no current key, and timers belong to the first."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        self._declared = node.operator.spec_as(BroadcastProcessSpec).broadcast_states
        super().__init__(node, setup)
        assert self.own_state is not None
        states, declared = self.own_state.states, self._declared
        timers = self.context.timer_service()
        self.context = ReadOnlyContext(timers, self.backend, states, declared)
        self._broadcast_context = BroadcastContext(timers, self.backend, states, declared)

    def _own_state(self, keyed_store: SubtaskRuntimeContext | None) -> OwnState:
        return OwnState(self.operator, self.setup, checkpointed(self.operator.spec.user_function), keyed_store)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        assert self.own_state is not None
        for descriptor in self._declared:
            self.own_state.states.check(descriptor, Redistribution.BROADCAST)

    def context_of(self, input: int) -> ProcessContext | BroadcastContext:
        return self._broadcast_context if input else self.context


class ReduceOperator(FunctionOperator):
    """A rolling reduction per key: every record emits the new one."""

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._state()  # as a function asks for its states in open: a misfit is found before the first record

    def _state(self) -> UserValue:
        assert self.backend is not None
        return self.backend.state(ValueStateDescriptor("_reduce", self.operator.spec_as(ReduceSpec).value_type))

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        state = self._state()
        before, out, owner = f"tg_a{self.id}", f"tg_v{self.id}", source.owner(self.node, value)
        source.line(depth, f"{before} = {source.bind(f's{self.id}', state.value)}()", owner)
        source.line(depth, f"if {before} is None:", owner)
        source.line(depth + 1, f"{out} = {value}", owner)
        source.line(depth, "else:", owner)
        source.call(f"{self.id}", self.function, [before, value], out, depth + 1, owner)
        source.line(depth, f"{source.bind(f'u{self.id}', state.update)}({out})", owner)
        source.consumers(self, None, out, depth)
