"""Define the spec of each kind of operator, as frozen data with typed fields. Find the sources and sinks of a job.

``function`` is the user's argument: a callable or an object of PyFlink's function classes. A kind is a spec here, a
class in ``kinds/`` and a line in ``registry.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeGuard

from tidegate.base.clock import MAX_WATERMARK
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from tidegate.graph.plan import JobGraph, Operator, OperatorOf
from tidegate.graph.transformation import Emits, OperatorSpec, Role
from tidegate.operators.contracts.functions import (
    AsyncInvoked,
    FunctionWrapper,
    ProcessContext,
    RetryRules,
    SubtaskRuntimeContext,
    method_of,
)
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.source import Boundedness, Source
from tidegate.operators.windows.assigner import needs_time
from tidegate.operators.windows.operation import WindowOperation
from tidegate.state.descriptors import MapStateDescriptor, ReducingStateDescriptor


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Describe a source. ``declared`` is the type to which records are converted; None: the source itself gives records
    of the stream's type."""

    role = Role.SOURCE
    inputs = 0

    source: Source
    watermarks: WatermarkStrategy | None = None
    declared: TypeInformation | None = None

    @property
    def connector(self) -> str:
        return type(self.source).__name__

    @property
    def is_bounded(self) -> bool:
        return self.source.boundedness is Boundedness.BOUNDED

    @property
    def emits_tagged(self) -> bool:
        return self.source.emits_tagged

    @property
    def gives_time(self) -> bool:
        return self.timestamp_assigner is not None or self.source.gives_time

    @property
    def timestamp_assigner(self) -> TimestampAssigner | Callable[[UserValue, int], int] | None:
        return None if self.watermarks is None else self.watermarks.timestamp_assigner


@dataclass(frozen=True)
class FunctionSpec(OperatorSpec):
    """Describe a kind that calls a user function. On a keyed input the function's runtime context offers keyed
    state."""

    methods: ClassVar[tuple[str, ...]]
    """The methods of a function object that are called for records, one for each input."""
    takes_callables: ClassVar[bool] = False
    """Whether a plain callable may take the place of a function object."""

    function: object

    @property
    def user_function(self) -> object:
        return self.function

    @property
    def callables(self) -> list[UserFunction]:
        if self.takes_callables:
            return [method_of(self.function, method) for method in self.methods]
        return [getattr(self.function, method) for method in self.methods]


class RecordTimeSpec(FunctionSpec):
    """Describe a kind whose output records have the timestamp of their input record. A plain callable may be the
    function."""

    takes_callables = True

    @property
    def gives_time(self) -> bool:
        return False


class TaggingSpec(FunctionSpec):
    """Describe a kind whose function may emit ``(OutputTag, value)``, which goes to a side output."""

    @property
    def emits_tagged(self) -> bool:
        return True


@dataclass(frozen=True)
class MapSpec(RecordTimeSpec):
    methods = ("map",)
    emits = Emits.ONE


@dataclass(frozen=True)
class FlatMapSpec(RecordTimeSpec):
    methods = ("flat_map",)


@dataclass(frozen=True)
class FilterSpec(RecordTimeSpec):
    methods = ("filter",)
    emits = Emits.SAME_OR_NONE


@dataclass(frozen=True)
class BatchSpec(FunctionSpec):
    """Describe a function over batches: ``function`` has ``process_batch(batch)``, which returns the batch to emit."""

    methods = ("process_batch",)
    emits = Emits.BATCH
    calls_only = True
    takes_columns = True

    most: int | None = None
    """The most records of a batch; None: batches have the size in which they come."""

    @property
    def gives_time(self) -> bool:
        return False


@dataclass(frozen=True)
class KeyedBatchSpec(FunctionSpec):
    """Describe a function over the batches of each key: ``function`` has ``prepare(batch)``, which returns the records as
    columns, ``process_batch(batch, ctx)``, which returns batches to emit, and ``on_timer``."""

    methods = ("process_batch",)
    emits = Emits.BATCH
    calls_only = True
    takes_columns = True

    @property
    def prepare(self) -> UserFunction:
        return method_of(self.function, "prepare")


@dataclass(frozen=True)
class ProcessSpec(TaggingSpec):
    """Describe a process function: ``function`` has ``process_element(value, ctx)`` and may have ``on_timer``."""

    methods = ("process_element",)


@dataclass(frozen=True)
class CoMapSpec(FunctionSpec):
    """Describe a map of two inputs. A result of None is no record."""

    inputs = 2
    methods = ("map1", "map2")


@dataclass(frozen=True)
class CoFlatMapSpec(FunctionSpec):
    inputs = 2
    methods = ("flat_map1", "flat_map2")


@dataclass(frozen=True)
class CoProcessSpec(TaggingSpec):
    """Describe a process function with a method for each of two inputs; otherwise like ``ProcessSpec``."""

    inputs = 2
    methods = ("process_element1", "process_element2")


@dataclass(frozen=True)
class BroadcastProcessSpec(TaggingSpec):
    """Describe a process function with broadcast state, like ``ProcessSpec``. The second input is broadcast;
    ``process_broadcast_element`` builds the broadcast states from it. ``broadcast_states`` describes the maps, which
    are the same in all subtasks."""

    inputs = 2
    methods = ("process_element", "process_broadcast_element")

    broadcast_states: tuple[MapStateDescriptor, ...] = ()


@dataclass(frozen=True)
class IntervalJoinSpec(TaggingSpec):
    """Describe an interval join. ``function`` has ``process_element(left, right, ctx)``. A left record joins the right
    records that are ``lower`` to ``upper`` milliseconds later, both included. ``left_late`` and ``right_late`` are ids
    of the side outputs for late records, or None. ``left_fixed`` and ``right_fixed``: records are immutable, by their
    declared type."""

    inputs = 2
    methods = ("process_element",)

    lower: int
    upper: int
    left_late: str | None = None
    right_late: str | None = None
    left_fixed: bool = False
    right_fixed: bool = False

    @property
    def needs_time(self) -> bool:
        return True


@dataclass(frozen=True)
class ReduceSpec(RecordTimeSpec):
    """Describe a rolling reduce per key, which emits the new aggregate for every record. ``function`` is ``(a, b) ->
    c``, or an object with ``reduce``. In batch mode there is one result per key, at the end of the bounded input."""

    methods = ("reduce",)

    value_type: TypeInformation | None = None

    def in_batch_mode(self) -> ProcessSpec:
        return ProcessSpec(LastReduction(self.function, self.value_type))


class LastReduction(FunctionWrapper):
    """Reduce the records of a key in state, and emit the result from a timer at the end of time: a process function."""

    def __init__(self, function: object, value_type: TypeInformation | None) -> None:
        super().__init__(function)
        reduce = partial(method_of(function, "reduce"))  # it has no methods that the descriptor would prefer
        self._descriptor = ReducingStateDescriptor("reduction", reduce, value_type or Types.PICKLED_BYTE_ARRAY())

    def open(self, runtime_context: SubtaskRuntimeContext) -> None:
        super().open(runtime_context)
        self._state = runtime_context.get_reducing_state(self._descriptor)

    def process_element(self, value: UserValue, ctx: ProcessContext) -> None:
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)
        self._state.add(value)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[UserValue]:
        yield self._state.get()


@dataclass(frozen=True)
class WindowingSpec(TaggingSpec):
    """Describe a kind that puts records into windows."""

    methods = ("add",)

    function: WindowOperation

    @property
    def needs_time(self) -> bool:
        return needs_time(self.function.assigner)


@dataclass(frozen=True)
class WindowSpec(WindowingSpec):
    """Describe windows of any kind."""

    calls_only = True


@dataclass(frozen=True)
class SlicedWindowSpec(WindowingSpec):
    """Describe aligned event-time windows that fire when the watermark passes their end."""

    @property
    def folds_columns(self) -> bool:
        return getattr(self.function.contents.function, "fold_columns", None) is not None


@dataclass(frozen=True)
class SessionWindowSpec(WindowingSpec):
    """Describe event-time sessions that fire when the watermark passes their end."""

    fixed_gap: int | None = None
    """The gap in milliseconds; None: every record has a gap of its own."""

    @property
    def kind(self) -> str:
        """Return the kind that sessions have always had: snapshots of programs without uids must restore."""
        return WindowSpec.__name__


@dataclass(frozen=True)
class AsyncSpec(FunctionSpec):
    methods = ("async_invoke",)
    emits = Emits.BATCH

    function: AsyncInvoked
    ordered: bool
    timeout_ms: int
    capacity: int
    retry: RetryRules | None = None


@dataclass(frozen=True)
class TimestampsSpec(OperatorSpec):
    emits = Emits.BATCH
    takes_columns = True

    watermarks: WatermarkStrategy

    @property
    def gives_time(self) -> bool:
        return self.timestamp_assigner is not None

    @property
    def timestamp_assigner(self) -> TimestampAssigner | Callable[[UserValue, int], int] | None:
        return self.watermarks.timestamp_assigner

    @property
    def moves_time(self) -> bool:
        return self.watermarks.kind != "none"


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """Describe a sink. ``type_info`` is the declared type of the records; a record that does not fit never reaches the
    sink."""

    role = Role.SINK

    sink: Sink
    type_info: TypeInformation | None = None

    @property
    def connector(self) -> str:
        """Return the class of the sink, or the user function that the sink calls."""
        function = self.sink.function
        if function is None:
            return type(self.sink).__name__
        name = getattr(function, "__name__", None)
        return type(function).__name__ if name is None else "lambda" if name == "<lambda>" else f"function {name}"


SourceNode = OperatorOf[SourceSpec]
SinkNode = OperatorOf[SinkSpec]


def sources_of(graph: JobGraph) -> list[SourceNode]:
    """Return the sources of a job, in the order of the chains."""
    return [operator for operator in graph.operators if _is_source(operator)]


def sinks_of(graph: JobGraph) -> list[SinkNode]:
    """Return the sinks of a job, in the order of the chains."""
    return [operator for operator in graph.operators if _is_sink(operator)]


def _is_source(operator: Operator) -> TypeGuard[SourceNode]:
    return operator.spec.role is Role.SOURCE


def _is_sink(operator: Operator) -> TypeGuard[SinkNode]:
    return operator.spec.role is Role.SINK
