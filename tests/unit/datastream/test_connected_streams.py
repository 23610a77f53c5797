"""Connected streams through the API, on the simulated engine: two inputs, one function, one state."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.programs import configuration_of
from tests.simulation.executor import Simulated
from tests.sources import At, ScriptedSource
from tidegate.base.errors import ArgumentTypeError, JobFailedError, ProgramError, StateAccessError, UserCodeError
from tidegate.common import Configuration, Row, Types
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor

PAID = [("a", 3), ("b", 5), ("a", 4), ("c", 1)]
NAMES = [{"id": "a", "name": "Ann"}, {"id": "b", "name": "Bob"}, {"id": "d", "name": "Dan"}]


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(**{"parallelism.default": 2})


def collect(stream: DataStream) -> list[Any]:
    return list(stream.execute_and_collect())


def timed(env: StreamExecutionEnvironment, *records: tuple[int, Any]) -> DataStream:
    source = ScriptedSource([At(moment, value) for moment, value in records])
    return env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "timed")


class Tell(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return "left", value

    def map2(self, value: Any) -> Any:
        return ("right", value) if value % 2 else None


class Both(KeyedCoProcessFunction):
    """Sums the first input and knows the name of the second; all it knows of a key it tells at the end of time."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(1_000)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.name.update(value["name"])
        ctx.timer_service().register_event_time_timer(1_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.name.value(), self.total.value()


def test_each_input_has_a_function_of_its_own_and_none_is_no_record(env: StreamExecutionEnvironment) -> None:
    found = collect(env.from_collection([1, 2]).connect(env.from_collection([3, 4, 5])).map(Tell()))
    assert sorted(found) == [("left", 1), ("left", 2), ("right", 3), ("right", 5)]


def test_any_number_of_records_from_each_side(env: StreamExecutionEnvironment) -> None:
    class Repeat(CoFlatMapFunction):
        def flat_map1(self, value: int) -> Iterator[int]:
            yield from [value] * value

        def flat_map2(self, value: str) -> list[str] | None:
            return list(value) if value else None

    found = collect(env.from_collection([0, 2]).connect(env.from_collection(["ab", ""])).flat_map(Repeat()))
    assert sorted(map(str, found)) == ["2", "2", "a", "b"]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("chunk", [1, 4096])
def test_the_state_of_a_key_is_one_for_both_inputs(env: StreamExecutionEnvironment, inline: bool, chunk: int) -> None:
    configuration_of(env).set_string("tidegate.functions.inline", str(inline))
    configuration_of(env).set_string("tidegate.chunk.records", str(chunk))
    paid, names = env.from_collection(PAID), env.from_collection(NAMES)
    both = paid.connect(names).key_by(lambda pair: pair[0], lambda name: name["id"], Types.STRING())
    found = collect(both.process(Both()))
    assert sorted(found) == [("a", "Ann", 7), ("b", "Bob", 5), ("c", None, 1), ("d", "Dan", None)]


def test_streams_may_be_keyed_before_they_are_connected(env: StreamExecutionEnvironment) -> None:
    class ById(KeySelector):
        def get_key(self, value: Any) -> Any:
            return value["id"]

    paid = env.from_collection(PAID).key_by(lambda pair: pair[0])
    found = collect(paid.connect(env.from_collection(NAMES).key_by(ById())).process(Both()))
    assert min(found) == ("a", "Ann", 7)


def test_keyed_state_in_a_co_map(env: StreamExecutionEnvironment) -> None:
    class Latest(CoMapFunction):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def _count(self) -> int:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
            return count

        def map1(self, value: Any) -> Any:
            return value[0], self._count()

        map2 = map1

    words = env.from_collection([("a", 1), ("b", 1), ("a", 1)])
    both = words.connect(words).key_by(lambda word: word[0], lambda word: word[0])
    assert sorted(collect(both.map(Latest()))) == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2)]


def test_side_outputs_and_timestamps_of_a_co_process_function(env: StreamExecutionEnvironment) -> None:
    tag = OutputTag("second", Types.LONG())

    class Split(CoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value, ctx.timestamp()

        def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield tag, value

    main = timed(env, (5, "x"), (7, "y")).connect(env.from_collection([1, 2])).process(Split())
    both = main.map(str).union(main.get_side_output(tag).map(str))
    assert sorted(collect(both)) == ["('x', 5)", "('y', 7)", "1", "2"]


def test_time_is_that_of_the_input_that_is_behind(env: StreamExecutionEnvironment) -> None:
    """The second input never gets past 10, so no timer after it fires before the end."""

    class Watch(KeyedCoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(ctx.timestamp())
            yield "seen", value

        def process_element2(self, value: Any, ctx: Any) -> None:
            pass

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield "fired", timestamp, ctx.timer_service().current_watermark() >= timestamp

    env.set_parallelism(1)
    fast = timed(env, *((moment, moment) for moment in range(0, 100, 10)))
    slow = timed(env, (1, 1), (10, 2))
    found = collect(fast.connect(slow).key_by(lambda v: 0, lambda v: 0).process(Watch()))
    fired = [value for value in found if value[0] == "fired"]
    assert fired == [("fired", moment, True) for moment in range(0, 100, 10)]


def test_declared_types_are_those_of_the_results(env: StreamExecutionEnvironment) -> None:
    info = Types.ROW_NAMED(["side", "n"], [Types.STRING(), Types.INT()])
    found = collect(env.from_collection([1]).connect(env.from_collection([2, 3])).map(Tell(), info))
    assert sorted((row.side, row.n) for row in found if isinstance(row, Row)) == [("left", 1), ("right", 3)]


def test_a_stream_connected_to_itself(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1, 3])
    found = collect(numbers.connect(numbers).map(Tell()))
    assert sorted(found) == [("left", 1), ("left", 3), ("right", 1), ("right", 3)]


def test_a_union_may_be_one_side(env: StreamExecutionEnvironment) -> None:
    ones = env.from_collection([1]).union(env.from_collection([7]))
    assert sorted(collect(ones.connect(ones).map(Tell()))) == [("left", 1), ("left", 7), ("right", 1), ("right", 7)]


def test_one_empty_input_holds_nothing_up(env: StreamExecutionEnvironment) -> None:
    empty = env.from_collection([("x", 1)]).filter(lambda value: False)
    both = empty.connect(env.from_collection(NAMES)).key_by(lambda v: v[0], lambda v: v["id"])
    assert len(collect(both.process(Both()))) == len(NAMES)


# -- keyed and not: where records go ----------------------------------------------------------------------------------------


class Where(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.index = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return value, self.index


class CoWhere(Where, CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value, self.index

    def map2(self, value: Any) -> Any:
        return None


def subtasks(found: list[Any]) -> dict[Any, set[int]]:
    places = defaultdict(set)
    for value, index in found:
        places[value % 5].add(index)
    return places


def test_a_union_of_keyed_streams_keeps_the_records_of_a_key_together(env: StreamExecutionEnvironment) -> None:
    first = env.from_collection(list(range(40))).key_by(lambda n: n % 5)
    second = env.from_collection(list(range(40, 80))).key_by(lambda n: n % 5)
    places = subtasks(collect(first.union(second).map(Where())))
    assert all(len(indexes) == 1 for indexes in places.values())
    assert set().union(*places.values()) == {0, 1}


def test_after_a_union_of_keyed_streams_there_is_no_current_key(env: StreamExecutionEnvironment) -> None:
    class Asks(MapFunction):
        def open(self, runtime_context: Any) -> None:
            runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def map(self, value: Any) -> Any:
            return value

    keyed = env.from_collection([1, 2]).key_by(lambda n: n)
    with pytest.raises(JobFailedError) as failed:
        collect(keyed.union(keyed).map(Asks()))
    assert isinstance(failed.value.__cause__, StateAccessError)
    assert "the operator's input is not keyed" in str(failed.value.__cause__)


def test_of_one_keyed_stream_and_one_that_is_not_each_keeps_its_partitioning(env: StreamExecutionEnvironment) -> None:
    keyed = env.from_collection(list(range(40))).key_by(lambda n: n % 5)
    places = subtasks(collect(keyed.connect(env.from_collection([1])).map(CoWhere())))
    assert all(len(indexes) == 1 for indexes in places.values())


def test_a_keyed_stream_is_collected_with_its_keys(env: StreamExecutionEnvironment) -> None:
    found = collect(env.from_collection([1, 2, 3]).key_by(lambda n: n % 2))
    assert sorted(map(tuple, found)) == [(0, 2), (1, 1), (1, 3)]
    assert all(isinstance(row, Row) for row in found)


@pytest.mark.parametrize(
    "key_of",
    [
        lambda n: [n % 2],
        lambda n: {"k": n % 2},
        lambda n: bytearray([n % 2]),
        lambda n: Row(n % 2),
        lambda n: (1, [n % 2]),
    ],
)
def test_keys_that_python_cannot_hash(env: StreamExecutionEnvironment, key_of: Any) -> None:
    class Counts(KeyedCoProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
            assert ctx.get_current_key() == key_of(value)
            assert type(ctx.get_current_key()) is type(key_of(value))
            self.count.update((self.count.value() or 0) + 1)
            yield value % 2, self.count.value()

        process_element2 = process_element1

    numbers = env.from_collection([1, 2, 3])
    found = collect(numbers.connect(numbers).key_by(key_of, key_of).process(Counts()))
    assert sorted(found) == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (1, 4)]


# -- mistakes ---------------------------------------------------------------------------------------------------------------


def test_streams_of_two_environments_are_refused(env: StreamExecutionEnvironment) -> None:
    other = StreamExecutionEnvironment(Configuration())
    with pytest.raises(ProgramError, match="The connected streams belong to different environments"):
        env.from_collection([1]).connect(other.from_collection([1]))


def test_streams_of_two_types_are_not_united(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1], Types.LONG())
    texts = env.from_collection(["a"]).map(str, Types.STRING()).name("texts")
    with pytest.raises(
        ProgramError, match=r"of different types(.|\n)*found: Long of '.*Source.*' and String of 'texts'"
    ) as refused:
        numbers.union(texts)
    assert re.fullmatch(r"union, .*test_connected_streams\.py:\d+", str(refused.value.where))


def test_only_streams_are_connected(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(ArgumentTypeError, match=r"connect takes streams\n  found: list \[1\]"):
        env.from_collection([1]).connect([1])  # type: ignore[call-overload]


@pytest.mark.parametrize("function", [lambda value: value, Where(), Tell, None])
@pytest.mark.parametrize("method", ["map", "flat_map", "process"])
def test_another_function_is_refused(env: StreamExecutionEnvironment, method: str, function: Any) -> None:
    both = env.from_collection([1]).connect(env.from_collection([1]))
    with pytest.raises(ArgumentTypeError, match=rf"{method} of connected streams takes a Co"):
        getattr(both, method)(function)


def test_a_keyed_function_needs_two_keys(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    for both in (numbers.connect(numbers), numbers.connect(numbers.key_by(lambda n: n))):
        with pytest.raises(ArgumentTypeError, match=r"not both keyed takes a CoProcessFunction(.|\n)*call key_by"):
            both.process(Both())


def test_two_declared_types_of_keys_are_refused(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    both = numbers.key_by(lambda n: n, Types.LONG()).connect(numbers.key_by(lambda n: n))
    with pytest.raises(ProgramError, match=r"have different types(.|\n)*found: LONG and pickle"):
        both.map(Tell())


def test_an_error_names_operator_line_and_record(env: StreamExecutionEnvironment) -> None:
    class Fails(Tell):
        def map2(self, value: Any) -> Any:
            return 1 // value

    with pytest.raises(JobFailedError) as failed:
        collect(env.from_collection([1]).connect(env.from_collection([0])).map(Fails()).name("fails"))
    cause = failed.value.__cause__
    assert isinstance(cause, UserCodeError)
    assert "operator 'fails'" in str(cause)
    assert "test_connected_streams.py" in str(cause)
    assert "record 0" in str(cause)
