"""A rolling reduction per key: every record emits the new one."""

from __future__ import annotations

from tidegate.operators.codegen import LoopSource
from tidegate.operators.function_operator import FunctionOperator
from tidegate.state.descriptors import ValueStateDescriptor


class ReduceOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        assert self.by_key is not None
        state = self.by_key.backend.state(ValueStateDescriptor("_reduce", self.operator.spec.value_type))
        before, out, owner = f"tg_a{self.id}", f"tg_v{self.id}", source.owner(self.node, value)
        source.line(depth, f"{before} = {source.bind(f's{self.id}', state.value)}()", owner)
        source.line(depth, f"if {before} is None:", owner)
        source.line(depth + 1, f"{out} = {value}", owner)
        source.line(depth, "else:", owner)
        source.call(f"{self.id}", self.function, [before, value], out, depth + 1, owner)
        source.line(depth, f"{source.bind(f'u{self.id}', state.update)}({out})", owner)
        source.consumers(self, None, out, depth)
