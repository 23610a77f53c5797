"""Process functions: any number of records, also to side outputs; time, state and timers by the context."""

from __future__ import annotations

from tidegate.operators.kinds.function_operator import FunctionOperator
from tidegate.operators.loop.codegen import LoopSource


class ProcessOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        context = self.write_time(source, value, depth)
        owner = source.owner(self.node, value)
        source.call_each(f"{self.id}", self.function, [value, context], depth, owner, keyed, source.emitter(self))
