"""The harness: every kind of function, by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, ProgramError, RestoreError, StateAccessError, TidegateError
from tidegate.common import Time, Types
from tidegate.datastream import (
    AggregateFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SinkFunction,
    TwoPhaseCommitSinkFunction,
)
from tidegate.datastream.functions import CoGroupFunction, JoinFunction, ProcessAllWindowFunction, ProcessJoinFunction
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.testing import Fired, FunctionHarness, Record, Timer, harness, pipeline_harness
from tidegate.testing.sink_run import Crash

LATE = OutputTag("late", Types.STRING())
TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))


def first(value: Any) -> Any:
    return value[0]


class Timeout(KeyedProcessFunction):
    """Counts the records of a key, until 100 ms after the first."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if ctx.timestamp() is not None and ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield LATE, value[0]
            return
        if self.count.value() is None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)
            ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 500)
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.count.value() or 0, timestamp
        self.count.clear()


def test_timer_in_ten_lines() -> None:
    with harness(Timeout(), key=first) as h:
        h.process_element(("ada", 1), timestamp=10)
        h.process_element(("ada", 2), timestamp=20)
        assert h.state("count", "ada") == 2
        h.process_watermark(110)
        assert h.get_output() == [("ada", 2, 110)]


def test_everything_of_a_keyed_function_can_be_looked_at(harness: Callable[..., FunctionHarness]) -> None:
    h = harness(Timeout(), key=first)
    assert h.processing_time == 0
    h.process_element(("ada", 1), timestamp=10)
    h.process_element(("bob", 7), timestamp=15)
    assert (h.state("count", "ada"), h.state("seen", "bob"), h.state("seen", "eve")) == (1, [7], [])
    assert h.event_time_timers() == [Timer(110, "ada"), Timer(115, "bob")]
    assert h.processing_time_timers("bob") == [Timer(500, "bob")]
    h.process_watermark(112)
    assert (h.current_watermark, h.num_event_time_timers()) == (112, 1)
    assert h.take_records() == [Record(("ada", 1, 110), 110)]
    assert h.get_output() == []
    h.process_element(("ada", 3), timestamp=40)
    assert (h.get_side_output(LATE), h.take_side_output("late"), h.get_side_output(LATE)) == (["ada"], ["ada"], [])
    h.set_processing_time(500)
    assert sorted(h.take_records()) == [Record(("ada", 0, 500), None), Record(("bob", 1, 500), None)]
    assert h.num_processing_time_timers() == 0
    h.end_input()
    assert h.take_output() == [("bob", 0, 115)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_snapshot_restores_at_another_parallelism(backend: str, before: int, after: int) -> None:
    keys, settings = "abcdefghij", {"state.backend.type": backend}
    with harness(Timeout(), key=first, parallelism=before, configuration=settings) as h:
        h.process_elements([(key, n) for n, key in enumerate(keys)], timestamp=lambda value: value[1])
        h.process_watermark(50)
        h.advance_processing_time(20)
        snapshot = h.snapshot()
        h.process_element(("a", 99), timestamp=60)
        assert h.state("count", "a") == 2
    with harness(Timeout(), key=first, parallelism=after, configuration=settings, restore=snapshot) as h:
        assert (h.current_watermark, h.processing_time) == (50, 20)
        assert [h.state("count", key) for key in keys] == [1] * 10
        assert h.event_time_timers() == [Timer(100 + n, key) for n, key in enumerate(keys)]
        h.process_watermark(1_000)
        assert sorted(h.get_output()) == [(key, 1, 100 + n) for n, key in enumerate(keys)]


def test_restored_state_of_another_type_is_refused() -> None:
    class Other(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))

        def process_element(self, value: Any, ctx: Any) -> None:
            self.count.update("x")

    with harness(Timeout(), key=first) as h:
        h.process_element(("a", 1), timestamp=1)
        snapshot = h.snapshot()
    with pytest.raises(RestoreError, match="'count'"):
        harness(Other(), key=first, restore=snapshot)


def test_restored_state_of_a_function_is_independent_of_fields() -> None:
    """A restore gives a new copy of the function, as a restart does: what was in a field is lost."""

    class Counter(KeyedProcessFunction):
        def __init__(self) -> None:
            self.count = 0

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.count += 1
            yield self.count

    with harness(Counter(), key=first) as h:
        h.process_element(("a", 1))
        snapshot = h.snapshot()
        h.process_element(("a", 2))
        assert h.get_output() == [1, 2]
    with harness(Counter(), key=first, restore=snapshot) as h:
        h.process_element(("a", 2))
        assert h.get_output() == [1]


def test_time_to_live_follows_the_clock_of_the_harness() -> None:
    class Expires(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            descriptor = ValueStateDescriptor("seen", Types.LONG())
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(100)).build())
            self.seen = runtime_context.get_state(descriptor)

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield self.seen.value()
            self.seen.update(value[1])

    with harness(Expires(), key=first) as h:
        h.process_element(("a", 1))
        h.advance_processing_time(50)
        h.process_element(("a", 2))
        h.advance_processing_time(101)
        h.process_element(("a", 3))
        assert h.get_output() == [None, 1, None]


class Remembers(KeyedProcessFunction):
    """Keeps each value for 100 ms in three states, and says with an event-time timer what is left."""

    def __init__(self, read_renews: bool) -> None:
        self.read_renews = read_renews

    def open(self, runtime_context: Any) -> None:
        life = StateTtlConfig.new_builder(Time.milliseconds(100))
        if self.read_renews:
            life = life.update_ttl_on_read_and_write()
        value, items = ValueStateDescriptor("value", Types.LONG()), ListStateDescriptor("items", Types.LONG())
        entries = MapStateDescriptor("entries", Types.STRING(), Types.LONG())
        for descriptor in (value, items, entries):
            descriptor.enable_time_to_live(life.build())
        self.value = runtime_context.get_state(value)
        self.items = runtime_context.get_list_state(items)
        self.entries = runtime_context.get_map_state(entries)

    def left(self) -> Any:
        return self.value.value(), list(self.items.get()), dict(self.entries.items())

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        ctx.timer_service().register_processing_time_timer(500)
        self.value.update(value[1])
        self.items.add(value[1])
        self.entries.put("last", value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.left()


def everything(h: FunctionHarness, key: Any) -> Any:
    return h.state("value", key), h.state("items", key), h.state("entries", key)


GONE: tuple[None, list[int], dict[str, int]] = (None, [], {})


def test_expired_state_is_not_shown() -> None:
    with harness(Remembers(read_renews=False), key=first) as h:
        h.process_element(("a", 1), timestamp=1_000)
        h.advance_processing_time(99)
        assert everything(h, "a") == (1, [1], {"last": 1})
        h.advance_processing_time(1)
        assert everything(h, "a") == GONE


@pytest.mark.parametrize("fire", ["process_watermark", "end_input", "advance_processing_time"])
def test_timer_that_fires_without_a_record_sees_no_expired_state(fire: str) -> None:
    with harness(Remembers(read_renews=False), key=first) as h:
        h.process_element(("a", 1), timestamp=1_000)
        h.advance_processing_time(450)
        assert h.get_output() == []
        if fire == "end_input":
            h.end_input()
        else:
            getattr(h, fire)(1_000)
        assert h.get_output() == [GONE]


def test_look_at_a_state_does_not_renew_it() -> None:
    with harness(Remembers(read_renews=True), key=first) as h:
        h.process_element(("a", 1), timestamp=1_000)
        for _ in range(9):
            h.advance_processing_time(10)
            assert everything(h, "a") == (1, [1], {"last": 1})
        h.advance_processing_time(10)
        assert everything(h, "a") == GONE


# -- functions without a key --------------------------------------------------------------------------------------------


class Double(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.factor = int(runtime_context.get_job_parameter("factor", "2"))

    def map(self, value: int) -> int:
        return value * self.factor


class Twice(FlatMapFunction):
    def flat_map(self, value: int) -> list[int]:
        return [value, value]


class Even(FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 0


class Tagging(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value < 0:
            yield OutputTag("negative"), value
        else:
            yield value, ctx.timestamp()


@pytest.mark.parametrize(
    ("function", "expected"),
    [(Double(), [2, 4]), (Twice(), [1, 1, 2, 2]), (Even(), [2]), (Tagging(), [(1, 5), (2, 5)])],
)
def test_stateless_functions(function: Any, expected: list[Any]) -> None:
    with harness(function, parallelism=2) as h:
        h.process_element(1, 5)
        h.process_element(2, 5)
        assert h.get_output() == expected


def test_tag_that_the_function_makes_itself() -> None:
    with harness(Tagging()) as h:
        h.process_element(-1)
        assert (h.get_output(), h.get_side_output("negative")) == ([], [-1])


def test_rich_map_with_keyed_state() -> None:
    class Numbered(MapFunction):
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_reducing_state(
                ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
            )

        def map(self, value: Any) -> Any:
            self.total.add(value[1])
            return value[0], self.total.get()

    with harness(Numbered(), key=first, key_type=Types.STRING()) as h:
        h.process_elements([("a", 1), ("b", 5), ("a", 2)])
        assert h.get_output() == [("a", 1), ("b", 5), ("a", 3)]
        assert h.state("total", "a") == 3


def test_declared_types_convert() -> None:
    with harness(Double(), output_type=Types.STRING()) as h, pytest.raises(TidegateError):
        h.process_element(1)


def test_operator_state_is_divided() -> None:
    class Buffering(ProcessFunction, CheckpointedFunction):
        def initialize_state(self, context: Any) -> None:
            store = context.get_operator_state_store()
            self.kept = store.get_list_state(ListStateDescriptor("kept", Types.LONG()))
            self.waiting = list(self.kept.get())

        def snapshot_state(self, context: Any) -> None:
            self.kept.update(self.waiting)

        def process_element(self, value: Any, ctx: Any) -> None:
            self.waiting.append(value)

    with harness(Buffering()) as h:
        for number in range(5):
            h.process_element(number)
        snapshot = h.snapshot()
        assert h.operator_state("kept") == [0, 1, 2, 3, 4]
    with harness(Buffering(), parallelism=2, restore=snapshot) as h:
        assert sorted(h.operator_state("kept")) == [0, 1, 2, 3, 4]


# -- two inputs -----------------------------------------------------------------------------------------------------------


class Matching(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.PICKLED_BYTE_ARRAY()))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.order.update(value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield "paid", self.order.value(), value

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "unpaid", self.order.value()


def test_keyed_co_process_has_the_time_of_the_slower_input() -> None:
    with harness(Matching(), key=first, key2=lambda payment: payment["order"], parallelism=2) as h:
        h.process_element1((7, "book"), 100)
        h.process_element2({"order": 7, "cents": 5}, 105)
        h.process_watermark1(200)
        assert h.take_output() == [("paid", (7, "book"), {"order": 7, "cents": 5})]
        with pytest.raises(ProgramError, match=r"no watermark yet[\s\S]*none on input 2"):
            _ = h.current_watermark
        h.process_watermark2(109)
        assert (h.current_watermark, h.take_output()) == (109, [])
        h.process_watermark2(110)
        assert h.take_output() == [("unpaid", (7, "book"))]


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield 1, value

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield 2, value


class BothMapped(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return 1, value

    def map2(self, value: Any) -> Any:
        return 2, value


class BothFlat(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[Any]:
        yield 1, value

    def flat_map2(self, value: Any) -> Iterator[Any]:
        yield 2, value


@pytest.mark.parametrize("function", [Both(), BothMapped(), BothFlat()])
@pytest.mark.parametrize("key", [None, lambda value: value])
def test_two_inputs(function: Any, key: Any) -> None:
    with harness(function, key=key) as h:
        h.process_element1("a")
        h.process_element2("b")
        assert h.get_output() == [(1, "a"), (2, "b")]


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Limits(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value[1])
        if self.total.value() > (ctx.get_broadcast_state(RULES).get("limit") or 1 << 30):
            yield value[0], self.total.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


class PlainLimits(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.get_broadcast_state(RULES).get("limit")

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


def test_keyed_broadcast_reaches_every_subtask() -> None:
    with harness(Limits(), key=first, broadcast_state=RULES, parallelism=3) as h:
        h.process_element(("a", 100))
        h.process_broadcast_element(10)
        for key in "abcdef":
            h.process_element((key, 11))
        assert sorted(h.get_output()) == [("a", 111), ("b", 11), ("c", 11), ("d", 11), ("e", 11), ("f", 11)]
        assert (h.broadcast_state("rules"), h.state("total", "a")) == ({"limit": 10}, 111)
        snapshot = h.snapshot()
    with harness(Limits(), key=first, broadcast_state=[RULES], parallelism=5, restore=snapshot) as h:
        h.process_element(("z", 50))
        assert h.get_output() == [("z", 50)]


def test_broadcast_without_key() -> None:
    with harness(PlainLimits(), broadcast_state=RULES) as h:
        h.process_element(1)
        h.process_broadcast_element(10)
        h.process_element(2)
        assert h.get_output() == [(1, None), (2, 10)]


class Pair(JoinFunction):
    def join(self, left: Any, right: Any) -> Any:
        return left[1], right[1]


class Groups(CoGroupFunction):
    def co_group(self, left: Any, right: Any) -> Iterator[Any]:
        yield [value[1] for value in left], [value[1] for value in right]


class Close(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left[1], right[1], ctx.get_timestamp()


def test_joins() -> None:
    with harness(Pair(), key=first, window=TEN) as h:
        h.process_element1(("a", 1), 1)
        h.process_element2(("a", 2), 5)
        h.process_element2(("b", 3), 5)
        assert h.get_output() == []
        h.process_watermark(9)
        assert h.get_output() == [(1, 2)]
    with harness(Groups(), key=first, window=TEN) as h:
        h.process_element1(("a", 1), 1)
        h.process_watermark(9)
        assert h.get_output() == [([1], [])]
    with harness(Close(), key=first, between=(-5, 5)) as h:
        h.process_element1(("a", 1), 100)
        h.process_element2(("a", 2), 104)
        h.process_element2(("a", 3), 106)
        assert h.get_output() == [(1, 2, 104)]


# -- windows --------------------------------------------------------------------------------------------------------------


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, context.window().start, sorted(value[1] for value in elements)


class ListedAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Iterator[Any]:
        yield sorted(elements)


class Average(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Greatest(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


def test_window_function_with_lateness_and_late_records() -> None:
    with harness(Listed(), key=first, window=TEN, allowed_lateness=5, late_tag=LATE) as h:
        h.process_elements([("a", 3), ("a", 8), ("b", 2)], timestamp=lambda value: value[1])
        h.process_watermark(9)
        assert sorted(h.take_output()) == [("a", 0, [3, 8]), ("b", 0, [2])]
        h.process_element(("a", 4), 4)
        assert h.take_output() == [("a", 0, [3, 4, 8])]
        h.process_watermark(20)
        h.process_element(("a", 5), 5)
        assert (h.take_output(), h.get_side_output(LATE)) == ([], [("a", 5)])


def test_session_windows_merge() -> None:
    with harness(Average(), key=first, window=EventTimeSessionWindows.with_gap(Time.milliseconds(10))) as h:
        h.process_element(("a", 1), 0)
        h.process_element(("a", 9), 15)
        snapshot = h.snapshot()
        h.process_element(("a", 2), 8)
        h.process_watermark(100)
        assert h.get_output() == [4.0]
    with harness(
        Average(), key=first, window=EventTimeSessionWindows.with_gap(Time.milliseconds(10)), restore=snapshot
    ) as h:
        h.end_input()
        assert h.get_output() == [1.0, 9.0]


def test_windows_of_processing_time_follow_the_clock() -> None:
    with harness(Listed(), key=first, window=TumblingProcessingTimeWindows.of(Time.milliseconds(10))) as h:
        h.process_element(("a", 1))
        h.advance_processing_time(8)
        assert h.get_output() == []
        h.advance_processing_time(1)
        assert h.get_output() == [("a", 0, [1])]


def test_aggregates_without_a_window_give_every_result() -> None:
    with harness(Average(), key=first) as h:
        h.process_elements([("a", 1), ("a", 3), ("b", 5)])
        assert h.get_output() == [1.0, 2.0, 5.0]
    with harness(Greatest(), key=first) as h:
        h.process_elements([("a", 1), ("a", 3), ("a", 2)])
        assert h.get_output() == [("a", 1), ("a", 3), ("a", 3)]


def test_window_over_all_records() -> None:
    with harness(ListedAll(), window=TEN) as h:
        h.process_element(3, 3)
        h.process_element(1, 4)
        h.process_watermark(9)
        assert h.get_output() == [[1, 3]]


def test_trigger_and_evictor() -> None:
    with harness(CountTrigger.of(2), key=first, window=TEN) as h:
        for number in range(3):
            h.process_element(("a", number), number)
        assert h.get_output() == [Fired("a", TimeWindow(0, 10), [("a", 0), ("a", 1)])]
    with harness(CountEvictor.of(1), key=first, window=TEN) as h:
        h.process_element(("a", 1), 1)
        h.process_element(("a", 2), 2)
        h.process_watermark(9)
        assert [fired.elements for fired in h.get_output()] == [[("a", 2)]]


# -- outside of the job ---------------------------------------------------------------------------------------------------


class Lookup(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value, value * 10]


@pytest.mark.parametrize("ordered", [True, False])
def test_async_function(ordered: bool) -> None:
    with harness(Lookup(), ordered=ordered, capacity=2) as h:
        for number in range(5):
            h.process_element(number, number)
        h.process_watermark(7)
        expected = [value for number in range(5) for value in (number, number * 10)]
        assert (h.get_output() if ordered else sorted(h.get_output())) == (expected if ordered else sorted(expected))


class Lines(TwoPhaseCommitSinkFunction):
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def begin_transaction(self) -> list[str]:
        return []

    def invoke(self, transaction: Any, value: Any, context: Any) -> None:
        transaction.append(str(value))

    def pre_commit(self, transaction: Any) -> None:
        pass

    def commit(self, transaction: Any) -> None:
        (Path(self.directory) / "-".join(transaction)).touch()

    def abort(self, transaction: Any) -> None:
        (Path(self.directory) / f"aborted-{len(transaction)}").touch()


def test_two_phase_commit_sink_commits_when_its_checkpoint_completes(tmp_path: Path) -> None:
    with harness(Lines(str(tmp_path))) as h:
        h.process_element(1)
        h.process_element(2)
        snapshot = h.snapshot()
        assert list(tmp_path.iterdir()) == []
        h.process_element(3)
        h.notify_checkpoint_complete(snapshot)
        assert [path.name for path in tmp_path.iterdir()] == ["1-2"]


def test_two_phase_commit_sink_commits_again_after_a_restore(tmp_path: Path) -> None:
    with harness(Lines(str(tmp_path))) as h:
        h.process_element(1)
        snapshot = h.snapshot()
    assert list(tmp_path.iterdir()) == []
    with harness(Lines(str(tmp_path)), restore=snapshot):
        assert [path.name for path in tmp_path.iterdir()] == ["1"]


class Appending(SinkFunction):
    def __init__(self, path: Path) -> None:
        self.path = path

    def invoke(self, value: Any, context: Any) -> None:
        with self.path.open("a") as file:
            file.write(f"{value}\n")


def test_sink_function_writes_at_once(tmp_path: Path) -> None:
    with harness(Appending(tmp_path / "out")) as h:
        h.process_element("a")
        assert (tmp_path / "out").read_text() == "a\n"


# -- pipelines ------------------------------------------------------------------------------------------------------------


def test_pipeline_of_several_operators() -> None:
    def build(stream: Any) -> Any:
        totals = stream.map(lambda v: (v[0], v[1] * 2)).key_by(first).process(Timeout())
        return {"main": totals.map(lambda v: v[:2]), "late": totals.get_side_output(LATE)}

    with pipeline_harness(build, parallelism=2) as h:
        h.process_element(("a", 1), 10)
        h.process_watermark(200)
        h.process_element(("b", 1), 10)
        assert (h.get_output(), h.get_side_output("late")) == ([("a", 1)], ["b"])


# -- errors ---------------------------------------------------------------------------------------------------------------


class Failing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        raise KeyError(f"no {value}")


def test_error_of_the_function_is_raised_with_its_traceback() -> None:
    with harness(Failing(), key=first) as h, pytest.raises(KeyError, match="no ") as raised:
        h.process_element(("a", 1))
    assert raised.traceback[-1].path == Path(__file__)
    assert "in process_element" in raised.value.__notes__[0]
    assert "record ('a', 1); key 'a'" in raised.value.__notes__[0]


def test_error_in_open_is_raised() -> None:
    class Bad(MapFunction):
        def open(self, runtime_context: Any) -> None:
            raise OSError("no connection")

        def map(self, value: Any) -> Any:
            return value

    with pytest.raises(OSError, match="no connection"):
        harness(Bad())


def nothing(stream: Any) -> Any:
    return None


def _misuses() -> Iterator[tuple[Callable[[], Any], type[Exception], str]]:
    yield lambda: harness(Timeout()), ProgramError, "needs key=[\\s\\S]*key=lambda"
    yield lambda: harness(len), ArgumentTypeError, "pipeline_harness"
    yield lambda: harness(Timeout), ArgumentTypeError, "object of a function class"
    yield lambda: harness(Double(), window=TEN), ProgramError, "does not use all[\\s\\S]*window="
    yield lambda: harness(Limits(), key=first), ProgramError, "needs broadcast_state="
    yield lambda: harness(CountTrigger.of(1), key=first), ProgramError, "needs window="
    yield lambda: pipeline_harness(nothing), ArgumentTypeError, "return the last stream"
    keyed = harness(Timeout(), key=first)
    yield (
        lambda: keyed.state("counts", "a"),
        StateAccessError,
        "no state with this name[\\s\\S]*declared are: count, seen",
    )
    yield lambda: keyed.current_watermark, ProgramError, "no watermark yet[\\s\\S]*process_watermark"
    yield lambda: keyed.process_element1(1), ProgramError, "one input[\\s\\S]*use process_element"
    yield lambda: keyed.process_broadcast_element(1), ProgramError, "no broadcast input"
    yield lambda: keyed.process_element(("a", 1), 1.5), ArgumentTypeError, "whole number of milliseconds[\\s\\S]*1.5"  # type: ignore[arg-type]
    yield lambda: keyed.process_watermark("1"), ArgumentTypeError, "whole number of milliseconds"  # type: ignore[arg-type]
    plain = harness(Double())
    yield lambda: plain.state("x", "a"), StateAccessError, "no keyed state[\\s\\S]*give the harness a key"
    plain.process_watermark(10)
    yield lambda: plain.process_watermark(9), ProgramError, "never falls[\\s\\S]*9 after 10"
    plain.set_processing_time(10)
    yield lambda: plain.set_processing_time(9), ProgramError, "never falls"
    ended = harness(Double())
    ended.end_input()
    yield lambda: ended.process_element(1), ProgramError, "input has ended"
    ended.close()
    yield lambda: ended.process_element(1), ProgramError, "is closed"


def test_misuse_gets_clear_errors() -> None:
    for act, kind, text in _misuses():
        with pytest.raises(kind, match=text):
            act()


def test_harness_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.testing.open_rounds.SHARED_MEMORY", str(tmp_path))
    with harness(Timeout(), key=first) as h:
        h.process_element(("a", 1), 1)
        h.snapshot()
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), harness(Failing(), key=first) as h:
        h.process_element(("a", 1))
    assert list(tmp_path.iterdir()) == []


def test_importing_the_harness_imports_no_pyspark() -> None:
    code = (
        "import sys, tidegate.testing as t; t.harness, t.MiniCluster; assert 'pyspark' not in sys.modules; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"


def test_killed_in_a_fault_point_is_no_error_of_the_user() -> None:
    class Dies(MapFunction):
        def map(self, value: Any) -> Any:
            raise Crash("here")

    with pytest.raises(Crash), harness(Dies()) as h:
        h.process_element(1)
