"""The smallest wrong programs: each is refused with rule, operator, line of the program, what was found and the cure."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError, TidegateError
from tidegate.common import Row, Time, Types
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroInputFormat, AvroSchema
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    NeverTrigger,
    TimeWindowSerializer,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

RULES = MapStateDescriptor("rules", Types.STRING(), Types.STRING())
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
SECOND = Time.seconds(1)


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=5, **{"parallelism.default": 1})


class WritesOnTheOtherSide(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("a", "b")
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return []


class NamesItsResult(Trigger[Any, Any]):
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        return "fire"

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> Any:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> Any:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        pass

    def clear(self, window: Any, ctx: Any) -> None:
        pass


class AssignsANumber(WindowAssigner[Any, Any]):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return 5

    def get_default_trigger(self, env: Any) -> Any:
        return EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class ReturnsOne(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value


class YieldsAList(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield [value]


def three_of_two(value: Any) -> Any:
    yield value, "a", 3


class Blocking(AsyncFunction):
    def async_invoke(self, value: Any) -> Any:  # type: ignore[override]
        return [value]


class NoList(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:
        return value


async def coroutine(value: Any) -> Any:
    return value


def avro(field: str, kind: str) -> AvroSchema:
    return AvroSchema(json.dumps({"type": "record", "name": "N", "fields": [{"name": field, "type": kind}]}))


# Each is a program of one line, which the message names.


def untimed(one: Any, place: Path) -> None:
    one.key_by(lambda n: n).window(TumblingEventTimeWindows.of(SECOND)).reduce(max).name("sums").print()


def untimed_sessions(one: Any, place: Path) -> None:
    one.window_all(EventTimeSessionWindows.with_gap(SECOND)).reduce(max).name("sums").print()


def trigger_that_cannot_merge(one: Any, place: Path) -> None:
    one.key_by(lambda n: n).window(EventTimeSessionWindows.with_gap(SECOND)).trigger(NeverTrigger()).reduce(max)


def trigger_of_texts(one: Any, place: Path) -> None:
    one.window_all(TumblingProcessingTimeWindows.of(SECOND)).trigger(NamesItsResult()).reduce(max).name("sums").print()


def assigner_of_numbers(one: Any, place: Path) -> None:
    one.key_by(lambda n: n).window(AssignsANumber()).reduce(max).name("sums").print()


def union_of_two_types(one: Any, place: Path) -> None:
    one.union(one.map(str, Types.STRING()).name("texts")).print()


def broadcast_state_from_the_other_side(one: Any, place: Path) -> None:
    one.connect(one.broadcast(RULES)).process(WritesOnTheOtherSide()).name("rules").print()


def flat_map_without_results(one: Any, place: Path) -> None:
    one.flat_map(lambda n: n).name("split").print()


def process_without_results(one: Any, place: Path) -> None:
    one.process(ReturnsOne()).name("split").print()


def other_fields_to_a_shuffle(one: Any, place: Path) -> None:
    one.flat_map(three_of_two, PAIR).rebalance().map(lambda pair: pair).name("receiver").print()


def other_fields_to_print(one: Any, place: Path) -> None:
    one.flat_map(three_of_two, PAIR).print()


def other_fields_of_a_row(one: Any, place: Path) -> None:
    one.process(YieldsAList(), Types.ROW([Types.LONG(), Types.LONG()])).name("rows").print()


def async_function_that_blocks(one: Any, place: Path) -> None:
    AsyncDataStream.ordered_wait(one, Blocking(), SECOND)


def coroutine_without_a_loop(one: Any, place: Path) -> None:
    one.map(coroutine)


def async_function_without_a_list(one: Any, place: Path) -> None:
    AsyncDataStream.unordered_wait(one, NoList(), SECOND).name("calls").print()


def avro_that_is_none(one: Any, place: Path) -> None:
    AvroSchema.parse_string('{"type": "recor"}')


def avro_that_records_do_not_fit(one: Any, place: Path) -> None:
    sink = FileSink.for_bulk_format(str(place / "out"), AvroBulkWriters.for_generic_record(avro("n", "string"))).build()
    one.map(lambda n: {"n": n}).sink_to(sink).name("to Avro")


def avro_that_a_file_does_not_fit(one: Any, place: Path) -> None:
    factory = AvroBulkWriters.for_generic_record(avro("n", "long"))
    with (place / "file").open("wb") as target:
        factory.write(iter([factory.pack([{"n": 1}])]), target)
    one._env.create_input(AvroInputFormat(str(place / "file"), avro("m", "string"))).print()


@pytest.mark.parametrize(
    ("program", "rule", "where", "found", "cure"),
    [
        (untimed, "uses event time", "operator 'sums'", "'Collection Source' have none", "assign_timestamps"),
        (untimed_sessions, "uses event time", "operator 'sums'", "have none", "assign_timestamps"),
        (
            trigger_that_cannot_merge,
            "merging window assigner cannot be used with a trigger",
            "windows of EventTimeSessionWindows(1000)",
            "NeverTrigger",
            "or use another trigger",
        ),
        (
            trigger_of_texts,
            "The trigger did not return a TriggerResult",
            "operator 'sums'",
            "'fire'",
            "TriggerResult.CONTINUE",
        ),
        (assigner_of_numbers, "raised", "operator 'sums'", "'int' object is not iterable; record 1", "[result]"),
        (
            union_of_two_types,
            "The united streams are of different types",
            "union",
            "Long of 'Collection Source' and String of 'texts'",
            "declare the same type for both",
        ),
        (
            broadcast_state_from_the_other_side,
            "Broadcast state is read-only on the other side",
            "operator 'rules'",
            "state 'rules'",
            "process_broadcast_element",
        ),
        (flat_map_without_results, "raised", "operator 'split'", "'int' object is not iterable", "yield each"),
        (process_without_results, "raised", "operator 'split'", "'int' object is not iterable", "yield each"),
        (
            other_fields_to_a_shuffle,
            "field [1] is declared as LONG",
            "sent to operator 'receiver'",
            "str 'a': an integer is required",
            "declare",
        ),
        (other_fields_to_print, "field [1] is declared as LONG", "operator", "str 'a': an integer", "declare"),
        (other_fields_of_a_row, "one value for each of ['f0', 'f1']", "operator 'rows'", "list [1]", "declare"),
        (async_function_that_blocks, "'async def'", "ordered_wait", "a plain function", "async def async_invoke"),
        (coroutine_without_a_loop, "it has no event loop", "map", "async def coroutine", "AsyncFunction"),
        (async_function_without_a_list, "return a list", "operator 'calls'", "1 of type int", "[result]"),
        (avro_that_is_none, "The Avro schema is invalid", "AvroSchema", "recor", "correct the schema"),
        (
            avro_that_records_do_not_fit,
            "does not fit the Avro schema",
            "operator 'to Avro'",
            "N.n is <1>",
            "the record",
        ),
        (
            avro_that_a_file_does_not_fit,
            "its records do not fit the schema",
            "operator 'Custom File source'",
            "field m",
            "correct the AvroSchema",
        ),
    ],
    ids=lambda value: value.__name__ if inspect.isfunction(value) else "",
)
def test_what_is_wrong_is_named(
    program: Callable[[Any, Path], None],
    rule: str,
    where: str,
    found: str,
    cure: str,
    env: StreamExecutionEnvironment,
    tmp_path: Path,
) -> None:
    def run() -> None:
        program(env.from_collection([1], Types.LONG()), tmp_path)
        env.execute()

    with pytest.raises(TidegateError) as caught:
        run()
    error: Any = caught.value.__cause__ if isinstance(caught.value, JobFailedError) else caught.value
    for expected, part in ((rule, error.rule), (where, error.where), (found, error.found), (cure, error.cure)):
        assert expected in str(part)
        assert str(part) in str(error)
    assert named_lines(program) & {word.strip(",") for word in error.where.split()}, error.where


def named_lines(program: Callable[[Any, Path], None]) -> set[str]:
    """``file:line`` for every line of the program and of the function that is wrong in it."""
    written: list[Any] = [program, WritesOnTheOtherSide]
    return {
        f"{__file__}:{first + n}" for lines, first in map(inspect.getsourcelines, written) for n in range(len(lines))
    }


def test_a_row_of_too_few_fields_is_named_with_its_line(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).map(lambda n: Row(n), Types.ROW([Types.LONG(), Types.LONG()])).name("rows").print()
    with pytest.raises(JobFailedError, match=r"operator 'rows', added at .*test_bad_programs\.py:\d+"):
        env.execute()


def test_error_in_a_keyed_function_names_record_and_key(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([("k1", 2), ("k2", 0)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    pairs.key_by(lambda pair: pair[0], Types.STRING()).map(lambda pair: 10 // pair[1]).add_sink(lambda value: None)
    with pytest.raises(JobFailedError, match=r"ZeroDivisionError: .*; record \('k2', 0\); key 'k2'"):
        env.execute()
