"""Batch semantics of a rolling reduce: one result per key, when the bounded input has ended."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tidegate.base.errors import ProgramError
from tidegate.common.typeinfo import Types
from tidegate.datastream.functions import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.state import ReducingState, ReducingStateDescriptor
from tidegate.graph.transformation import ProcessSpec, Transformation
from tidegate.operators.contracts.functions import FunctionWrapper, method_of
from tidegate.operators.contracts.source import Boundedness

END_OF_TIME = (1 << 63) - 1
"""The watermark a bounded input ends with."""


class LastReduction(FunctionWrapper, KeyedProcessFunction):
    """Collects in state and emits from a timer at the end of time."""

    def __init__(self, function: Any, value_type: Any) -> None:
        super().__init__(function)
        reduce = partial(method_of(function, "reduce"))  # it has no methods that the descriptor would rather take
        self._descriptor = ReducingStateDescriptor("reduction", reduce, value_type or Types.PICKLED_BYTE_ARRAY())

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._state: ReducingState[Any] = runtime_context.get_reducing_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(END_OF_TIME)
        self._state.add(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield self._state.get()


def resolve_mode(mode: str, transformations: list[Transformation]) -> str:
    """STREAMING or BATCH; BATCH with an unbounded source is refused."""
    unbounded = [
        t.name for t in transformations if t.spec.is_source and t.spec.source.boundedness is not Boundedness.BOUNDED
    ]
    if mode == "AUTOMATIC":
        return "STREAMING" if unbounded else "BATCH"
    if mode == "BATCH" and unbounded:
        raise ProgramError(
            "BATCH mode needs bounded sources",
            where=f"source '{unbounded[0]}'",
            found="it is unbounded",
            cure="set the runtime mode to STREAMING or AUTOMATIC, or bound the source",
        )
    return mode


def with_batch_semantics(transformation: Transformation) -> Transformation:
    """Rolling reduces become last reductions; everything else is the same in both modes."""
    spec = transformation.spec
    if not spec.is_rolling:
        return transformation
    if transformation.pickled_spec is not None:
        spec = pickle.loads(transformation.pickled_spec)
    return replace(transformation, spec=ProcessSpec(LastReduction(spec.function, spec.value_type)), pickled_spec=None)
