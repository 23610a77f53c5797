"""Two inputs, a function for each: at most one record out for each record in."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class CoMapOperator(FunctionOperator):
    """As in PyFlink, None is no record: a side that only changes state returns nothing."""

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        out, owner = f"tg_v{self.id}", source.owner(self.node, value)
        source.call(f"{self.id}", self.functions[input], [value], out, depth, owner, keyed)
        source.line(depth, f"if {out} is not None:", owner)
        source.consumers(self, None, out, depth + 1)
