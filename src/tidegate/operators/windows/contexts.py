"""The contexts of window functions, triggers, assigners and evictors, and the output of a window operator.

A context gives time, timers and state of the current key and window. The output is collected with its timestamps, and
handed on in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tidegate.base.arguments import shown
from tidegate.base.errors import StateAccessError
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.typeinfo import TupleTypeInfo, TypeInformation
from tidegate.graph.transformation import OutputTag
from tidegate.metrics.metricbase import MetricGroup
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import SubtaskRuntimeContext
from tidegate.operators.loop.ownership import ATOMS, is_immutable, own
from tidegate.operators.windows.assigner import WindowAssigner
from tidegate.operators.windows.evictors import Evictor
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.window import Window
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import KeyContext
from tidegate.state.descriptors import StateDescriptor
from tidegate.state.single import TrackedState


class WindowClock(Protocol):
    """Give the operator's time. ``watermark``: event-time timers have fired up to it."""

    watermark: int

    def processing_time(self) -> int: ...


class OperatorTriggerContext(Trigger.OnMergeContext):
    """Be the context of a trigger. The operator enters the namespace of the window before it calls the trigger.
    ``merged``: in ``on_merge``, the namespaces of the merged windows."""

    def __init__(self, backend: KeyedBackend, clock: WindowClock, runtime: SubtaskRuntimeContext) -> None:
        self._backend, self._clock, self._runtime = backend, clock, runtime
        self.merged: Iterable[bytes] = ()

    def get_current_processing_time(self) -> int:
        return self._clock.processing_time()

    def get_current_watermark(self) -> int:
        return self._clock.watermark

    def get_metric_group(self) -> MetricGroup:
        return self._runtime.get_metrics_group()

    def register_processing_time_timer(self, time: int) -> None:
        self._backend.processing_timers.register(time)

    def register_event_time_timer(self, time: int) -> None:
        self._backend.event_timers.register(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._backend.processing_timers.delete(time)

    def delete_event_time_timer(self, time: int) -> None:
        self._backend.event_timers.delete(time)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self._backend.state(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        state = self._backend.state(state_descriptor)
        if not isinstance(state, TrackedState) or state_descriptor.kind == "value":
            raise StateAccessError(
                "Only list, reducing and aggregating states can be merged",
                where=f"merge_partitioned_state in a trigger of operator {self._backend.operator_name!r}",
                found=shown(state_descriptor),
                cure="keep the value in a ReducingState, or set the state again in on_merge",
            )
        state.merge_namespaces(self._backend.context.namespace, self.merged)


class OperatorAssignerContext(WindowAssigner.WindowAssignerContext):
    def __init__(self, clock: WindowClock, runtime: SubtaskRuntimeContext) -> None:
        self._clock, self._runtime = clock, runtime

    def get_current_processing_time(self) -> int:
        return self._clock.processing_time()

    def get_runtime_context(self) -> SubtaskRuntimeContext:
        return self._runtime


class OperatorEvictorContext(Evictor.EvictorContext):
    def __init__(self, clock: WindowClock, runtime: SubtaskRuntimeContext) -> None:
        self._clock, self._runtime = clock, runtime

    def get_current_processing_time(self) -> int:
        return self._clock.processing_time()

    def get_current_watermark(self) -> int:
        return self._clock.watermark

    def get_metric_group(self) -> MetricGroup:
        return self._runtime.get_metrics_group()


class WindowContext:
    """Be the ``context`` of a process window function. ``enter`` sets its window; ``namespace``: the window's own."""

    def __init__(
        self, clock: WindowClock, runtime: SubtaskRuntimeContext, backend: KeyedBackend, *, merging: bool
    ) -> None:
        self._clock, self._runtime, self._backend, self._merging = clock, runtime, backend, merging
        self._window: Window | None = None
        self._namespace: Callable[[], bytes] = bytes

    def enter(self, window: Window, namespace: Callable[[], bytes]) -> None:
        self._window, self._namespace = window, namespace

    def window(self) -> Window | None:
        return self._window

    def current_processing_time(self) -> int:
        return self._clock.processing_time()

    def current_watermark(self) -> int:
        return self._clock.watermark

    def window_state(self) -> WindowStateStore:
        """Return the state of this key in this window."""
        if self._merging:
            raise StateAccessError(
                "Per-window state is not allowed when using merging windows.",
                where=f"window_state() in operator {self._backend.operator_name!r}",
                found="a window that may be merged with others: its state cannot be merged",
                cure="use global_state(), the state of the key in all windows",
            )
        return WindowStateStore(self._backend, self._namespace())

    def global_state(self) -> SubtaskRuntimeContext:
        """Return the state of this key, shared by all windows."""
        return self._runtime


class WindowStateStore:
    """Return states of the current key in one window."""

    def __init__(self, backend: KeyedBackend, namespace: bytes) -> None:
        self._backend, self._namespace = backend, namespace

    def _scoped(self, state_descriptor: StateDescriptor) -> ScopedState:
        return ScopedState(self._backend.state(state_descriptor), self._backend.context, self._namespace)

    get_state = get_list_state = get_map_state = get_reducing_state = get_aggregating_state = _scoped


class ScopedState:
    """Use a state in a namespace, from code that runs in no namespace."""

    def __init__(self, state: Any, context: KeyContext, namespace: bytes) -> None:
        self._state, self._context, self._namespace = state, context, namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        return self._inside(found) if callable(found) else found

    def _inside(self, method: UserFunction) -> UserFunction:
        def call(*arguments: UserValue) -> UserValue:
            slot = self._context.slot
            self._context.namespace = self._namespace
            try:
                return method(*arguments)
            finally:
                self._context.slot = slot

        return call

    def __iter__(self) -> Iterator[UserValue]:
        listed = getattr(self._state, "keys", None) or self._state.get
        return iter(self._inside(listed)())

    def __getitem__(self, key: UserValue) -> UserValue:
        return self._inside(self._state.get)(key)

    def __setitem__(self, key: UserValue, value: UserValue) -> None:
        self._inside(self._state.put)(key, value)

    def __delitem__(self, key: UserValue) -> None:
        self._inside(self._state.remove)(key)

    def __contains__(self, key: UserValue) -> bool:
        return bool(self._inside(self._state.contains)(key))


LATE_RECORDS_DROPPED = "numLateRecordsDropped"
"""The metric, by Flink's name: records that are too late for all their windows, without a side output for them."""
_BATCH = 4096
"""Records that are handed on together."""


class Emission:
    """Collect results. ``emit``: takes the batches. ``convert``: converts results to values of the declared type, or
    None; a result with a tag stays unchanged. ``declared``: the type of the results; a tuple of a type that cannot change
    is not copied."""

    def __init__(
        self,
        emit: Callable[[Batch], None],
        convert: Callable[[UserValue], UserValue] | None,
        declared: TypeInformation | None,
    ) -> None:
        self._emit, self._convert = emit, convert
        self._flat = convert is None and isinstance(declared, TupleTypeInfo) and is_immutable(declared)
        self._values: list[UserValue] = []
        self._times: list[int | None] = []

    def clear(self) -> None:
        """Drop what a failed round has left."""
        self._values, self._times = [], []

    def results(self, results: Iterable[UserValue] | None, time: int) -> None:
        """Add the output of a user function, which the function may still change."""
        values, convert, flat = self._values, self._convert, self._flat
        for result in results or ():
            kind = result.__class__
            tagged = kind is tuple and len(result) == 2 and result[0].__class__ is OutputTag
            if convert is not None and not tagged:
                values.append(own(convert(result)))
            elif kind in ATOMS or (flat and kind is tuple and not tagged):
                values.append(result)
            else:
                values.append(own(result))
        self._times.extend([time] * (len(values) - len(self._times)))

    def owned(self, results: list[UserValue], time: int) -> None:
        """Add results that no one else can change."""
        self._values += results if self._convert is None else map(self._convert, results)
        self._times += [time] * len(results)

    def late(self, tag: OutputTag, value: UserValue, time: int | None) -> None:
        """Add a record that is too late."""
        self._values.append((tag, value))
        self._times.append(time)

    def flush_full(self) -> None:
        if len(self._values) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._values:
            values, times = self._values, self._times
            self.clear()
            self._emit(Batch(values, times))
