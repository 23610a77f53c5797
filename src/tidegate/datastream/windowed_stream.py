"""WindowedStream and AllWindowedStream: the description of windows, and the operators made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.base.user_code import calling_line
from tidegate.common.conversion import converter
from tidegate.common.object_types import Declared
from tidegate.common.time import Duration, Time, millis_of
from tidegate.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from tidegate.datastream.aggregates import Aggregate, Aggregation
from tidegate.datastream.aggregations import (
    Field,
    GreatestOf,
    LeastOf,
    RecordWithGreatest,
    RecordWithLeast,
    SumOf,
    expect_field,
)
from tidegate.datastream.annotations import Result, result_type
from tidegate.datastream.functions import AggregateFunction, ReduceFunction
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.stream import DataStream, expect_function
from tidegate.datastream.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.operators.contracts.specs import SessionWindowSpec, SlicedWindowSpec, WindowingSpec, WindowSpec
from tidegate.operators.windows.assigner import MergingWindowAssigner, WindowAssigner
from tidegate.operators.windows.evictors import Evictor
from tidegate.operators.windows.operation import (
    Aggregated,
    Buffered,
    Contents,
    Reduced,
    Shape,
    WindowOperation,
    has_session_intervals,
    is_sliced,
)
from tidegate.operators.windows.sessions import fixed_gap
from tidegate.operators.windows.trigger import Trigger

if TYPE_CHECKING:
    from tidegate.datastream.keyed_stream import KeyedStream
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


T = TypeVar("T", covariant=True, default=Any)
K = TypeVar("K", covariant=True, default=Any)
W = TypeVar("W", default=Any)
A = TypeVar("A", default=Any)
R = TypeVar("R", default=Any)
S = TypeVar("S", default=Any)

if TYPE_CHECKING:
    OfWindow: TypeAlias = (
        WindowFunction[S, R, K, W]
        | ProcessWindowFunction[S, R, K, W]
        | AllWindowFunction[S, R, W]
        | ProcessAllWindowFunction[S, R, W]
    )
    """A function of a window; which of them a stream takes depends on its key, and is checked when it is called."""


class _Windows(Generic[T, K, W]):
    """The base of both. Methods that describe the windows return this object; methods with a function make an operator."""

    _label: str
    _apply: type[Any]
    _process: type[Any]
    _shapes: tuple[Shape, Shape]

    def __init__(self, keyed: KeyedStream[T, K], window_assigner: WindowAssigner[T, W]) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            cure = "for example TumblingEventTimeWindows.of(Time.seconds(10))"
            raise wrong("window", "a WindowAssigner object", window_assigner, cure)
        self._keyed_stream, self._window_assigner = keyed, window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._evictor: Evictor[Any, Any] | None = None
        self._lateness = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment it was made in."""
        return self._keyed_stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """Return the declared type of the records that come in."""
        return self._keyed_stream.get_type()

    # -- description

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Set when windows fire, instead of the assigner's default."""
        if not isinstance(trigger, Trigger):
            raise wrong("trigger", "a Trigger object", trigger, "for example CountTrigger.of(100)")
        self._trigger = self._mergeable(trigger)
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Set which records leave a window before or after its function is called (Java's). Windows then store single records."""
        if not isinstance(evictor, Evictor):
            raise wrong("evictor", "an Evictor object", evictor, "for example CountEvictor.of(100)")
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: int | Time | Duration) -> Self:
        """Set how long a window stays after its end, by the watermark: records until then fire it again. Only event-time windows
        have late records."""
        number = isinstance(time_ms, int) and not isinstance(time_ms, bool)
        self._lateness = int(time_ms) if number else millis_of("allowed_lateness", time_ms)  # type: ignore[arg-type]
        if self._lateness < 0:
            raise ProgramError(
                "The allowed lateness cannot be negative",
                found=f"{self._lateness} ms",
                cure="use 0 for none",
            )
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send records that are too late for all their windows to this side output; without it they are dropped."""
        if not isinstance(output_tag, OutputTag):
            raise wrong("side_output_late_data", "an OutputTag", output_tag, 'OutputTag("late", Types.STRING())')
        self._late_tag = output_tag
        return self

    # -- operators

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: None = None,
        output_type: Declared = None,
    ) -> DataStream[T]: ...

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: OfWindow[T, R, K, W],
        output_type: Declared = None,
    ) -> DataStream[R]: ...

    def reduce(
        self, reduce_function: Any, window_function: Any = None, output_type: Declared = None
    ) -> DataStream[Any]:
        """Reduce each window to one value, record by record. The window function gets the value when the window fires."""
        function = expect_function("reduce", reduce_function, ReduceFunction)
        if window_function is None and output_type is None:
            output_type = self._keyed_stream._type
        result = self._type_of("reduce", output_type, window_function)
        return self._result(Reduced(function, self._value_type()), window_function, result, function)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, A, R],
        window_function: None = None,
        accumulator_type: Declared = None,
        output_type: Declared = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, A, S],
        window_function: OfWindow[S, R, K, W],
        accumulator_type: Declared = None,
        output_type: Declared = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: Aggregate | Aggregation,
        window_function: OfWindow[Any, R, K, W],
        accumulator_type: Declared = None,
        output_type: Declared = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(self, aggregate_function: Aggregate | Aggregation, *more: Aggregate) -> DataStream[Any]: ...

    def aggregate(
        self,
        aggregate_function: Any,
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
        *more: Aggregate,
    ) -> DataStream[Any]:
        """Aggregate each window in an accumulator, record by record. Its result is emitted when the window fires.

        Instead of a function there may be any number of ``Aggregates``: ``aggregate(Aggregates.sum("price"), Aggregates.count())``
        emits a tuple with a result for each. Combine them by ``Aggregates.of(...)`` to give a window function too.
        """
        if isinstance(aggregate_function, Aggregate):
            every = (aggregate_function, window_function, accumulator_type, output_type, *more)
            return self.aggregate(Aggregation(tuple(one for one in every if one is not None)))
        if isinstance(aggregate_function, Aggregation):
            aggregate_function = aggregate_function.typed(self._keyed_stream._type)
            if output_type is None and window_function is None:
                output_type = aggregate_function.output_type
        parts = ("create_accumulator", "add", "get_result", "merge")
        if isinstance(aggregate_function, type) or not all(hasattr(aggregate_function, part) for part in parts):
            cure = "extend AggregateFunction and pass an object of it"
            raise wrong("aggregate", "an AggregateFunction object", aggregate_function, cure)
        env, method = self.get_execution_environment(), "aggregate"
        kept = result_type(env, method, accumulator_type, aggregate_function, "create_accumulator", many=False)
        if window_function is None:
            result = result_type(env, method, output_type, aggregate_function, "get_result", many=False)
        else:
            result = self._type_of(method, output_type, window_function)
        contents = Aggregated(aggregate_function, _or_pickled(kept.type))
        return self._result(contents, window_function, result, aggregate_function)

    def apply(self, window_function: OfWindow[T, R, K, W], output_type: Declared = None) -> DataStream[R]:
        """Call the function with all records of a window when it fires."""
        if not isinstance(window_function, self._apply):
            raise wrong("apply", f"a {self._apply.__name__} object", window_function, f"extend {self._apply.__name__}")
        return self._called(window_function, self._type_of("apply", output_type, window_function))

    def process(self, process_window_function: OfWindow[T, R, K, W], output_type: Declared = None) -> DataStream[R]:
        """Call the function with all records of a window when it fires, with time and state."""
        name = self._process.__name__
        if not isinstance(process_window_function, self._process):
            raise wrong("process", f"a {name} object", process_window_function, f"extend {name}")
        return self._called(process_window_function, self._type_of("process", output_type, process_window_function))

    def sum(self, position_to_sum: Field = 0) -> DataStream[T]:
        """Emit the sum of a field; the other fields are those of the window's first record (Java's)."""
        return self.reduce(SumOf(expect_field("sum", position_to_sum)))

    def min(self, position_to_min: Field = 0) -> DataStream[T]:
        """Emit the least value of a field; the other fields are those of the window's first record (Java's)."""
        return self.reduce(LeastOf(expect_field("min", position_to_min)))

    def max(self, position_to_max: Field = 0) -> DataStream[T]:
        """Emit the greatest value of a field; the other fields are those of the window's first record (Java's)."""
        return self.reduce(GreatestOf(expect_field("max", position_to_max)))

    def min_by(self, position_to_min_by: Field = 0) -> DataStream[T]:
        """Emit the record with the least value of a field; of several the first (Java's)."""
        return self.reduce(RecordWithLeast(expect_field("min_by", position_to_min_by)))

    def max_by(self, position_to_max_by: Field = 0) -> DataStream[T]:
        """Emit the record with the greatest value of a field; of several the first (Java's)."""
        return self.reduce(RecordWithGreatest(expect_field("max_by", position_to_max_by)))

    # -- inside

    def _type_of(self, method: str, declared: Declared, function: Any) -> Result:
        """Return the type of what a window function gives."""
        gives = "apply" if isinstance(function, self._apply) else "process"
        return result_type(self.get_execution_environment(), method, declared, function, gives)

    def _called(self, function: Any, result: Result) -> DataStream:
        """Call the function with all records of a window when it fires."""
        return self._result(Buffered(self._value_type()), function, result)

    def _result(self, contents: Contents, function: Any, result: Result, aggregation: Any = None) -> DataStream:
        assigner: WindowAssigner[Any, Any] = self._window_assigner
        trigger = self._trigger or self._mergeable(assigner.get_default_trigger(self.get_execution_environment()))
        self._check_merge(contents)
        operation = WindowOperation(
            assigner,
            trigger,
            self._evictor,
            self._lateness,
            self._late_tag,
            contents,
            function,
            self._shape(function),
            converter(result.type),
        )
        stream = self._keyed_stream._then(type(assigner).__name__, _spec_of(operation), *result)
        functions = ", ".join(type(part).__name__ for part in (aggregation, function) if part is not None)
        return stream.set_description(f"{self._label}({assigner}, {type(trigger).__name__}, {functions})")

    def _shape(self, function: Any) -> Shape:
        apply, process = self._shapes
        if function is None:
            return Shape.NONE
        if isinstance(function, self._apply):
            return apply
        if isinstance(function, self._process):
            return process
        wanted = f"a {self._apply.__name__} or a {self._process.__name__} object"
        raise wrong("window_function", wanted, function, f"extend {self._process.__name__}")

    def _mergeable(self, trigger: Trigger[Any, Any]) -> Trigger[Any, Any]:
        if isinstance(self._window_assigner, MergingWindowAssigner) and trigger.can_merge() is not True:
            raise ProgramError(
                "A merging window assigner cannot be used with a trigger that does not support merging",
                where=f"windows of {self._window_assigner!r}, {calling_line()}",
                found=f"{trigger!r}, whose can_merge() is not True",
                cure="return True from can_merge() and move timers and state in on_merge(), or use another trigger",
            )
        return trigger

    def _check_merge(self, contents: Contents) -> None:
        merging = isinstance(self._window_assigner, MergingWindowAssigner) and self._evictor is None
        if merging and isinstance(contents, Aggregated) and not contents.can_merge:
            raise ProgramError(
                "The windows merge, but merge() of the AggregateFunction does not merge two accumulators",
                where=f"aggregate({type(contents.function).__name__}) on windows of {self._window_assigner!r}",
                found="a merge() that does not look at both accumulators",
                cure="write merge(acc_a, acc_b), or use windows that do not merge",
            )

    def _value_type(self) -> TypeInformation | None:
        return _or_pickled(self._keyed_stream._type)


class WindowedStream(_Windows[T, K, W]):
    """The windows of a keyed stream: each key has its own. The result of ``KeyedStream.window``."""

    _label, _apply, _process = "Window", WindowFunction, ProcessWindowFunction
    _shapes = (Shape.APPLY, Shape.PROCESS)

    def __init__(self, keyed_stream: KeyedStream[T, K], window_assigner: WindowAssigner[T, W]) -> None:
        super().__init__(keyed_stream, window_assigner)


class AllWindowedStream(_Windows[T, int, W]):
    """The windows of a stream without keys, in one subtask. The result of ``DataStream.window_all``."""

    _label, _apply, _process = "AllWindow", AllWindowFunction, ProcessAllWindowFunction
    _shapes = (Shape.APPLY_ALL, Shape.PROCESS_ALL)

    def __init__(self, data_stream: DataStream[T], window_assigner: WindowAssigner[T, W]) -> None:
        super().__init__(data_stream.key_by(_one_key), window_assigner)

    def _result(self, *arguments: Any) -> DataStream:
        return super()._result(*arguments).force_non_parallel()


def _spec_of(operation: WindowOperation) -> WindowingSpec:
    """Return the fastest kind of operator for the windows."""
    if is_sliced(operation):
        return SlicedWindowSpec(operation)
    if has_session_intervals(operation):
        return SessionWindowSpec(operation, fixed_gap(operation.assigner))
    return WindowSpec(operation)


def _one_key(value: Any) -> int:
    return 0


def _or_pickled(info: TypeInformation | None) -> TypeInformation | None:
    return None if isinstance(info, PickledBytesTypeInfo) else info
