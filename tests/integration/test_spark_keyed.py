"""Keyed streams end to end: rolling aggregations, every kind of state, time to live, rich functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from tests.sources import Pause, ScriptedSource
from tidegate.common import Row, Time, Types, WatermarkStrategy
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

SALES = [("a", 3, "x"), ("b", 7, "y"), ("a", 1, "z"), ("a", 5, "w"), ("b", 7, "v"), ("b", 2, "u")]


def by_key(found: Iterable[Any]) -> dict[Any, list[Any]]:
    """The rest of each record by its first field; the order of a key is the order of its input."""
    result: dict[Any, list[Any]] = {}
    for key, *rest in found:
        result.setdefault(key, []).append(tuple(rest) if len(rest) != 1 else rest[0])
    return result


def sales(env: StreamExecutionEnvironment) -> Any:
    return env.from_collection(SALES).key_by(lambda sale: sale[0], key_type=Types.STRING())


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sum", {"a": [(3, "x"), (4, "x"), (9, "x")], "b": [(7, "y"), (14, "y"), (16, "y")]}),
        ("min", {"a": [(3, "x"), (1, "x"), (1, "x")], "b": [(7, "y"), (7, "y"), (2, "y")]}),
        ("max", {"a": [(3, "x"), (3, "x"), (5, "x")], "b": [(7, "y"), (7, "y"), (7, "y")]}),
        ("min_by", {"a": [(3, "x"), (1, "z"), (1, "z")], "b": [(7, "y"), (7, "y"), (2, "u")]}),
        ("max_by", {"a": [(3, "x"), (3, "x"), (5, "w")], "b": [(7, "y"), (7, "y"), (7, "y")]}),
    ],
)
def test_rolling_aggregation(env: StreamExecutionEnvironment, method: str, expected: dict[str, Any]) -> None:
    assert by_key(getattr(sales(env), method)(1).execute_and_collect()) == expected


def test_reduce_with_a_callable_and_a_function_object(env: StreamExecutionEnvironment) -> None:
    class Join(ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            return value1[0], value1[1] * value2[1], value1[2] + value2[2]

    joined = sales(env).reduce(Join()).map(lambda v: ("object", *v))
    summed = sales(env).reduce(lambda a, b: (a[0], a[1] + b[1], "")).map(lambda v: ("callable", *v))
    found = by_key(joined.union(summed).execute_and_collect())
    assert by_key(found["object"]) == {
        "a": [(3, "x"), (3, "xz"), (15, "xzw")],
        "b": [(7, "y"), (49, "yv"), (98, "yvu")],
    }
    assert by_key(found["callable"])["a"] == [(3, "x"), (4, ""), (9, "")]


def test_aggregations_by_field_name_keep_rows(env: StreamExecutionEnvironment) -> None:
    rows = Types.ROW_NAMED(["city", "n"], [Types.STRING(), Types.INT()])
    stream = env.from_collection([("a", 1), ("a", 5), ("b", 2)], rows).key_by(lambda row: row["city"]).sum("n")
    found = list(stream.execute_and_collect())
    assert all(isinstance(row, Row) for row in found)
    assert by_key((row.city, row.n) for row in found) == {"a": [1, 6], "b": [2]}


def test_batch_mode_emits_the_last_result_of_each_key(env: StreamExecutionEnvironment) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    assert by_key(sales(env).sum(1).execute_and_collect()) == {"a": [(9, "x")], "b": [(16, "y")]}


def test_automatic_mode_with_bounded_sources_is_batch(env: StreamExecutionEnvironment) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    assert by_key(sales(env).max(1).execute_and_collect()) == {"a": [(5, "x")], "b": [(7, "y")]}


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class AllStates(KeyedProcessFunction):
    """Emits what every kind of state holds after each record."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.INT()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.INT()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.INT()))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", max, Types.INT()))
        self.aggregating = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", Average(), Types.TUPLE([Types.INT(), Types.INT()]))
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        _, n, text = value
        before = self.value.value()
        self.value.update(n)
        self.list.add(n)
        self.map.put(text, n)
        self.reducing.add(n)
        self.aggregating.add(n)
        snapshot = before, list(self.list.get()), dict(self.map.items()), self.reducing.get(), self.aggregating.get()
        yield ctx.get_current_key(), snapshot


# Rounds of two records: what a record finds in its state has been through a segment and the local store.
SMALL_ROUNDS = {"tidegate.round.max-records": 2}


@pytest.mark.parametrize("keys", [{}, SMALL_ROUNDS], ids=["one round", "small rounds"])
def test_every_kind_of_state(make_env: Any, keys: dict[str, Any]) -> None:
    found = by_key(sales(make_env(keys)).process(AllStates()).execute_and_collect())
    assert found == {
        "a": [
            (None, [3], {"x": 3}, 3, 3.0),
            (3, [3, 1], {"x": 3, "z": 1}, 3, 2.0),
            (1, [3, 1, 5], {"x": 3, "z": 1, "w": 5}, 5, 3.0),
        ],
        "b": [
            (None, [7], {"y": 7}, 7, 7.0),
            (7, [7, 7], {"y": 7, "v": 7}, 7, 7.0),
            (7, [7, 7, 2], {"y": 7, "v": 7, "u": 2}, 7, 16 / 3),
        ],
    }


class Clearing(KeyedProcessFunction):
    """Counts in all kinds of state; the word 'clear' empties them."""

    def open(self, runtime_context: Any) -> None:
        self.states = [
            runtime_context.get_state(ValueStateDescriptor("v", Types.INT())),
            runtime_context.get_list_state(ListStateDescriptor("l", Types.INT())),
            runtime_context.get_map_state(MapStateDescriptor("m", Types.STRING(), Types.INT())),
            runtime_context.get_reducing_state(ReducingStateDescriptor("r", lambda a, b: a + b, Types.INT())),
        ]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        single, listed, mapped, reduced = self.states
        if value[1] == "clear":
            for state in self.states:
                state.clear()
        else:
            single.update((single.value() or 0) + 1)
            listed.update([*listed.get(), value[1]])
            mapped.put(str(value[1]), value[1])
            mapped.remove("2")
            reduced.add(value[1])
        yield value[0], (single.value(), list(listed.get()), sorted(mapped.keys()), reduced.get())


@pytest.mark.parametrize("keys", [{}, SMALL_ROUNDS], ids=["one round", "small rounds"])
def test_state_is_cleared_for_one_key_only(make_env: Any, keys: dict[str, Any]) -> None:
    records = [("a", 1), ("b", 1), ("a", 2), ("a", "clear"), ("b", 3), ("a", 4)]
    stream = make_env(keys).from_collection(records).key_by(lambda v: v[0]).process(Clearing())
    assert by_key(stream.execute_and_collect()) == {
        "a": [(1, [1], ["1"], 1), (2, [1, 2], ["1"], 3), (None, [], [], None), (1, [4], ["4"], 4)],
        "b": [(1, [1], ["1"], 1), (2, [1, 3], ["1", "3"], 4)],
    }


class CountWithTtl(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("count", Types.INT())
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(400)).build())
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count


def test_state_with_time_to_live_expires(make_env: Any) -> None:
    # The second round starts a second after the first, long after its entries have expired.
    source = ScriptedSource(["a", "a", Pause(1_000), "a"])
    stream = make_env().from_source(source, WatermarkStrategy.no_watermarks(), "words").key_by(lambda v: v)
    assert by_key(stream.process(CountWithTtl()).execute_and_collect()) == {"a": [1, 2, 1]}


# -- functions on a keyed stream that are no process functions


class NumberedMap(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def next(self) -> int:
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        return count

    def map(self, value: Any) -> Any:
        return value[0], self.next()


class FirstTwo(FilterFunction):
    open: Any = NumberedMap.open
    next: Any = NumberedMap.next

    def filter(self, value: Any) -> bool:
        return self.next() <= 2


class RepeatByCount(FlatMapFunction):
    open: Any = NumberedMap.open
    next: Any = NumberedMap.next

    def flat_map(self, value: Any) -> Any:
        return [(value[0], value[1])] * self.next()


def test_map_filter_and_flat_map_use_keyed_state(env: StreamExecutionEnvironment) -> None:
    mapped = sales(env).map(NumberedMap()).map(lambda v: ("map", v))
    filtered = sales(env).filter(FirstTwo()).map(lambda v: ("filter", v[:2]))
    repeated = sales(env).flat_map(RepeatByCount()).map(lambda v: ("flat_map", v))
    found = by_key(mapped.union(filtered, repeated).execute_and_collect())
    assert by_key(found["map"]) == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert by_key(found["filter"]) == {"a": [3, 1], "b": [7, 7]}
    assert by_key(found["flat_map"]) == {"a": [3, 1, 1, 5, 5, 5], "b": [7, 7, 7, 2, 2, 2]}


class OpenAndClose(KeyedProcessFunction):
    """Writes a line into a file for each call of its life cycle."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, text: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{text} {self.subtask}\n")

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.note("open")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield value

    def close(self) -> None:
        self.note("close")


def lifecycle(env: StreamExecutionEnvironment, function: KeyedProcessFunction) -> DataStream:
    return env.from_collection(range(100)).key_by(lambda v: v % 10).process(function)


def test_open_comes_before_the_records_and_close_when_the_job_ends(make_env: Any, tmp_path: Any) -> None:
    path = tmp_path / "calls"
    stream = lifecycle(make_env({"tidegate.round.max-records": 30}), OpenAndClose(str(path)))
    assert sorted(stream.execute_and_collect()) == list(range(100))
    lines = path.read_text().split("\n")[:-1]
    opened, closed = [line for line in lines if line[:4] == "open"], [line for line in lines if line[:5] == "close"]
    assert {"open 0", "open 1"} <= set(opened)
    assert len(opened) <= 4  # one copy for each subtask and worker, however many rounds there were
    assert sorted(closed) == sorted(line.replace("open", "close") for line in opened)
    balance = itertools.accumulate((1 if line[:4] == "open" else -1) for line in lines)
    # No copy is closed that is not open. In the last round one copy may close before another opens
    assert min(balance) >= 0


class Sale(NamedTuple):
    city: str
    amount: int


class ByCity(KeySelector):
    def get_key(self, value: Sale) -> str:
        return value.city


def test_records_of_a_class_of_this_module_travel(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([Sale("a", 1), Sale("b", 2), Sale("a", 3)]).key_by(ByCity()).sum("amount")
    found = list(stream.execute_and_collect())
    assert all(type(sale) is Sale for sale in found)
    assert by_key(found) == {"a": [1, 4], "b": [2]}


@pytest.mark.parametrize("key", [1, "k", 2.5, True, None, b"raw", (1, "a"), Row(1, "x")], ids=repr)
def test_keys_of_all_plain_types(env: StreamExecutionEnvironment, key: Any) -> None:
    stream = env.from_collection([(key, 1), ("other", 10), (key, 2)]).key_by(lambda v: v[0]).sum(1)
    assert sorted(v[1] for v in stream.execute_and_collect()) == [1, 3, 10]


def test_the_order_of_a_key_survives_chunks_and_rounds(make_env: Any) -> None:
    env = make_env({"tidegate.round.max-records": 15_000, "tidegate.chunk.records": 500})
    numbers = env.from_source(NumberSequenceSource(0, 29_999), WatermarkStrategy.no_watermarks(), "n")
    keyed = numbers.set_parallelism(1).key_by(lambda n: n % 11).map(lambda n: (n % 11, n))
    assert by_key(keyed.execute_and_collect()) == {key: list(range(key, 30_000, 11)) for key in range(11)}
