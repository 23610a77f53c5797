"""Process functions: any number of records, also to side outputs; time, state and timers by the context."""

from __future__ import annotations

from tidegate.operators.codegen import LoopSource
from tidegate.operators.function_operator import FunctionOperator


class ProcessOperator(FunctionOperator):
    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        owner = source.owner(self.node, value)
        context = source.bind(f"c{self.id}", self.context)
        if source.timed:
            source.line(depth, f"{context}.ts = tg_t", owner)
        else:
            source.once(f"{context}.ts = None")
        source.call_each(f"{self.id}", self.function, [value, context], depth, owner, keyed, source.emitter(self))
