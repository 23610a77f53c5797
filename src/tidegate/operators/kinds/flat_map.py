"""Any number of records out for each record in."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class FlatMapOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        source.call_each(f"{self.id}", self.function, [value], depth, owner, keyed, source.emitter(self))
