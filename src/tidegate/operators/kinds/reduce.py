"""A rolling reduction per key: every record emits the new one."""

from __future__ import annotations

from tidegate.base.user_code import UserValue
from tidegate.operators.contracts.operator import OperatorRound
from tidegate.operators.contracts.specs import ReduceSpec
from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.snapshot import OperatorSnapshot


class ReduceOperator(FunctionOperator):
    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._state()  # as a function asks for its states in open: a misfit is found before the first record

    def _state(self) -> UserValue:
        assert self.by_key is not None
        return self.by_key.backend.state(ValueStateDescriptor("_reduce", self.operator.spec_as(ReduceSpec).value_type))

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
