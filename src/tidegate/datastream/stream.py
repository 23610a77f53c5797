"""DataStream: a thin wrapper over the frozen operators in the environment's registry. Nothing runs while it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any, overload

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.base.hashing import new_token
from tidegate.base.pickling import pickled
from tidegate.base.user_code import calling_line
from tidegate.common.conversion import converter
from tidegate.common.execution_config import ExecutionConfig
from tidegate.common.object_types import Declared, type_of
from tidegate.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.common.types import Row
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.frames.for_each_checkpoint import for_each_checkpoint
from tidegate.connectors.functions.function_sink import AddedSink, FunctionSink
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from tidegate.connectors.values.sinks import CollectSink, PrintSink, collected
from tidegate.datastream.annotations import result_type
from tidegate.datastream.batch_functions import (
    BatchFilter,
    BatchFilterFunction,
    BatchFlatMap,
    BatchFlatMapFunction,
    BatchMap,
    BatchMapFunction,
    expect_format,
)
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.connectors.base import SupportsPreprocessing
from tidegate.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    SinkFunction,
)
from tidegate.datastream.operator_settings import OperatorSettings, StreamOperatorSettings
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.printing import as_written_by_flink, formatter
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.typed_functions import (
    TypedFlatMap,
    TypedMap,
    TypedProcess,
    key_callable,
    partition_callable,
    typed,
)
from tidegate.graph.transformation import Input, OperatorSpec, Partitioning, Ship, Transformation
from tidegate.operators.contracts.arrow_batch import Layout
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.specs import (
    BatchSpec,
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    ProcessSpec,
    SinkSpec,
    TimestampsSpec,
)

if TYPE_CHECKING:
    from tidegate.datastream.cached_stream import CachedDataStream
    from tidegate.datastream.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from tidegate.datastream.joined_streams import CoGroupedStreams, JoinedStreams
    from tidegate.datastream.keyed_stream import KeyedStream
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
    from tidegate.datastream.windowed_stream import AllWindowedStream
    from tidegate.operators.windows.assigner import WindowAssigner

T = TypeVar("T", covariant=True, default=Any)
U = TypeVar("U", default=Any)
R = TypeVar("R", default=Any)
K = TypeVar("K", default=Any)
W = TypeVar("W", default=Any)


class DataStream(StreamOperatorSettings, Generic[T]):
    """The records of one operator, of a side output, or of a union, maybe with a partitioning for the readers."""

    def __init__(
        self,
        env: StreamExecutionEnvironment | DataStream[T],
        inputs: tuple[Input, ...] = (),
        type_info: TypeInformation | None = None,
    ) -> None:
        """Copy a stream: PyFlink programs wrap the results of Java's methods. Other streams come from the environment and from
        streams."""
        self._env: StreamExecutionEnvironment
        self._inputs: tuple[Input, ...]
        self._type: TypeInformation
        if isinstance(env, DataStream):
            self._env, self._inputs, self._type = env._env, env._inputs, env._type
        else:
            self._env, self._inputs, self._type = env, inputs, type_info or Types.PICKLED_BYTE_ARRAY()

    # -- properties

    def get_type(self) -> TypeInformation:
        """Return the declared type of its records; pickled bytes if none was declared."""
        return self._type

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment it was made in."""
        return self._env

    def get_execution_config(self) -> ExecutionConfig:
        """That of its environment."""
        return self._env.get_config()

    # -- operators

    @overload
    def map(self, func: Callable[[T], Any] | MapFunction[T, Any], output_type: RowTypeInfo) -> DataStream[Row]: ...

    @overload
    def map(self, func: Callable[[T], R] | MapFunction[T, R], output_type: Declared = None) -> DataStream[R]: ...

    def map(self, func: Any, output_type: Declared = None) -> DataStream[Any]:
        """Emit one record for each record."""
        function = expect_function("map", func, MapFunction)
        result = result_type(self._env, "map", output_type, function, "map", many=False)
        return self._then("Map", MapSpec(typed(TypedMap, function, result.type)), *result)

    @overload
    def flat_map(
        self, func: Callable[[T], Iterable[Any]] | FlatMapFunction[T, Any], output_type: RowTypeInfo
    ) -> DataStream[Row]: ...

    @overload
    def flat_map(
        self, func: Callable[[T], Iterable[R]] | FlatMapFunction[T, R], output_type: Declared = None
    ) -> DataStream[R]: ...

    def flat_map(self, func: Any, output_type: Declared = None) -> DataStream[Any]:
        """Emit any number of records for each record."""
        function = expect_function("flat_map", func, FlatMapFunction)
        result = result_type(self._env, "flat_map", output_type, function, "flat_map")
        return self._then("FlatMap", FlatMapSpec(typed(TypedFlatMap, function, result.type)), *result)

    def filter(self, func: Callable[[T], bool] | FilterFunction[T]) -> DataStream[T]:
        """Keep the records for which the function returns True."""
        return self._then("Filter", FilterSpec(expect_function("filter", func, FilterFunction)), self._type)

    def map_batches(
        self,
        func: Callable[[Any], Any] | BatchMapFunction,
        output_type: Declared = None,
        *,
        batch_format: str = "arrow",
        batch_size: int | None = None,
    ) -> DataStream:
        """Call the function with whole batches of records, as columns. It returns one record for each record, in their order:
        records keep their timestamps.

        ``output_type``: the type of the results; None: the type of this stream. ``batch_format``: what the function gets and
        returns, a ``pyarrow.RecordBatch`` ("arrow"), a data frame of "pandas" or "polars", or a dict of "numpy" arrays.
        ``batch_size``: the most records of a batch; batches may be smaller.
        """
        info = type_of("map_batches", output_type)
        function = expect_function("map_batches", func, BatchMapFunction)
        return self._batched("map_batches", BatchMap, function, info, batch_format, batch_size)

    def filter_batches(
        self,
        func: Callable[[Any], Any] | BatchFilterFunction,
        *,
        batch_format: str = "arrow",
        batch_size: int | None = None,
    ) -> DataStream:
        """Keep the records for which the function returns True: one boolean for each record of a batch, as an array. Arguments
        as for ``map_batches``."""
        function = expect_function("filter_batches", func, BatchFilterFunction)
        return self._batched("filter_batches", BatchFilter, function, None, batch_format, batch_size)

    def flat_map_batches(
        self,
        func: Callable[[Any], Any] | BatchFlatMapFunction,
        output_type: Declared = None,
        *,
        batch_format: str = "arrow",
        batch_size: int | None = None,
    ) -> DataStream:
        """Emit any number of records for a batch. Arguments as for ``map_batches``.

        The results have no timestamps, because no result belongs to one input record. A function that returns ``(batch, rows)``
        keeps them: ``rows`` has for each result the number of an input record, from 0.
        """
        info = type_of("flat_map_batches", output_type)
        function = expect_function("flat_map_batches", func, BatchFlatMapFunction)
        return self._batched("flat_map_batches", BatchFlatMap, function, info, batch_format, batch_size)

    @overload
    def process(self, func: ProcessFunction[T, Any], output_type: RowTypeInfo) -> DataStream[Row]: ...

    @overload
    def process(self, func: ProcessFunction[T, R], output_type: Declared = None) -> DataStream[R]: ...

    def process(self, func: Any, output_type: Declared = None) -> DataStream[Any]:
        """Process records with timestamps, watermark and side outputs. State and timers need a keyed stream."""
        if isinstance(func, KeyedProcessFunction):
            raise wrong("process of a stream without key", "a ProcessFunction", func, "call key_by(...) first")
        if isinstance(func, type) or not hasattr(func, "process_element"):
            raise wrong("process", "a ProcessFunction object", func, "extend ProcessFunction and pass an object of it")
        result = result_type(self._env, "process", output_type, func, "process_element", "on_timer")
        return self._then("PROCESS", ProcessSpec(typed(TypedProcess, func, result.type)), *result)

    def project(self, *field_indexes: int) -> DataStream[tuple[Any, ...]]:
        """Select fields of a tuple stream, in the given order."""
        if not isinstance(self._type, TupleTypeInfo):
            raise ProgramError(
                "A stream without a tuple type cannot be projected",
                where="project",
                found=f"the type {self._type}",
                cure="declare a tuple type, for example output_type=Types.TUPLE([Types.STRING(), Types.INT()])",
            )
        types = self._type.get_field_types()
        for index in field_indexes:
            if not 0 <= expect_int("project", index, "positions from 0") < len(types):
                raise ProgramError(
                    "project names a position that the tuple does not have", found=f"{index} of {self._type}"
                )
        spec = MapSpec(lambda value: tuple([value[index] for index in field_indexes]))
        return self._then("Projection", spec, Types.TUPLE([types[index] for index in field_indexes]))

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream[T]:
        """Assign timestamps and watermarks, and replace those from upstream."""
        expect_strategy("assign_timestamps_and_watermarks", watermark_strategy)
        if watermark_strategy.alignment_group is not None:
            warnings.warn(
                "watermark alignment has an effect in from_source only, as in Flink", UserWarning, stacklevel=2
            )
        return self._then("Timestamps/Watermarks", TimestampsSpec(watermark_strategy), self._type)

    def get_side_output(self, output_tag: OutputTag[U]) -> DataStream[U]:
        """Return the records that this stream's operator emits with the tag."""
        if not isinstance(output_tag, OutputTag):
            raise wrong("get_side_output", "an OutputTag", output_tag, 'OutputTag("late", Types.STRING())')
        operator = self._operator("get_side_output")
        side: DataStream[U] = DataStream(self._env, (Input(operator.id, tag=output_tag.tag_id),), output_tag.type_info)
        if converter(output_tag.type_info) is None:
            return side
        return side.map(lambda value: value, output_tag.type_info)

    def window_all(self, window_assigner: WindowAssigner[T, W]) -> AllWindowedStream[T, W]:
        """Put all records into windows, whatever their key, in one subtask."""
        from tidegate.datastream.windowed_stream import AllWindowedStream  # it makes streams of this class

        return AllWindowedStream(self, window_assigner)

    def join(self, other: DataStream[U]) -> JoinedStreams[T, U]:
        """Join two streams: pairs of records with the same key in the same window: ``.where(key).equal_to(key).window(...)``
        (Java's)."""
        from tidegate.datastream.joined_streams import JoinedStreams  # it makes streams of this class

        return JoinedStreams(self, other)

    def co_group(self, other: DataStream[U]) -> CoGroupedStreams[T, U]:
        """Group the records of two streams with the same key in the same window, also where one stream has none; as ``join``
        (Java's)."""
        from tidegate.datastream.joined_streams import CoGroupedStreams  # it makes streams of this class

        return CoGroupedStreams(self, other)

    # -- partitioning

    def union(self, *streams: DataStream[U]) -> DataStream[T | U]:
        """Unite this stream with others. Records of each stream keep their order; between streams there is no order."""
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise wrong("union", "streams", stream, "pass DataStream objects")
            if stream._env is not self._env:
                raise ProgramError("The united streams belong to different environments", where="union")
            declared = not any(isinstance(of, PickledBytesTypeInfo) for of in (self._type, stream._type))
            if declared and stream._type != self._type:
                raise ProgramError(
                    "The united streams are of different types",
                    where=f"union, {calling_line()}",
                    found=f"{self._described()} and {stream._described()}",
                    cure="declare the same type for both: map(lambda value: value, output_type=Types.STRING())",
                )
        inputs = [i for stream in (self, *streams) for i in stream._unkeyed()]
        return DataStream(self._env, tuple(inputs), self._type)

    @overload
    def connect(self, ds: DataStream[U]) -> ConnectedStreams[T, U]: ...

    @overload
    def connect(self, ds: BroadcastStream[U]) -> BroadcastConnectedStream[T, U]: ...

    def connect(
        self, ds: DataStream[U] | BroadcastStream[U]
    ) -> ConnectedStreams[T, U] | BroadcastConnectedStream[T, U]:
        """Connect this stream with another one, of any type, for a function with a method for each and shared state."""
        from tidegate.datastream.connected_streams import (  # they make streams
            BroadcastConnectedStream,
            BroadcastStream,
            ConnectedStreams,
        )

        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
        return ConnectedStreams(self, ds)

    def key_by(
        self, key_selector: Callable[[T], K] | KeySelector[T, K], key_type: Declared = None
    ) -> KeyedStream[T, K]:
        """Partition by key: all records of a key go to one subtask, and downstream functions have state per key."""
        from tidegate.datastream.keyed_stream import KeyedStream  # it extends this class

        info = type_of("key_by", key_type)
        selector = key_callable("key_by", key_selector)
        keyed = Partitioning(Ship.HASH, selector=selector, key_type=info, pickled=pickled((selector, None)))
        return KeyedStream(self, self._partitioned(keyed))

    def rebalance(self) -> DataStream[T]:
        """Distribute records evenly over all downstream subtasks."""
        return self._shipped(Partitioning(Ship.REBALANCE))

    def rescale(self) -> DataStream[T]:
        """Distribute records evenly over nearby downstream subtasks: each gets records of some subtasks only."""
        return self._shipped(Partitioning(Ship.RESCALE))

    def shuffle(self) -> DataStream[T]:
        """Distribute records at random."""
        return self._shipped(Partitioning(Ship.SHUFFLE))

    def forward(self) -> DataStream[T]:
        """Send records of each subtask to the downstream subtask of the same number, at the same parallelism."""
        return self._shipped(Partitioning(Ship.FORWARD))

    @overload
    def broadcast(self) -> DataStream[T]: ...

    @overload
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> BroadcastStream[T]: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> DataStream[T] | BroadcastStream[T]:
        """Send every record to every subtask. With descriptors: for ``connect``, whose function then has these states."""
        from tidegate.datastream.connected_streams import BroadcastStream  # it makes streams

        stream = self._shipped(Partitioning(Ship.BROADCAST))
        if broadcast_state_descriptor is None:
            return stream
        return BroadcastStream(stream, [broadcast_state_descriptor, *other_broadcast_state_descriptors])

    def global_(self) -> DataStream[T]:
        """Send all records to the first subtask (Java's ``global``, a reserved word here)."""
        return self._shipped(Partitioning(Ship.GLOBAL))

    def partition_custom(
        self,
        partitioner: Callable[[K, int], int] | Partitioner[K],
        key_selector: Callable[[T], K] | KeySelector[T, K],
    ) -> DataStream[T]:
        """Send each record to the subtask ``partitioner(key, n)``. The result is not keyed."""
        selector = key_callable("partition_custom", key_selector)
        index = partition_callable("partition_custom", partitioner)
        fixed = pickled((selector, index))
        return self._shipped(Partitioning(Ship.CUSTOM, selector=selector, partitioner=index, pickled=fixed))

    def interval_join(self, other_stream: Any) -> Any:
        """Raise: only keyed streams have interval joins."""
        raise ProgramError(
            "An interval join needs keyed streams",
            where="interval_join",
            found="a stream without key",
            cure="call key_by(...) on both streams first",
        )

    # -- sinks

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Send every record to the sink."""
        if not isinstance(sink, Sink):
            raise wrong("sink_to", "a Sink", sink, "for a SinkFunction use add_sink")
        transformer = sink.get_transformer() if isinstance(sink, SupportsPreprocessing) else None
        stream: DataStream = self if transformer is None else transformer.apply(self)
        return stream._sink("Writer", as_written_by_flink(sink, stream._type))

    def add_sink(
        self, sink_func: SinkFunction[T] | TwoPhaseCommitSinkFunction | AddedSink | Callable[[T], Any]
    ) -> DataStreamSink:
        """Send every record to a SinkFunction, a TwoPhaseCommitSinkFunction, a sink that PyFlink has as a SinkFunction
        (StreamingFileSink, JdbcSink, FlinkKafkaProducer), or a callable that takes a record."""
        if isinstance(sink_func, AddedSink):
            return self._sink("Unnamed", sink_func)
        if isinstance(sink_func, TwoPhaseCommitSinkFunction):
            return self._sink("Unnamed", TwoPhaseCommitSink(sink_func))
        is_class = isinstance(sink_func, type) and hasattr(sink_func, "invoke")
        if is_class or not (hasattr(sink_func, "invoke") or callable(sink_func)):
            raise wrong("add_sink", "a SinkFunction object or a callable", sink_func, "for a Sink use sink_to")
        return self._sink("Unnamed", FunctionSink(sink_func))

    def for_each_checkpoint(self, function: Callable[[Any, int], Any], *, idempotent: bool = False) -> DataStreamSink:
        """Call ``function(dataframe, checkpoint_id)`` on the driver for each completed checkpoint, with the records since the
        previous one as a Spark DataFrame. After a crash it may be called again with the same id and records; ``idempotent``: the
        second call changes nothing."""
        return self._sink("For each checkpoint", for_each_checkpoint(function, self._type, idempotent=idempotent))

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print every record as a line on the program's standard output, after the identifier if there is one."""
        text = formatter(self._type)
        stream = self if text is None else self._then("Format", MapSpec(text), Types.STRING())
        return stream._sink("Print to Std. Out", PrintSink(sink_identifier or ""))

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: None = None
    ) -> CloseableIterator[T]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[T]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[T]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator[T] | list[T]:
        """Run the program and return this stream's records: an iterator, or with a limit a list of the first records.

        Close the iterator, or use it in a ``with`` statement: an unbounded job runs until then.
        """
        if limit is not None and expect_int("execute_and_collect", limit, "limit=10") < 1:
            raise ProgramError(
                "The limit of execute_and_collect is less than 1", found=str(limit), cure="give for example limit=10"
            )
        channel = new_token()
        sink = self._sink("Collect", CollectSink(channel))
        # The sink gets the parallelism of its input: there is no shuffle, and records of one subtask keep their order
        if len(self._inputs) == 1:
            upstream = self._env._transformation(self._inputs[0].upstream)
            sink._change("execute_and_collect", parallelism=upstream.parallelism)
        # Before the start: a job may commit at once, and records without a reader are dropped.
        values = collected(channel)
        iterator = CloseableIterator(values, self._env._start(job_execution_name))
        del values
        if limit is None:
            return iterator
        with iterator:
            return [value for _, value in zip(range(limit), iterator, strict=False)]

    def cache(self) -> CachedDataStream[T]:
        """Cache this stream: the first job that needs it stores its records, and later jobs of this environment read them. BATCH
        mode only."""
        from tidegate.datastream.cached_stream import cached  # it extends this class

        return cached(self)

    # -- inside

    def _operator(self, method: str) -> Transformation:
        if len(self._inputs) == 1 and self._inputs[0] == Input(self._inputs[0].upstream):
            return self._env._transformation(self._inputs[0].upstream)
        raise ProgramError(
            f"{method}() is called on a stream that is not an operator",
            found="a union, a side output or a partitioning",
            cure=f"call {method}() on the stream that map(), process() or a source returned, or on an operator that reads this one",
        )

    def _described(self) -> str:
        """Return its type and the names of its operators, for messages."""
        names = ", ".join(repr(self._env._transformation(i.upstream).name) for i in self._inputs)
        return f"{self._type} of {names}"

    def _unkeyed(self) -> tuple[Input, ...]:
        """Return the stream for readers that do not use this stream's key. Records of a key still stay together."""
        return self._inputs

    def _then(
        self, name: str, spec: OperatorSpec, type_info: TypeInformation | None, annotated: str | None = None
    ) -> DataStream[Any]:
        operator = self._env._add(name, spec, self._inputs, output_type=type_info, annotated=annotated)
        return DataStream(self._env, (Input(operator.id),), type_info)

    def _batched(
        self,
        method: str,
        call: type[BatchMap | BatchFilter | BatchFlatMap],
        function: Any,
        output_type: TypeInformation | None,
        batch_format: str,
        batch_size: int | None,
    ) -> DataStream:
        if batch_size is not None and expect_int(method, batch_size, "batch_size=10_000") < 1:
            raise ProgramError(f"The batch_size of {method} is less than 1", found=str(batch_size), cure="leave it out")
        info = output_type or self._type
        given, made = Layout.checked(method, self._type), Layout.checked(method, info)
        spec = BatchSpec(call(function, given, expect_format(method, batch_format), made), batch_size)
        operator = self._env._add(method, spec, self._unkeyed(), output_type=info)
        return DataStream(self._env, (Input(operator.id),), info)

    def _sink(self, name: str, sink: Sink) -> DataStreamSink:
        return DataStreamSink(self._env, self._env._add(f"Sink: {name}", SinkSpec(sink, self._type), self._inputs).id)

    def _partitioned(self, partitioning: Partitioning) -> tuple[Input, ...]:
        return tuple(Input(i.upstream, partitioning, i.tag) for i in self._inputs)

    def _shipped(self, partitioning: Partitioning) -> DataStream[T]:
        return DataStream(self._env, self._partitioned(partitioning), self._type)


class DataStreamSink(OperatorSettings):
    """The end of a stream: settings of the sink operator."""

    def __init__(self, env: StreamExecutionEnvironment, operator_id: int) -> None:
        self._env, self._operator_id = env, operator_id

    def _operator(self, method: str) -> Transformation:
        return self._env._transformation(self._operator_id)


def expect_function(method: str, function: Any, base: type[Function]) -> Any:
    """Check for a callable, or an object with the method of ``base`` (its only abstract one)."""
    if isinstance(function, type) and issubclass(function, Function):
        raise wrong(method, f"a {base.__name__} object", function, f"pass an object: {function.__name__}()")
    (name,) = base.__abstractmethods__
    if not hasattr(function, name) and not callable(function):
        raise wrong(method, f"a {base.__name__} or a callable", function, "pass a function, a lambda or an object")
    called = getattr(function, name, function)
    if iscoroutinefunction(called) or isasyncgenfunction(called):
        raise ProgramError(
            f"{method} cannot call an 'async def': it has no event loop",
            where=f"{method}, {calling_line()}",
            found=f"async def {getattr(called, '__qualname__', called)}",
            cure="write a plain function, or an AsyncFunction for AsyncDataStream.unordered_wait(...)",
        )
    return function


def expect_strategy(method: str, strategy: Any) -> None:
    if not isinstance(strategy, WatermarkStrategy):
        raise wrong(method, "a WatermarkStrategy", strategy, "WatermarkStrategy.no_watermarks() if you need none")
