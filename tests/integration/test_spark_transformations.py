"""Operators without state, partitioners, side outputs and the shape of the graph, end to end."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest

from tidegate.common import Row, Types
from tidegate.datastream import (
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    StreamExecutionEnvironment,
)


class AddOne(MapFunction):
    def map(self, value: int) -> int:
        return value + 1


class Twice(FlatMapFunction):
    def flat_map(self, value: int) -> Any:
        yield value
        yield -value


class IsOdd(FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 1


class WithSubtask(MapFunction):
    """A value with the subtask that saw it."""

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return self.subtask, value


def test_map_flat_map_filter_with_callables(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([1, 2, 3, 4]).map(lambda v: v * 10).flat_map(lambda v: [v] * (v // 10))
    found = list(stream.filter(lambda v: v != 20).execute_and_collect())
    assert found == [10, 30, 30, 30, 40, 40, 40, 40]


def test_map_flat_map_filter_with_function_objects(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([1, 2, 3]).map(AddOne()).flat_map(Twice()).filter(IsOdd())
    assert list(stream.execute_and_collect()) == [3, -3]


def test_a_row_type_makes_rows(env: StreamExecutionEnvironment) -> None:
    row_type = Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.INT()])
    found = list(env.from_collection([("a", 1)], row_type).map(lambda r: r, row_type).execute_and_collect())
    assert found == [Row(name="a", n=1)]
    assert found[0].name == "a"


def test_project_keeps_fields_in_the_asked_order(env: StreamExecutionEnvironment) -> None:
    numbers = Types.TUPLE([Types.INT(), Types.STRING(), Types.INT()])
    found = list(env.from_collection([(1, "a", 2)], numbers).project(2, 0).execute_and_collect())
    assert found == [(2, 1)]


def test_union_keeps_every_record_of_every_stream(env: StreamExecutionEnvironment) -> None:
    a, b = env.from_collection([1, 2, 3]), env.from_collection([3, 4])
    found = list(a.union(b, a.map(AddOne())).execute_and_collect())
    assert Counter(found) == Counter([1, 2, 3, 3, 4, 2, 3, 4])


class SplitBySign(ProcessFunction):
    negative = OutputTag("negative", Types.INT())
    zero = OutputTag("zero", Types.STRING())

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        if value < 0:
            yield self.negative, value
        elif value == 0:
            yield self.zero, "nothing"
        else:
            yield value


def test_side_outputs_reach_their_streams_only(env: StreamExecutionEnvironment) -> None:
    split = env.from_collection([3, -1, 0, 2, -5]).process(SplitBySign())
    main = split.map(lambda v: ("main", v))
    negative = split.get_side_output(SplitBySign.negative).map(lambda v: ("negative", v))
    zero = split.get_side_output(SplitBySign.zero).map(lambda v: ("zero", v))
    found = list(main.union(negative, zero).execute_and_collect())
    assert sorted(found) == [
        ("main", 2),
        ("main", 3),
        ("negative", -5),
        ("negative", -1),
        ("zero", "nothing"),
    ]


def test_a_side_output_nobody_reads_is_dropped(env: StreamExecutionEnvironment) -> None:
    assert list(env.from_collection([1, -1, 0]).process(SplitBySign()).execute_and_collect()) == [1]


# -- partitioners: who gets what


def placed(stream: DataStream, parallelism: int = 2) -> list[tuple[int, Any]]:
    return list(stream.map(WithSubtask()).set_parallelism(parallelism).execute_and_collect())


def test_rebalance_deals_out_evenly(env: StreamExecutionEnvironment) -> None:
    found = placed(env.from_collection(range(30)).rebalance(), 3)
    assert Counter(subtask for subtask, _ in found) == {0: 10, 1: 10, 2: 10}
    assert sorted(value for _, value in found) == list(range(30))


def test_rescale_stays_with_the_near_subtasks(env: StreamExecutionEnvironment) -> None:
    upstream = env.from_collection(range(40)).rebalance().map(WithSubtask()).set_parallelism(2)
    found = placed(upstream.rescale(), 4)
    assert Counter((source, target) for target, (source, _) in found) == {
        (0, 0): 10,
        (0, 1): 10,
        (1, 2): 10,
        (1, 3): 10,
    }


def test_shuffle_loses_and_doubles_nothing(env: StreamExecutionEnvironment) -> None:
    found = placed(env.from_collection(range(200)).shuffle())
    assert sorted(value for _, value in found) == list(range(200))
    assert {subtask for subtask, _ in found} == {0, 1}


def test_broadcast_gives_everything_to_everybody(env: StreamExecutionEnvironment) -> None:
    found = placed(env.from_collection([1, 2, 3]).broadcast(), 3)
    assert sorted(found) == [(subtask, value) for subtask in range(3) for value in (1, 2, 3)]


def test_global_gives_everything_to_the_first(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([1, 2, 3]).rebalance().map(AddOne()).set_parallelism(2)
    assert sorted(placed(stream.global_())) == [(0, 2), (0, 3), (0, 4)]


def test_forward_stays_in_the_subtask(env: StreamExecutionEnvironment) -> None:
    upstream = env.from_collection(range(20)).rebalance().map(WithSubtask()).set_parallelism(2).disable_chaining()
    found = placed(upstream.forward())
    assert len(found) == 20
    assert all(here == there for here, (there, _) in found)


class ByLastDigit(Partitioner):
    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


class Hundreds(KeySelector):
    def get_key(self, value: int) -> int:
        return value // 100


def test_custom_partitioner_decides(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([0, 100, 200, 300, 401]).partition_custom(ByLastDigit(), Hundreds())
    assert sorted(placed(stream, 3)) == [(0, 0), (0, 300), (1, 100), (1, 401), (2, 200)]


def test_custom_partitioner_as_functions(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([5, 6, 7]).partition_custom(lambda key, n: n - 1, lambda value: value)
    assert sorted(placed(stream)) == [(1, 5), (1, 6), (1, 7)]


def test_key_by_brings_equal_keys_together(env: StreamExecutionEnvironment) -> None:
    found = placed(env.from_collection(range(100)).key_by(lambda v: v % 7), 3)
    places: dict[int, set[int]] = {}
    for subtask, value in found:
        places.setdefault(value % 7, set()).add(subtask)
    assert all(len(subtasks) == 1 for subtasks in places.values())
    assert len(found) == 100


# -- the shape of the graph


def test_an_edge_that_skips_levels_is_relayed(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection(range(50))
    once = numbers.rebalance().map(lambda v: ("once", v))
    twice = once.rebalance().map(lambda v: ("twice", v[1]))
    thrice = twice.rebalance().map(lambda v: ("thrice", v[1]))
    found = list(
        numbers.map(lambda v: ("never", v)).union(once, thrice).rebalance().map(lambda v: v).execute_and_collect()
    )
    assert Counter(found) == Counter((name, v) for name in ("never", "once", "thrice") for v in range(50))


def test_a_diamond_computes_its_top_once(env: StreamExecutionEnvironment) -> None:
    top = env.from_collection(range(10)).rebalance().map(lambda v: (v, uuid.uuid4().hex))
    left = top.rebalance().map(lambda v: ("left", *v))
    right = top.rebalance().map(lambda v: ("right", *v))
    found = list(left.union(right).execute_and_collect())
    assert {v[1:] for v in found if v[0] == "left"} == {v[1:] for v in found if v[0] == "right"}
    assert len(found) == 20


@pytest.mark.parametrize("control", ["chained", "disable_chaining", "start_new_chain", "environment"])
def test_chaining_changes_stages_and_not_results(env: StreamExecutionEnvironment, control: str) -> None:
    if control == "environment":
        env.disable_operator_chaining()
    middle = env.from_collection(range(20)).rebalance().map(AddOne()).set_parallelism(2)
    last = middle.map(lambda v: v * 2)
    if control in ("disable_chaining", "start_new_chain"):
        getattr(last, control)()
    assert sorted(last.execute_and_collect()) == [2 * (v + 1) for v in range(20)]


def test_names_uids_and_parallelism_reach_the_functions(env: StreamExecutionEnvironment) -> None:
    class Introduce(MapFunction):
        def open(self, runtime_context: Any) -> None:
            self.text = (
                runtime_context.get_task_name(),
                runtime_context.get_task_name_with_subtasks(),
                runtime_context.get_number_of_parallel_subtasks(),
                runtime_context.get_max_number_of_parallel_subtasks(),
            )

        def map(self, value: int) -> Any:
            return self.text

    stream = env.from_collection(range(9)).rebalance().map(Introduce()).name("Greeter").uid("greeter")
    found = set(stream.set_parallelism(3).set_max_parallelism(64).execute_and_collect())
    assert found == {("Greeter", f"Greeter ({n}/3)", 3, 64) for n in (1, 2, 3)}


def test_job_parameters_reach_the_functions(env: StreamExecutionEnvironment) -> None:
    class ReadParameters(MapFunction):
        def open(self, runtime_context: Any) -> None:
            self.found = runtime_context.get_job_parameter("city", "?"), runtime_context.get_job_parameter("x", "none")

        def map(self, value: int) -> Any:
            return self.found

    env.get_config().set_global_job_parameters({"city": "Rome"})
    assert list(env.from_collection([1]).map(ReadParameters()).execute_and_collect()) == [("Rome", "none")]


def test_a_thousand_chained_maps(make_env: Any) -> None:
    stream = make_env(parallelism=1).from_collection([1, 2, 3])
    for number in range(1_000):
        stream = stream.map(lambda v, number=number: (v if isinstance(v, int) else v[0], number))
    assert list(stream.execute_and_collect()) == [(1, 999), (2, 999), (3, 999)]
