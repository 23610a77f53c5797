"""What DataStream methods put into the program; nothing runs."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from tests.programs import transformations_of
from tidegate.base.errors import ArgumentTypeError, ProgramError, StateAccessError
from tidegate.common import Row, RowKind, Types, WatermarkStrategy
from tidegate.connectors.functions.function_sink import FunctionSink
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink
from tidegate.connectors.values.sinks import PrintSink
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    KeySelector,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    RuntimeContext,
    SinkFunction,
    SlotSharingGroup,
    StreamExecutionEnvironment,
    TwoPhaseCommitSinkFunction,
)
from tidegate.datastream.connectors.base import StreamTransformer, SupportsPreprocessing
from tidegate.graph.transformation import ChainingStrategy, Input, Ship, Transformation
from tidegate.operators.contracts.specs import FilterSpec, FlatMapSpec, MapSpec, ProcessSpec, SinkSpec, TimestampsSpec


def last(env: StreamExecutionEnvironment) -> Transformation:
    return transformations_of(env)[-1]


def spec(env: StreamExecutionEnvironment) -> Any:
    return last(env).spec


class AddOne(MapFunction):
    def map(self, value: int) -> int:
        return value + 1


class Pass(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value


class KeyedPass(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield value


@pytest.fixture
def numbers(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([1, 2, 3], Types.LONG())


def test_operators_become_frozen_transformations(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    add = AddOne()
    numbers.map(add, Types.LONG()).flat_map(lambda v: [v, v]).filter(lambda v: v > 1).process(Pass(), Types.LONG())
    source, mapped, flat, kept, processed = transformations_of(env)
    assert isinstance(mapped.spec, MapSpec)
    assert mapped.spec.function is add
    assert isinstance(flat.spec, FlatMapSpec)
    assert isinstance(kept.spec, FilterSpec)
    assert isinstance(processed.spec, ProcessSpec)
    assert [t.name for t in transformations_of(env)] == ["Collection Source", "Map", "FlatMap", "Filter", "PROCESS"]
    assert mapped.inputs == (Input(source.id),)
    assert processed.output_type == Types.LONG()
    assert source.parallelism == source.max_parallelism == 1


def test_types_of_streams(numbers: DataStream) -> None:
    assert numbers.get_type() == Types.LONG()
    assert numbers.filter(bool).get_type() == Types.LONG()
    assert numbers.map(str).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert numbers.map(str, Types.STRING()).union(numbers.map(str)).get_type() == Types.STRING()


@pytest.mark.parametrize(
    ("method", "ship"),
    [
        ("rebalance", Ship.REBALANCE),
        ("rescale", Ship.RESCALE),
        ("shuffle", Ship.SHUFFLE),
        ("forward", Ship.FORWARD),
        ("broadcast", Ship.BROADCAST),
        ("global_", Ship.GLOBAL),
    ],
)
def test_partitionings_only_change_the_edge(
    env: StreamExecutionEnvironment, numbers: DataStream, method: str, ship: Ship
) -> None:
    getattr(numbers, method)().map(str)
    (edge,) = last(env).inputs
    assert edge.partitioning is not None
    assert edge.partitioning.ship is ship
    assert len(transformations_of(env)) == 2


def test_union_keeps_each_inputs_partitioning(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    other = env.from_collection([4])
    numbers.rebalance().union(other, numbers).map(str)
    ships = [i.partitioning and i.partitioning.ship for i in last(env).inputs]
    assert ships == [Ship.REBALANCE, None, None]
    assert [i.upstream for i in last(env).inputs] == [1, 2, 1]


def test_a_partitioning_of_a_union_is_one_of_each_input(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.union(env.from_collection([4])).key_by(lambda v: v % 2).map(str)
    assert [i.partitioning.ship for i in last(env).inputs if i.partitioning] == [Ship.HASH, Ship.HASH]


def test_custom_partitioning_with_objects_and_lambdas(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    class Modulo(Partitioner):
        def partition(self, key: int, num_partitions: int) -> int:
            return key % num_partitions

    class Itself(KeySelector):
        def get_key(self, value: int) -> int:
            return value

    for partitioner, selector in ((Modulo(), Itself()), (lambda key, n: key % n, lambda value: value)):
        numbers.partition_custom(partitioner, selector).map(str)
        (edge,) = last(env).inputs
        assert edge.partitioning is not None
        assert edge.partitioning.ship is Ship.CUSTOM
        assert edge.partitioning.partitioner is not None and edge.partitioning.selector is not None
        assert edge.partitioning.partitioner(edge.partitioning.selector(7), 4) == 3


def test_a_selector_with_open_is_opened_once_in_every_process(env: StreamExecutionEnvironment) -> None:
    class Counted(KeySelector):
        opened = 0

        def open(self, runtime_context: RuntimeContext) -> None:
            self.opened += 1

        def get_key(self, value: int) -> int:
            return self.opened

    env.from_collection([1]).key_by(Counted()).map(str)
    (edge,) = last(env).inputs
    assert edge.partitioning is not None and edge.partitioning.selector is not None
    selector = edge.partitioning.selector
    assert [selector(0), selector(0)] == [1, 1]
    assert cloudpickle.loads(cloudpickle.dumps(selector))(0) == 2


def test_a_selector_cannot_ask_for_state(env: StreamExecutionEnvironment) -> None:
    class Asks(KeySelector):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_index_of_this_subtask()

        def get_key(self, value: int) -> int:
            return value

    env.from_collection([1]).key_by(Asks()).map(str)
    (edge,) = last(env).inputs
    assert edge.partitioning is not None and edge.partitioning.selector is not None
    with pytest.raises(StateAccessError, match="has no runtime context"):
        edge.partitioning.selector(1)


def test_side_outputs_are_edges_with_a_tag(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    late = OutputTag("late", Types.STRING())
    processed = numbers.process(Pass())
    side = processed.get_side_output(late)
    assert side.get_type() == Types.STRING()
    side.rebalance().map(str)
    (edge,) = last(env).inputs
    assert (edge.upstream, edge.tag) == (2, "late")
    assert edge.partitioning is not None


def test_timestamps(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    assert numbers.assign_timestamps_and_watermarks(strategy).get_type() == Types.LONG()
    assert spec(env) == TimestampsSpec(strategy)


def test_project(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([("a", 1, 2.0)], Types.TUPLE([Types.STRING(), Types.INT(), Types.DOUBLE()]))
    assert stream.project(2, 0).get_type() == Types.TUPLE([Types.DOUBLE(), Types.STRING()])
    assert spec(env).function(("a", 1, 2.0)) == (2.0, "a")
    with pytest.raises(ProgramError, match="project names a position that the tuple does not have"):
        stream.project(3)
    with pytest.raises(ProgramError, match="A stream without a tuple type cannot be projected"):
        stream.map(str).project(0)


# -- sinks


def test_print_collect_and_functions_become_sinks(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    class Writes(SinkFunction):
        def invoke(self, value: Any, context: Any) -> None: ...

    class Transactions(TwoPhaseCommitSinkFunction):
        def begin_transaction(self) -> Any: ...
        def invoke(self, transaction: Any, value: Any, context: Any) -> None: ...
        def pre_commit(self, transaction: Any) -> None: ...
        def commit(self, transaction: Any) -> None: ...
        def abort(self, transaction: Any) -> None: ...

    numbers.print("out").name("Show").uid("show")
    assert isinstance(spec(env).sink, PrintSink)
    assert (spec(env).sink.identifier, last(env).name, last(env).uid) == ("out", "Show", "show")
    numbers.add_sink(Writes())
    assert isinstance(spec(env).sink, FunctionSink)
    numbers.add_sink(print)
    assert isinstance(spec(env).sink, FunctionSink)
    numbers.add_sink(Transactions())
    assert isinstance(spec(env).sink, TwoPhaseCommitSink)
    numbers.sink_to(PrintSink())
    assert isinstance(last(env).spec, SinkSpec)


def test_print_formats_rows_and_tuples_of_known_type_as_flink_does(env: StreamExecutionEnvironment) -> None:
    env.from_collection([(1, "a")], Types.TUPLE([Types.INT(), Types.STRING()])).print()
    formats = transformations_of(env)[1].spec
    assert isinstance(formats, MapSpec)
    assert formats.callables[0]((1, "a")) == "(1,a)"
    env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()])).print()
    formats = transformations_of(env)[4].spec
    assert isinstance(formats, MapSpec)
    assert formats.callables[0](Row.of_kind(RowKind.DELETE, 1, "a")) == "-D[1,a]"


# -- rows


def test_a_row_type_names_the_fields_of_what_functions_return(env: StreamExecutionEnvironment) -> None:
    info = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.INT()])
    expected = Row(word="a", n=1)

    class Emits(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield Row("a", 1)
            yield OutputTag("side"), ("a", 1)

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield "a", 1

    stream = env.from_collection([("a", 1), {"n": 1, "word": "a"}], info)
    assert spec(env).source.values == [expected, expected]
    stream.map(lambda value: ("a", 1), info)
    assert spec(env).function.map(0) == expected
    stream.flat_map(lambda value: [Row("a", 1)], info)
    assert list(spec(env).function.flat_map(0)) == [expected]
    stream.key_by(lambda row: row.word).process(Emits(), info)
    function = cloudpickle.loads(cloudpickle.dumps(spec(env).function))
    main, side = function.process_element(0, None)
    assert main == expected
    assert side == (OutputTag("side"), ("a", 1))
    assert list(function.on_timer(0, None)) == [expected]
    stream.key_by(lambda row: row.word).reduce(lambda a, b: Row(a.word, a.n + b.n))
    assert spec(env).function.reduce(expected, expected) == Row(word="a", n=2)


def test_the_wrapper_passes_the_life_cycle_on(env: StreamExecutionEnvironment) -> None:
    calls: list[Any] = []

    class Watched(MapFunction):
        def open(self, runtime_context: Any) -> None:
            calls.append(("open", runtime_context))

        def close(self) -> None:
            calls.append("close")

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            calls.append(("complete", checkpoint_id))

        def map(self, value: Any) -> Any:
            return (value,)

    env.from_collection([1]).map(Watched(), Types.ROW([Types.INT()]))
    function = spec(env).function
    function.open("context")
    function.notify_checkpoint_complete(3)
    function.notify_checkpoint_aborted(4)
    function.close()
    assert calls == [("open", "context"), ("complete", 3), "close"]


def test_a_side_output_with_a_row_type_is_named_too(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    tag = OutputTag("side", Types.ROW_NAMED(["a"], [Types.INT()]))
    numbers.process(Pass()).get_side_output(tag)
    assert spec(env).function.map((1,)) == Row(a=1)
    assert last(env).inputs == (Input(2, tag="side"),)


# -- settings


def test_settings_replace_the_frozen_entry(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    before = numbers.map(str)
    entry = last(env)
    same = before.name("Texts").uid("texts").set_parallelism(3).set_max_parallelism(16).start_new_chain()
    same.set_buffer_timeout(5).slot_sharing_group("heavy").set_description("numbers as texts")
    assert same is before
    changed = last(env)
    assert entry.uid is None
    assert (changed.name, changed.uid, changed.parallelism, changed.max_parallelism) == ("Texts", "texts", 3, 16)
    assert (changed.chaining, changed.buffer_timeout_ms) == (ChainingStrategy.HEAD, 5)
    assert (changed.slot_sharing_group, changed.description) == ("heavy", "numbers as texts")
    before.disable_chaining().set_buffer_timeout(-1).set_uid_hash("AB" * 16)
    before.slot_sharing_group(SlotSharingGroup.builder("light").build())
    assert (last(env).chaining, last(env).buffer_timeout_ms) == (ChainingStrategy.NEVER, None)
    assert (last(env).uid_hash, last(env).slot_sharing_group) == ("ab" * 16, "light")
    assert before.get_name() == "Texts"
    assert before.get_execution_environment() is env
    assert before.get_execution_config() == env.get_config()


def test_a_collection_source_and_forced_operators_stay_at_one(numbers: DataStream) -> None:
    with pytest.raises(ProgramError, match="parallelism 2, maximum 1"):
        numbers.set_parallelism(2)
    with pytest.raises(ProgramError, match="parallelism 2, maximum 1"):
        numbers.map(str).force_non_parallel().set_parallelism(2)


@pytest.mark.parametrize("method", ["uid", "name"])
def test_settings_belong_to_operators(numbers: DataStream, method: str) -> None:
    for stream in (numbers.rebalance(), numbers.union(numbers), numbers.get_side_output(OutputTag("x"))):
        with pytest.raises(
            ProgramError, match=rf"{method}\(\) is called on a stream that is not an operator\n  found: a union"
        ):
            getattr(stream, method)("x")


# -- wrong arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.map(3), r"map takes a MapFunction or a callable\n  found: int 3"),
        (
            lambda s: s.map(AddOne),
            r"map takes a MapFunction object\n  found: .*AddOne.*\n  cure: pass an object: AddOne\(\)",
        ),
        (lambda s: s.flat_map("x"), "flat_map takes a FlatMapFunction or a callable"),
        (lambda s: s.filter(None), "filter takes a FilterFunction or a callable"),
        (lambda s: s.map(str, Types.STRING), "map takes type information, a class or None"),
        (lambda s: s.process(lambda v: v), "process takes a ProcessFunction object"),
        (lambda s: s.process(Pass), "process takes a ProcessFunction object"),
        (lambda s: s.process(KeyedPass()), r"a ProcessFunction\n  found: .*\n  cure: call key_by\(...\) first"),
        (lambda s: s.key_by(5), "key_by takes a KeySelector or a callable"),
        (lambda s: s.key_by(str, "str"), "key_by takes type information, a class or None"),
        (lambda s: s.partition_custom(5, str), "partition_custom takes a Partitioner or a callable"),
        (lambda s: s.union(5), "union takes streams"),
        (lambda s: s.sink_to(print), "sink_to takes a Sink"),
        (lambda s: s.add_sink(5), "add_sink takes a SinkFunction object or a callable"),
        (lambda s: s.get_side_output("late"), "get_side_output takes an OutputTag"),
        (lambda s: s.assign_timestamps_and_watermarks(None), "takes a WatermarkStrategy"),
        (lambda s: s.uid(""), "uid takes a non-empty text"),
        (lambda s: s.set_parallelism("2"), "set_parallelism takes a whole number"),
        (lambda s: s.set_parallelism(True), "set_parallelism takes a whole number"),
        (lambda s: s.set_uid_hash("xyz"), "set_uid_hash takes 32 hexadecimal digits"),
        (lambda s: s.execute_and_collect(limit="3"), "execute_and_collect takes a whole number"),
        (lambda s: s.key_by(str).process(Pass()), "process of a keyed stream takes a KeyedProcessFunction object"),
        (lambda s: s.key_by(str).reduce(5), "reduce takes a ReduceFunction or a callable"),
        (lambda s: s.key_by(str).sum(1.5), "sum takes a position or the name of a field"),
    ],
)
def test_wrong_argument_types(numbers: DataStream, call: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        call(numbers)


def test_wrong_values(numbers: DataStream) -> None:
    with pytest.raises(ProgramError, match="set_parallelism takes at least 1"):
        numbers.map(str).set_parallelism(0)
    with pytest.raises(ProgramError, match="exceeds its maximum parallelism"):
        numbers.map(str).set_max_parallelism(40_000)
    with pytest.raises(ProgramError, match="set_buffer_timeout takes at least -1"):
        numbers.map(str).set_buffer_timeout(-2)
    with pytest.raises(ProgramError, match="limit of execute_and_collect is less than 1"):
        numbers.execute_and_collect(limit=0)
    with pytest.raises(ProgramError, match="belong to different environments"):
        numbers.union(StreamExecutionEnvironment().from_collection([1]))


# -- keyed streams


def test_a_keyed_stream_is_a_partitioning(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    keyed = numbers.key_by(lambda v: v % 2, Types.LONG())
    assert isinstance(keyed, KeyedStream)
    assert len(transformations_of(env)) == 1
    keyed.process(KeyedPass())
    (edge,) = last(env).inputs
    assert edge.partitioning is not None and edge.partitioning.selector is not None
    assert (edge.partitioning.ship, edge.partitioning.key_type) == (Ship.HASH, Types.LONG())
    assert edge.partitioning.selector(5) == 1
    assert last(env).name == "KEYED PROCESS"


def test_a_second_key_replaces_the_first_and_after_a_union_none_counts(
    env: StreamExecutionEnvironment, numbers: DataStream
) -> None:
    numbers.key_by(lambda v: "first").key_by(lambda v: "second").map(str)
    (edge,) = last(env).inputs
    assert edge.partitioning is not None and edge.partitioning.selector is not None
    assert edge.partitioning.selector(1) == "second"
    numbers.key_by(str).union(numbers.key_by(str)).map(str)
    united = [i.partitioning for i in last(env).inputs]
    assert [(p.ship, p.is_keyed) for p in united if p is not None] == [(Ship.HASH, False)] * 2


@pytest.mark.parametrize("method", ["rebalance", "shuffle", "forward", "broadcast", "rescale"])
def test_the_partitioning_of_a_keyed_stream_stays(numbers: DataStream, method: str) -> None:
    with pytest.raises(ProgramError, match="A keyed stream cannot be partitioned in another way"):
        getattr(numbers.key_by(str), method)()


@pytest.mark.parametrize(
    ("method", "arguments"), [("uid", ("x",)), ("name", ("x",)), ("set_parallelism", (1,)), ("get_name", ())]
)
def test_a_keyed_stream_is_no_operator(numbers: DataStream, method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ProgramError, match=rf"{method}\(\) is called on key_by\(\), which is not an operator"):
        getattr(numbers.key_by(str), method)(*arguments)


class Doubling(PrintSink, SupportsPreprocessing):
    def get_transformer(self) -> StreamTransformer:
        class Double(StreamTransformer):
            def apply(self, ds: DataStream) -> DataStream:
                return ds.map(lambda value: value * 2).name("Double")

        return Double()


def test_a_sink_with_steps_of_its_own_gets_them(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.sink_to(Doubling())
    assert [t.name for t in transformations_of(env)] == ["Collection Source", "Double", "Sink: Writer"]
    assert last(env).inputs[0].upstream == transformations_of(env)[1].id
