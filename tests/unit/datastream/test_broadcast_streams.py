"""Broadcast state and state of operators through the API, on the simulated engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.executor import Simulated
from tests.sources import ScriptedSource
from tidegate.base.errors import ArgumentTypeError, JobFailedError, ProgramError
from tidegate.common import Configuration, Types
from tidegate.common.time import Time
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import (
    BroadcastConnectedStream,
    BroadcastProcessFunction,
    BroadcastStream,
    CheckpointedFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    MapFunction,
    OutputTag,
    SinkFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
NAMES = MapStateDescriptor("names", None, None)
END = (1 << 63) - 1


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(**{"parallelism.default": 2})


def collect(stream: DataStream) -> list[Any]:
    return list(stream.execute_and_collect())


def failure(stream: DataStream) -> str:
    with pytest.raises(JobFailedError) as failed:
        collect(stream)
    return str(failed.value.__cause__)


class Passes(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


class Ends(KeyedBroadcastProcessFunction):
    """What a key knows at the end of time, when all rules are there."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        assert ctx.get_current_key() == value
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.count.value(), ctx.get_broadcast_state(RULES).get(ctx.get_current_key())


def test_every_subtask_sees_all_broadcast_records(env: StreamExecutionEnvironment) -> None:
    class Tells(Passes):
        def open(self, runtime_context: Any) -> None:
            self.index = runtime_context.get_index_of_this_subtask()

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            state = ctx.get_broadcast_state(RULES)
            assert not state.contains(value[0])
            state[value[0]] = value[1]
            yield self.index, sorted(state)

    rules = env.from_collection([("a", 1), ("b", 2)]).broadcast(RULES)
    assert isinstance(rules, BroadcastStream)
    both = env.from_collection([7]).connect(rules)
    assert isinstance(both, BroadcastConnectedStream)
    found = [value for value in collect(both.process(Tells())) if value != 7]
    assert sorted(found) == [(0, ["a"]), (0, ["a", "b"]), (1, ["a"]), (1, ["a", "b"])]


def test_the_keyed_side_has_state_timers_and_reads_the_rules(env: StreamExecutionEnvironment) -> None:
    words = env.from_collection(list("abcab")).key_by(lambda word: word)
    rules = env.from_collection([("a", 10), ("b", 20)]).broadcast(RULES)
    assert sorted(collect(words.connect(rules).process(Ends()))) == [("a", 2, 10), ("b", 2, 20), ("c", 1, None)]


def test_declared_types_and_side_outputs(env: StreamExecutionEnvironment) -> None:
    tag = OutputTag("rules", Types.STRING())

    class Sides(Passes):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, value

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            yield tag, value[0]

    env.set_parallelism(1)
    info = Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()])
    rules = env.from_collection([("a", 1)]).broadcast(RULES)
    main = env.from_collection([5]).connect(rules).process(Sides(), info)
    both = main.map(lambda row: str(row.x), Types.STRING()).union(main.get_side_output(tag))
    assert sorted(collect(both)) == ["5", "a"]


def test_what_was_read_may_be_changed_without_a_trace(env: StreamExecutionEnvironment) -> None:
    class Changes(BroadcastProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            names = ctx.get_broadcast_state(NAMES)
            for known in names.values():
                known.append("changed")
            yield value, names.get("x")

        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            mine = [value]
            ctx.get_broadcast_state(NAMES).put("x", mine)
            mine.append("later")

    env.set_parallelism(1)
    found = collect(
        env.from_collection([1, 2, 3]).connect(env.from_collection([5]).broadcast(NAMES)).process(Changes())
    )
    assert {str(names) for _, names in found} <= {"None", "[5]"}


@pytest.mark.parametrize("kind", ["value", "map", "list"])
def test_a_broadcast_record_may_change_the_state_of_all_keys(env: StreamExecutionEnvironment, kind: str) -> None:
    """In several rounds: keys lie in the store by then, in caches or in what the round has written."""
    value, mapped = ValueStateDescriptor("value", Types.LONG()), MapStateDescriptor("map", Types.STRING(), Types.LONG())
    listed = ListStateDescriptor("list", Types.LONG())

    class Applies(KeyedBroadcastProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.value = runtime_context.get_state(value)
            self.map = runtime_context.get_map_state(mapped)
            self.list = runtime_context.get_list_state(listed)

        def process_element(self, number: Any, ctx: Any) -> Any:
            self.value.update(number)
            self.map.put("n", number)
            self.list.add(number)
            if number == 3:
                self.value.clear()
                self.map.clear()
                self.list.clear()

        def process_broadcast_element(self, record: Any, ctx: Any) -> Any:
            seen: list[Any] = []
            if kind == "value":
                ctx.apply_to_keyed_state(value, lambda key, state: seen.append((key, state.value())))
            elif kind == "map":
                ctx.apply_to_keyed_state(mapped, lambda key, state: seen.append((key, state.get("n"))))
            else:
                ctx.apply_to_keyed_state(listed, lambda key, state: seen.append((key, state.get()[0])))
            yield seen

    records = ScriptedSource([1, 2, 3, 4])
    records.initial_limit = records.maximum_limit = 2
    after = ScriptedSource([*[None] * 8, "now"])
    after.initial_limit = after.maximum_limit = 1
    env.set_parallelism(1)
    strategy = WatermarkStrategy.no_watermarks()
    numbers = env.from_source(records, strategy, "numbers").key_by(lambda n: n)
    rules = env.from_source(after, strategy, "rules").filter(lambda record: record is not None).broadcast(RULES)
    assert sorted(collect(numbers.connect(rules).process(Applies()))[0]) == [(1, 1), (2, 2), (4, 4)]


# -- mistakes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.put("a", 1),
        lambda state: state.put_all({"a": 1}),
        lambda state: state.remove("a"),
        lambda state: state.clear(),
        lambda state: state.__setitem__("a", 1),
        lambda state: state.__delitem__("a"),
    ],
)
def test_a_write_from_the_other_side_names_operator_and_line(env: StreamExecutionEnvironment, write: Any) -> None:
    class Writes(Passes):
        def process_element(self, value: Any, ctx: Any) -> Any:
            write(ctx.get_broadcast_state(RULES))

    rules = env.from_collection([("a", 1)]).broadcast(RULES)
    text = failure(env.from_collection([1]).connect(rules).process(Writes()).name("writes"))
    assert "Broadcast state is read-only on the other side" in text
    assert "operator 'writes'" in text
    assert "test_broadcast_streams.py" in text
    assert "state 'rules'" in text


def test_a_state_that_was_not_declared_is_refused(env: StreamExecutionEnvironment) -> None:
    class Asks(Passes):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.get_broadcast_state(NAMES)

    rules = env.from_collection([("a", 1)]).broadcast(RULES)
    text = failure(env.from_collection([1]).connect(rules).process(Asks()))
    assert "was not declared in broadcast(...)" in text
    assert "'names'; there are 'rules'" in text


def test_keyed_state_on_the_broadcast_side_needs_a_key(env: StreamExecutionEnvironment) -> None:
    class Reads(Ends):
        def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
            self.count.value()

    rules = env.from_collection([("a", 1)]).broadcast(RULES)
    text = failure(env.from_collection([1]).key_by(lambda n: n).connect(rules).process(Reads()))
    assert "only available in a keyed context" in text


def test_functions_and_streams_have_to_match(env: StreamExecutionEnvironment) -> None:
    numbers, rules = env.from_collection([1]), env.from_collection([("a", 1)]).broadcast(RULES)
    with pytest.raises(
        ArgumentTypeError, match="stream without key and a broadcast one takes a BroadcastProcessFunction"
    ):
        numbers.connect(rules).process(Ends())
    with pytest.raises(ArgumentTypeError, match="keyed and a broadcast stream takes a KeyedBroadcastProcessFunction"):
        numbers.key_by(lambda n: n).connect(rules).process(Passes())
    with pytest.raises(ArgumentTypeError, match=r"pass descriptors of the states to broadcast"):
        numbers.connect(env.from_collection([1]).broadcast()).process(Passes())  # type: ignore[arg-type]


def test_descriptors_are_checked(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    with pytest.raises(ProgramError, match="has no broadcast state"):
        BroadcastStream(numbers, [])
    with pytest.raises(ArgumentTypeError, match="broadcast takes map state descriptors"):
        numbers.broadcast(ValueStateDescriptor("x", None))  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match="Two broadcast states have the same name"):
        numbers.broadcast(RULES, RULES)
    expiring = MapStateDescriptor("x", None, None)
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    with pytest.raises(ProgramError, match="does not support a time to live"):
        numbers.broadcast(expiring)
    with pytest.raises(ProgramError, match="A keyed stream cannot be partitioned in another way"):
        numbers.key_by(lambda n: n).broadcast(RULES)
    other = StreamExecutionEnvironment(Configuration())
    with pytest.raises(ProgramError, match="belong to different environments"):
        numbers.connect(other.from_collection([1]).broadcast(RULES))


# -- checkpointed functions -------------------------------------------------------------------------------------------------


class Keeps(MapFunction, CheckpointedFunction):
    descriptor: Any = ListStateDescriptor("kept", Types.LONG())

    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(self.descriptor)
        self.calls = ["initialize"]

    def open(self, runtime_context: Any) -> None:
        self.calls.append("open")

    def snapshot_state(self, context: Any) -> None:
        assert context.get_checkpoint_timestamp() > 0
        assert context.get_checkpoint_id() is None or context.get_checkpoint_id() > 0

    def map(self, value: Any) -> Any:
        assert self.calls == ["initialize", "open"]
        self.kept.add(value)
        return len(self.kept.get())


def test_list_state_of_a_map(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    assert collect(env.from_collection([5, 6, 7]).map(Keeps())) == [1, 2, 3]


def test_declared_types_wrap_a_checkpointed_function(env: StreamExecutionEnvironment) -> None:
    class AsRow(Keeps):
        def map(self, value: Any) -> Any:
            return (super().map(value),)

    env.set_parallelism(1)
    found = collect(env.from_collection([5, 6]).map(AsRow(), Types.ROW_NAMED(["n"], [Types.LONG()])))
    assert [row.n for row in found] == [1, 2]


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        (RULES, "The descriptor of a list state is not a list state descriptor"),
        ("kept", "The argument is not a state descriptor"),
    ],
)
def test_other_descriptors_are_refused(env: StreamExecutionEnvironment, descriptor: Any, message: str) -> None:
    class Wrong(Keeps):
        pass

    Wrong.descriptor = descriptor
    text = failure(env.from_collection([5]).map(Wrong()).name("keeps"))
    assert message in text
    assert "keeps" in text


def test_one_name_is_one_state(env: StreamExecutionEnvironment) -> None:
    class Twice(Keeps):
        def initialize_state(self, context: Any) -> None:
            super().initialize_state(context)
            context.get_operator_state_store().get_union_list_state(self.descriptor)

    text = failure(env.from_collection([5]).map(Twice()))
    assert "as union, registered before as" in text
    assert "give the second state another name" in text


def test_keyed_state_in_initialize_state_needs_a_keyed_stream(env: StreamExecutionEnvironment) -> None:
    class Keyed(Keeps):
        def initialize_state(self, context: Any) -> None:
            super().initialize_state(context)
            self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count", Types.LONG()))

        def map(self, value: Any) -> Any:
            self.count.update((self.count.value() or 0) + 1)
            return value, self.count.value()

    found = collect(env.from_collection([5, 5, 6]).key_by(lambda n: n).map(Keyed()))
    assert sorted(found) == [(5, 1), (5, 2), (6, 1)]
    assert "the operator's input is not keyed" in failure(env.from_collection([5]).map(Keyed()))


def test_what_snapshot_state_raises_fails_the_job(env: StreamExecutionEnvironment) -> None:
    class Fails(Keeps):
        def snapshot_state(self, context: Any) -> None:
            raise ValueError("no")

    text = failure(env.from_collection([5]).map(Fails()).name("keeps"))
    assert "snapshot_state() of operator 'keeps'" in text
    assert "ValueError: no" in text


def test_a_value_of_another_type_is_refused_where_it_is_added(env: StreamExecutionEnvironment) -> None:
    text = failure(env.from_collection(["text"]).map(Keeps()))
    assert "The value does not fit the declared type of its state, LONG" in text


def test_a_sink_function_may_have_list_state(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    class Buffered(SinkFunction, CheckpointedFunction):
        """Writes two at a time; what waits is state."""

        out: ClassVar[str] = str(tmp_path / "out")

        def __init__(self) -> None:
            self.waiting: list[int] = []

        def initialize_state(self, context: Any) -> None:
            self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("waiting", Types.LONG()))
            self.waiting += self.state.get()

        def snapshot_state(self, context: Any) -> None:
            self.state.update(self.waiting)

        def invoke(self, value: Any, context: Any) -> None:
            self.waiting.append(value)
            if len(self.waiting) == 2:
                with open(self.out, "a") as file:
                    file.write("".join(f"{n}\n" for n in self.waiting))
                self.waiting = []

    env.set_parallelism(1)
    records = ScriptedSource(list(range(9)))
    records.initial_limit = records.maximum_limit = 1
    env.from_source(records, WatermarkStrategy.no_watermarks(), "numbers").add_sink(Buffered())
    env.execute()
    assert Path(tmp_path / "out").read_text().split() == [str(n) for n in range(8)]
