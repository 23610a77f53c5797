"""The classes user functions extend.

One contract for all of them: a function object is pickled to the executors, and each Python worker has its own copy for an
operator and subtask. ``open`` is called once on such a copy before its first record, ``close`` when the copy is discarded.
**Fields are a cache, not state**: the next round may run in another worker, on another copy, and a failed attempt's fields are
gone. Values that must survive belong into keyed state (``RuntimeContext.get_state`` and similar methods). After a failed round a
function may be called again with the same records; state never shows effects of the failed attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tidegate.base.generics import Accumulator, Generic, In, In1, In2, Key, Out
from tidegate.base.generics import TypeVar as Variable
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSinkFunction
from tidegate.datastream.async_functions import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from tidegate.datastream.time_domain import TimeDomain
from tidegate.datastream.timerservice import TimerService
from tidegate.datastream.window_functions import (
    AllWindowFunction,
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.metrics.metricbase import MetricGroup
from tidegate.operators.contracts.functions import CheckpointedFunction, DistributedCache, FunctionObject

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "TimerService",
    "TwoPhaseCommitSinkFunction",
    "WindowFunction",
]

# For the brackets of generic functions, ``ProcessWindowFunction[IN, OUT, KEY, W]``: PyFlink programs import these from here.
IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W2 = TypeVar("W2")

Selected = Variable("Selected", covariant=True, default=Any)
Record = Variable("Record", default=Any)
K = Variable("K", default=Any)
V = Variable("V", default=Any)
Given = Variable("Given", default=Any)
Gotten = Variable("Gotten", default=Any)
if TYPE_CHECKING:
    Emitted: TypeAlias = Iterable[Out | tuple[OutputTag[Any], Any]] | None
    """What process functions return: records, and ``tag, value`` for side outputs."""


class KeyedStateStore(ABC):
    """Returns keyed state by descriptor, in ``open``. The handle is then valid for every record.

    The same name must always have the same kind and type. Only functions on a keyed stream have keyed state.
    """

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor[V]) -> ValueState[V]:
        """Return the value state of this name, of the current key."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return the list state of this name, of the current key."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return the map state of this name, of the current key."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[V]) -> ReducingState[V]:
        """Return the reducing state of this name, of the current key."""

    @abstractmethod
    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[Given, Gotten]
    ) -> AggregatingState[Given, Gotten]:
        """Return the aggregating state of this name, of the current key."""


class RuntimeContext(KeyedStateStore):
    """The argument of ``open``: where the function runs, and its keyed state."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Return the operator's name."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Return the operator's parallelism."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """From 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """From 0; grows when a task is retried."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """For example ``Count (2/4)``."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Of ``ExecutionConfig.set_global_job_parameters``."""

    @abstractmethod
    def get_distributed_cache(self) -> DistributedCache:
        """Return the files of ``StreamExecutionEnvironment.register_cached_file``, by name (Java's API; PyFlink has no
        counterpart)."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Return the group in which the function registers its metrics."""


class Function(FunctionObject, ABC):
    """Root of all functions: the life cycle. All hooks are optional."""

    def open(self, runtime_context: RuntimeContext, /) -> None:
        """Get state and open connections. Called once per copy, before its first record."""

    open.does_nothing = True  # type: ignore[attr-defined]


class MapFunction(Function, Generic[In, Out]):
    """Returns one record for each record."""

    @abstractmethod
    def map(self, value: In, /) -> Out:
        """Return the result for a record."""


class FlatMapFunction(Function, Generic[In, Out]):
    """Returns any number of records for each record."""

    @abstractmethod
    def flat_map(self, value: In, /) -> Iterable[Out]:
        """Yield any number of records, or return a list."""


class FilterFunction(Function, Generic[In]):
    """Selects records."""

    @abstractmethod
    def filter(self, value: In, /) -> bool:
        """Return whether to keep the record."""


class ReduceFunction(Function, Generic[Record]):
    """Combines two records of a key into one. The order of combination must not matter."""

    @abstractmethod
    def reduce(self, value1: Record, value2: Record, /) -> Record:
        """``value1``: the reduction so far; ``value2``: the new record. The result is of the records' type; it may not change
        its arguments in place. The first record of a key is its own reduction."""


class AggregateFunction(Function, Generic[In, Accumulator, Out]):
    """Aggregation with an accumulator of another type than records and result."""

    @abstractmethod
    def create_accumulator(self) -> Accumulator:
        """Return a new, empty accumulator."""

    @abstractmethod
    def add(self, value: In, accumulator: Accumulator, /) -> Accumulator:
        """Return the accumulator with the value added. It may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Accumulator, /) -> Out:
        """Return the result of an accumulator without changing it. May be called any number of times."""

    @abstractmethod
    def merge(self, acc_a: Accumulator, acc_b: Accumulator, /) -> Accumulator:
        """Merge two accumulators into one, for merging windows. May change and return one of them."""


class KeySelector(Function, Generic[In, Selected]):
    """Selects the key of a record. The context of ``open`` refuses all calls: a selector runs before records reach a subtask."""

    @abstractmethod
    def get_key(self, value: In, /) -> Selected:
        """Return the record's key: hashable, and the same for the same record in every process and at any time."""


class Partitioner(Function, Generic[In]):
    """Selects the subtask of a key. ``open`` is as for a KeySelector."""

    @abstractmethod
    def partition(self, key: In, num_partitions: int, /) -> int:
        """Return the subtask of the next operator, from 0 to ``num_partitions - 1``."""


class ProcessFunction(Function, Generic[In, Out]):
    """Called for each record of a stream; emits any number of records, also to side outputs."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time. Timers need a keyed stream: use ``KeyedProcessFunction``."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in milliseconds; None if it has none."""

    @abstractmethod
    def process_element(self, value: In, ctx: ProcessFunction.Context, /) -> Emitted[Out]:
        """Yield records; ``yield tag, value`` with an OutputTag goes to that side output."""


class KeyedProcessFunction(Function, Generic[In, Out, Key]):
    """Called for each record of a keyed stream, with the state and the timers of the record's key."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the record, or of the timer."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time and timers of the current key."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in milliseconds; None if it has none."""

    class OnTimerContext(Context):
        """The context of ``on_timer``; ``timestamp`` is the time of the timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock the timer was set on."""

    @abstractmethod
    def process_element(self, value: In, ctx: KeyedProcessFunction.Context, /) -> Emitted[Out]:
        """Yield records; ``yield tag, value`` with an OutputTag goes to that side output."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext, /) -> Emitted[Out]:
        """Handle a timer. Event-time timers fire once the watermark has passed them (all of them at the end of bounded input),
        processing-time timers once the clock has. Yield as in ``process_element``."""


class CoMapFunction(Function, Generic[In1, In2, Out]):
    """For connected streams: the two inputs share the object, and on keyed streams the state of a key."""

    @abstractmethod
    def map1(self, value: In1, /) -> Out | None:
        """Return a record of the first input. None: nothing is emitted."""

    @abstractmethod
    def map2(self, value: In2, /) -> Out | None:
        """Return a record of the second input. None: nothing is emitted."""


class CoFlatMapFunction(Function, Generic[In1, In2, Out]):
    """For connected streams, as ``CoMapFunction``."""

    @abstractmethod
    def flat_map1(self, value: In1, /) -> Iterable[Out] | None:
        """Return a record of the first input: yield any number of records, or return a list."""

    @abstractmethod
    def flat_map2(self, value: In2, /) -> Iterable[Out] | None:
        """Return a record of the second input."""


class CoProcessFunction(Function, Generic[In1, In2, Out]):
    """Called for each record of two connected streams. The order between records of different inputs is undefined."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time. Timers need keyed streams: use ``KeyedCoProcessFunction``."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in milliseconds; None if it has none."""

    @abstractmethod
    def process_element1(self, value: In1, ctx: CoProcessFunction.Context, /) -> Emitted[Out]:
        """Return a record of the first input. Yield records; ``yield tag, value`` with an OutputTag goes to that side output."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: CoProcessFunction.Context, /) -> Emitted[Out]:
        """Return a record of the second input."""


class KeyedCoProcessFunction(Function, Generic[In1, In2, Out, Key]):
    """Called for each record of two connected keyed streams. State and timers of a key are the same for both inputs."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the record, or of the timer."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time and timers of the current key."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in milliseconds; None if it has none."""

    class OnTimerContext(Context):
        """The context of ``on_timer``; ``timestamp`` is the time of the timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock the timer was set on."""

    @abstractmethod
    def process_element1(self, value: In1, ctx: KeyedCoProcessFunction.Context, /) -> Emitted[Out]:
        """Return a record of the first input. Yield records; ``yield tag, value`` with an OutputTag goes to that side output."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: KeyedCoProcessFunction.Context, /) -> Emitted[Out]:
        """Return a record of the second input."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext, /) -> Emitted[Out]:
        """Handle a timer, once the watermark of both inputs has passed it. Yield as in ``process_element1``."""


class ProcessJoinFunction(Function, Generic[In1, In2, Out]):
    """Called for each pair of records that an interval join finds."""

    class Context(ABC):
        """Valid during the call only."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the timestamp of the left record."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the timestamp of the right record."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Return the later one of the two: the time of the emitted records."""

    @abstractmethod
    def process_element(self, left: In1, right: In2, ctx: ProcessJoinFunction.Context, /) -> Emitted[Out]:
        """Yield records; ``yield tag, value`` with an OutputTag goes to that side output."""


class BaseBroadcastProcessFunction(Function):
    """The base of functions with broadcast state."""

    class BaseContext(ABC):
        """Valid during the call only."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the record's event time in milliseconds, or the timer's; None if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the clock, in milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the operator's watermark."""

    class Context(BaseContext):
        """The context on the broadcast side."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
            """Return the state for reading and writing."""

    class ReadOnlyContext(BaseContext):
        """The context on the other side."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
            """Return the state for reading."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[In1, In2, Out]):
    """For a stream that is not keyed and a broadcast stream, whose state is available to all records of the first."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """Of the broadcast side: it may write the broadcast state."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """Of the other side: it may only read the broadcast state."""

    @abstractmethod
    def process_element(self, value: In1, ctx: BroadcastProcessFunction.ReadOnlyContext, /) -> Emitted[Out]:
        """A record of the stream that is not broadcast. Yield as in a ``ProcessFunction``."""

    @abstractmethod
    def process_broadcast_element(self, value: In2, ctx: BroadcastProcessFunction.Context, /) -> Emitted[Out]:
        """Handle a broadcast record. Every subtask gets it and must make the same changes of the state."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[In1, In2, Out, Key]):
    """For a keyed stream and a broadcast stream. Keyed state and timers belong to the keyed side."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """Of the broadcast side: it may write the broadcast state."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], Any]) -> None:
            """Call ``function(key, state)`` for every key that has an entry in a keyed state (PyFlink lacks this method)."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """Of the other side: it may only read the broadcast state."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time and timers of the current key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the record, or of the timer."""

    class OnTimerContext(ReadOnlyContext, ABC):
        """The context of ``on_timer``; ``timestamp`` is the time of the timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which clock the timer was set on."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the record, or of the timer."""

    @abstractmethod
    def process_element(self, value: In1, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext, /) -> Emitted[Out]:
        """Return a record of the keyed stream. Yield as in a ``ProcessFunction``."""

    @abstractmethod
    def process_broadcast_element(self, value: In2, ctx: KeyedBroadcastProcessFunction.Context, /) -> Emitted[Out]:
        """Handle a broadcast record. Every subtask gets it and must make the same changes of the state. There is no current key."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext, /) -> Emitted[Out]:
        """Handle a timer, with the broadcast state for reading. Yield as in ``process_element``."""


class FunctionInitializationContext(ABC):
    """The argument of ``CheckpointedFunction.initialize_state``."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Return whether there is state to restore: False only before the first round of a new job."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """State of the operator, without a key."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """State by key, where the stream is keyed."""


class FunctionSnapshotContext(ABC):
    """The argument of ``CheckpointedFunction.snapshot_state``."""

    @abstractmethod
    def get_checkpoint_id(self) -> int | None:
        """Return the id of the round's checkpoint; None if the round has none: not every snapshot becomes a checkpoint."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """When the checkpoint was triggered, in milliseconds."""


class SinkFunction(Function, Generic[In]):
    """A simple way to write a sink, without any guarantee of its own: after a failure records are sent again.

    ``open`` and ``close`` are called around each round (and attempt), so the function writes its buffers before the round is
    acknowledged. For exactly-once output use ``TwoPhaseCommitSinkFunction`` or a ``Sink``.
    """

    @abstractmethod
    def invoke(self, value: In, context: Any, /) -> None:
        """Write one record. ``context`` has ``timestamp()`` and ``current_processing_time()``."""
