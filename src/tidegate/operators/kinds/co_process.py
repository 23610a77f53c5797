"""Process functions of two inputs, with a method for each; state and timers are the same for both."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class CoProcessOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        context = self.write_time(source, value, depth)
        function, owner = self.functions[input], source.owner(self.node, value)
        source.call_each(f"{self.id}", function, [value, context], depth, owner, keyed, source.emitter(self))
