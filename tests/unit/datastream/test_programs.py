"""Whole programs through the API, on the simulated engine: what users see in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError, UserCodeError
from tidegate.common import Row, Types
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor

ORDERS = [("a", 3, "x"), ("a", 1, "y"), ("b", 5, "p"), ("a", 1, "z"), ("b", 2, "q"), ("a", 0, "q")]
ORDER = Types.ROW_NAMED(["customer", "amount", "tag"], [Types.STRING(), Types.INT(), Types.STRING()])


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(**{"parallelism.default": 2})


def collect(stream: DataStream) -> list[Any]:
    return list(stream.execute_and_collect())


def of(customer: str, rows: list[Row]) -> list[tuple[int, str]]:
    return [(row.amount, row.tag) for row in rows if row.customer == customer]


def test_rolling_sum_of_rows_by_name(env: StreamExecutionEnvironment) -> None:
    rows = collect(env.from_collection(ORDERS, ORDER).key_by(lambda row: row.customer, Types.STRING()).sum("amount"))
    assert of("a", rows) == [(3, "x"), (4, "x"), (5, "x"), (5, "x")]
    assert of("b", rows) == [(5, "p"), (7, "p")]


def test_least_record_of_tuples_by_position(env: StreamExecutionEnvironment) -> None:
    records = collect(env.from_collection(ORDERS).key_by(lambda order: order[0]).min_by(1))
    assert [record for record in records if record[0] == "a"] == [
        ("a", 3, "x"),
        ("a", 1, "y"),
        ("a", 1, "y"),
        ("a", 0, "q"),
    ]


def test_batch_emits_the_last_reduction_only(env: StreamExecutionEnvironment) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    rows = collect(env.from_collection(ORDERS, ORDER).key_by(lambda row: row.customer).sum("amount"))
    assert sorted((row.customer, row.amount) for row in rows) == [("a", 5), ("b", 7)]


def test_names_of_a_declared_row_type_reach_the_next_function(env: StreamExecutionEnvironment) -> None:
    info = Types.ROW_NAMED(["word", "length"], [Types.STRING(), Types.INT()])
    words = env.from_collection(["a", "bbb"]).map(lambda word: Row(word, len(word)), info)
    assert sorted(collect(words.map(lambda row: (row.length, row.word)))) == [(1, "a"), (3, "bbb")]


def test_state_timers_and_side_outputs(env: StreamExecutionEnvironment) -> None:
    big = OutputTag("big", Types.LONG())

    class Total(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

        def process_element(self, value: int, ctx: Any) -> Any:
            self.total.update((self.total.value() or 0) + value)
            ctx.timer_service().register_event_time_timer(100)
            if value > 3:
                yield big, value

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield ctx.get_current_key(), timestamp, self.total.value()

    totals = env.from_collection(range(1, 7)).key_by(lambda value: value % 2, Types.LONG()).process(Total())
    assert sorted(collect(totals)) == [(0, 100, 12), (1, 100, 9)]
    assert sorted(collect(totals.get_side_output(big))) == [4, 5, 6]


def test_union_partitionings_and_a_custom_partitioner(env: StreamExecutionEnvironment) -> None:
    left, right = env.from_collection([1, 2]), env.from_collection([3])
    assert sorted(collect(left.rebalance().union(right.shuffle()).map(lambda value: value * 10))) == [10, 20, 30]
    assert sorted(collect(left.broadcast().map(str))) == ["1", "1", "2", "2"]

    class Where(ProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.subtask = runtime_context.get_index_of_this_subtask()

        def process_element(self, value: int, ctx: Any) -> Any:
            yield value, self.subtask

    spread = left.union(right).partition_custom(lambda key, n: key % n, lambda value: value).process(Where())
    assert sorted(collect(spread)) == [(1, 1), (2, 0), (3, 1)]
    assert {subtask for _, subtask in collect(left.union(right).global_().process(Where()))} == {0}


def test_a_limit_keeps_the_order_of_one_subtask(env: StreamExecutionEnvironment) -> None:
    assert env.from_collection(range(100)).execute_and_collect(limit=5) == [0, 1, 2, 3, 4]


def test_print_as_flink_prints(env: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]) -> None:
    env.from_collection([(1, "a")], Types.ROW([Types.INT(), Types.STRING()])).print().set_parallelism(1)
    env.from_collection([(1, "a")], Types.TUPLE([Types.INT(), Types.STRING()])).print("tuples").set_parallelism(1)
    env.from_collection([(1, "a")]).print().set_parallelism(1)
    env.execute()
    assert sorted(capsys.readouterr().out.splitlines()) == ["(1, 'a')", "+I[1,a]", "tuples> (1,a)"]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_a_function_is_as_it_was_when_its_operator_was_added(
    env: StreamExecutionEnvironment, mode: RuntimeExecutionMode
) -> None:
    """As in PyFlink: of a loop's variable each lambda sees its own value."""
    env.set_runtime_mode(mode)
    stream = env.from_collection([(1, 1), (1, 1)])
    for n in (2, 3):
        stream = stream.map(lambda pair: (pair[0] * n, pair[1]))  # noqa: B023
        stream = stream.filter(lambda pair: pair[0] % n == 0)  # noqa: B023
        stream = stream.key_by(lambda pair: pair[0] + n).reduce(lambda a, b: (a[0], a[1] + b[1] * n))  # noqa: B023
        stream = stream.partition_custom(lambda key, subtasks: (key + n) % subtasks, lambda pair: pair[0] * n)  # noqa: B023
    stream = stream.map(lambda pair: pair)
    n = 1000
    assert collect(stream)[-1] == ((6, 3) if mode is RuntimeExecutionMode.BATCH else (6, 10))


def test_a_sink_function_sees_every_record(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    def write(value: int) -> None:
        (tmp_path / str(value)).touch()

    env.from_collection([7, 8]).add_sink(write)
    env.execute()
    assert (tmp_path / "7").exists()
    assert (tmp_path / "8").exists()


def test_a_failing_function_is_named_with_operator_line_and_record(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([1, 0]).map(lambda value: 1 // value).name("Divide")
    with pytest.raises(JobFailedError, match=r"operator 'Divide', .*test_programs\.py:\d+ in <lambda>") as caught:
        collect(stream)
    assert "ZeroDivisionError" in str(caught.value)
    assert "record 0" in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, UserCodeError), "the message sends the user there"
    assert isinstance(cause.__cause__, ZeroDivisionError)


class SameList(ProcessFunction):
    """Emits one list again and again, and continues changing it."""

    def process_element(self, value: int, ctx: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen: list[int] = []
        self.seen.append(value)
        yield self.seen


@pytest.mark.parametrize("reuse", [False, True])
def test_records_stay_as_emitted_unless_objects_are_reused(env: StreamExecutionEnvironment, reuse: bool) -> None:
    if reuse:
        env.get_config().enable_object_reuse()
    env.set_parallelism(1)
    lists = collect(env.from_collection([1, 2, 3]).process(SameList()))
    assert lists == ([[1, 2, 3]] * 3 if reuse else [[1], [1, 2], [1, 2, 3]])


class EndsBadly(DiscardingSink):
    def job_ended(self, failure: Exception | None) -> None:
        raise ValueError("the hook of a user fails")


def test_collected_records_end_though_the_hook_of_another_sink_fails(
    env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = env.from_collection([1, 2, 3], Types.LONG())
    for _ in range(3):
        numbers.key_by(lambda number: number).map(lambda number: number).sink_to(EndsBadly())
    assert sorted(collect(numbers.rebalance().map(lambda number: number))) == [1, 2, 3]
    assert "job_ended" in caplog.text
