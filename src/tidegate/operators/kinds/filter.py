"""The records its function is true for."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class FilterOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        kept, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.function, [value], kept, depth, owner, keyed)
        source.line(depth, f"if {kept}:", owner)
        source.consumers(self, None, value, depth + 1)
