"""One record out for each record in."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class MapOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out = f"tg_v{self.id}"
        source.call(f"{self.id}", self.function, [value], out, depth, source.owner(self.node, value), keyed)
        source.consumers(self, None, out, depth)
