"""KeyedStream: a stream whose records are partitioned by key, so that its readers have state per key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, overload

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.common.object_types import Declared
from tidegate.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, Types
from tidegate.common.types import Row
from tidegate.datastream.aggregations import (
    Field,
    GreatestOf,
    LeastOf,
    RecordWithGreatest,
    RecordWithLeast,
    SumOf,
    expect_field,
)
from tidegate.datastream.annotations import result_type
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.functions import KeyedProcessFunction, KeySelector, MapFunction, ReduceFunction
from tidegate.datastream.stream import DataStream, expect_function
from tidegate.datastream.typed_functions import TypedMap, TypedProcess, TypedReduce, typed
from tidegate.datastream.windowed_stream import WindowedStream
from tidegate.graph.transformation import Input, Partitioning, Ship, Transformation
from tidegate.operators.contracts.specs import MapSpec, ProcessSpec, ReduceSpec
from tidegate.operators.windows.assigner import WindowAssigner
from tidegate.operators.windows.counting import CountSlidingWindowAssigner, CountTumblingWindowAssigner

if TYPE_CHECKING:
    from tidegate.datastream.joined_streams import IntervalJoin
    from tidegate.operators.windows.window import CountWindow


T = TypeVar("T", covariant=True, default=Any)
K = TypeVar("K", covariant=True, default=Any)
R = TypeVar("R", default=Any)
N = TypeVar("N", default=Any)
W = TypeVar("W", default=Any)


class KeyedStream(DataStream[T], Generic[T, K]):
    """The result of ``key_by``. It is not an operator: it has neither name nor uid, and its partitioning cannot change.

    ``map``, ``flat_map`` and ``filter`` with a function object may use keyed state too.
    """

    class AccumulateType(Enum):
        """The aggregations by position."""

        MIN = 1
        MAX = 2
        MIN_BY = 3
        MAX_BY = 4
        SUM = 5

    def __init__(self, origin_stream: DataStream[T], inputs: tuple[Input, ...]) -> None:
        super().__init__(origin_stream._env, inputs, origin_stream._type)
        self._origin_stream = origin_stream

    @overload  # type: ignore[override]
    def process(self, func: KeyedProcessFunction[T, Any, K], output_type: RowTypeInfo) -> DataStream[Row]: ...

    @overload
    def process(self, func: KeyedProcessFunction[T, R, K], output_type: Declared = None) -> DataStream[R]: ...

    def process(self, func: Any, output_type: Declared = None) -> DataStream[Any]:
        """Process records with the state and the timers of their key."""
        if not isinstance(func, KeyedProcessFunction):
            raise wrong(
                "process of a keyed stream", "a KeyedProcessFunction object", func, "extend KeyedProcessFunction"
            )
        result = result_type(self._env, "process", output_type, func, "process_element", "on_timer")
        return self._then("KEYED PROCESS", ProcessSpec(typed(TypedProcess, func, result.type)), *result)

    def reduce(self, func: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]:
        """Reduce the records of a key: every record emits the new reduction."""
        function = typed(TypedReduce, expect_function("reduce", func, ReduceFunction), self._type)
        return self._reduced(function)

    def sum(self, position_to_sum: Field = 0) -> DataStream[T]:
        """Emit the sum of a field so far; the other fields are those of the key's first record."""
        return self._accumulate(KeyedStream.AccumulateType.SUM, position_to_sum)

    def min(self, position_to_min: Field = 0) -> DataStream[T]:
        """Emit the least value of a field so far; the other fields are those of the key's first record."""
        return self._accumulate(KeyedStream.AccumulateType.MIN, position_to_min)

    def max(self, position_to_max: Field = 0) -> DataStream[T]:
        """Emit the greatest value of a field so far; the other fields are those of the key's first record."""
        return self._accumulate(KeyedStream.AccumulateType.MAX, position_to_max)

    def min_by(self, position_to_min_by: Field = 0) -> DataStream[T]:
        """Emit the record with the least value of a field so far; of several the first."""
        return self._accumulate(KeyedStream.AccumulateType.MIN_BY, position_to_min_by)

    def max_by(self, position_to_max_by: Field = 0) -> DataStream[T]:
        """Emit the record with the greatest value of a field so far; of several the first."""
        return self._accumulate(KeyedStream.AccumulateType.MAX_BY, position_to_max_by)

    def window(self, window_assigner: WindowAssigner[T, W]) -> WindowedStream[T, K, W]:
        """Put the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[T, K, CountWindow]:
        """Make windows of ``size`` records of a key; with ``slide`` a new window starts after that many records."""
        if slide == 0:
            return WindowedStream(self, CountTumblingWindowAssigner(size))
        return WindowedStream(self, CountSlidingWindowAssigner(size, slide))

    def key_by(
        self, key_selector: Callable[[T], N] | KeySelector[T, N], key_type: Declared = None
    ) -> KeyedStream[T, N]:
        """Replace the key by another key."""
        return self._origin_stream.key_by(key_selector, key_type)

    @overload  # type: ignore[override]
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None
    ) -> CloseableIterator[Row]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[Row]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Row]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator[Row] | list[Row]:
        """Send the records to a sink, each as a ``Row`` of its key, ``f0``, and itself, ``f1``, as in PyFlink. They are not
        shuffled by key: records of one subtask keep their order.
        """
        origin, (keyed, *_) = self._origin_stream, self._inputs
        assert keyed.partitioning is not None
        info = Types.ROW([keyed.partitioning.key_type or Types.PICKLED_BYTE_ARRAY(), self._type])
        function = typed(TypedMap, _WithKey(keyed.partitioning.selector), info)
        pairs = origin._then("Key", MapSpec(function), info)
        if len(origin._inputs) == 1:
            parallelism = self._env._transformation(origin._inputs[0].upstream).parallelism
            pairs._change("execute_and_collect", parallelism=parallelism)
        return pairs.execute_and_collect(job_execution_name, limit)

    def interval_join(self, other_stream: KeyedStream[N, K]) -> IntervalJoin[T, N]:
        """Join records of two keyed streams with the same key whose times are close to each other (Java's API)."""
        from tidegate.datastream.joined_streams import IntervalJoin  # it makes streams

        return IntervalJoin(self, other_stream)

    def broadcast(self, *args: Any) -> NoReturn:
        """Raise: the key defines the partitioning."""
        self._shipped(Partitioning(Ship.BROADCAST))

    def _accumulate(self, kind: AccumulateType, field: Field) -> DataStream:
        name = kind.name.lower()
        return self._reduced(_FUNCTIONS[kind](expect_field(name, field)))

    def _reduced(self, function: Any) -> DataStream:
        value_type = None if isinstance(self._type, PickledBytesTypeInfo) else self._type
        return self._then("Reduce", ReduceSpec(function, value_type), self._type)

    def _unkeyed(self) -> tuple[Input, ...]:
        return tuple(
            replace(i, partitioning=replace(i.partitioning, keyed=False)) for i in self._inputs if i.partitioning
        )

    def _operator(self, method: str) -> Transformation:
        raise ProgramError(
            f"{method}() is called on key_by(), which is not an operator",
            where="KeyedStream",
            cure=f"call {method}() before key_by(), or on the stream the next operator returns",
        )

    def _shipped(self, partitioning: Partitioning) -> NoReturn:
        raise ProgramError(
            "A keyed stream cannot be partitioned in another way",
            where="KeyedStream",
            found=partitioning.ship.name.lower(),
            cure="partition before key_by(), or after the next operator",
        )


class _WithKey(MapFunction):
    def __init__(self, selector: Any) -> None:
        self._selector = selector

    def map(self, value: Any) -> Row:
        return Row(self._selector(value), value)


_FUNCTIONS: dict[KeyedStream.AccumulateType, Callable[[Field], Any]] = {
    KeyedStream.AccumulateType.SUM: SumOf,
    KeyedStream.AccumulateType.MIN: LeastOf,
    KeyedStream.AccumulateType.MAX: GreatestOf,
    KeyedStream.AccumulateType.MIN_BY: RecordWithLeast,
    KeyedStream.AccumulateType.MAX_BY: RecordWithGreatest,
}
