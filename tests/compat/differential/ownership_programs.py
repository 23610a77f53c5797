"""Objects a function continues using after it has emitted them: PyFlink serializes a record when it is emitted.

Functions it fuses hand objects over as they are, so what one of them does to its argument is compared only after a branch or a
partitioning.
"""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program, whole
from tests.compat.differential.engine_api import (
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    Row,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)


class Keep(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen: list[Any] = []

    def map(self, value: Any) -> Any:
        self.seen.append(value)
        return self.seen


class KeepInside(MapFunction):
    """The object that changes is inside a tuple, which does not."""

    def open(self, runtime_context: Any) -> None:
        self.seen: dict[Any, int] = {}
        self.row = Row(count=0)

    def map(self, value: Any) -> Any:
        self.seen[value] = self.seen.get(value, 0) + 1
        self.row["count"] += 1
        return value, self.seen, [self.row]


@program(parallelisms=(1,), key=whole)
def an_object_the_function_keeps(env: Any) -> Any:
    return env.from_collection([1, 2, 1]).map(Keep())


@program(parallelisms=(1,), key=whole)
def an_object_inside_that_the_function_keeps(env: Any) -> Any:
    return env.from_collection([1, 2, 1]).map(KeepInside())


@program(parallelisms=(1,), key=whole)
def kept_objects_sent_to_another_task(env: Any) -> Any:
    return env.from_collection([1, 2, 1]).map(Keep()).rebalance().map(tuple)


@program(parallelisms=(1,), key=whole)
def kept_objects_with_timestamps(env: Any) -> Any:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(Length())
    return env.from_collection([1, 2, 1]).map(Keep()).assign_timestamps_and_watermarks(strategy).process(Times())


class Length:
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return len(value)


class Times(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.timestamp(), value


class Prefixes(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        prefix: list[Any] = []
        for item in value:
            prefix.append(item)
            yield prefix


@program(parallelisms=(1,), key=whole)
def an_object_yielded_again_and_again(env: Any) -> Any:
    return env.from_collection(["abc", "de"]).flat_map(Prefixes())


def merged(so_far: Any, value: Any) -> Any:
    so_far["n"] += value["n"]
    so_far["all"].extend(value["all"])
    return so_far


@program(parallelisms=(1,), key=whole)
def a_reduction_that_changes_its_argument(env: Any) -> Any:
    numbers = env.from_collection([1, 2, 3]).map(lambda v: {"n": v, "all": [v]})
    return numbers.key_by(lambda v: 0).reduce(merged)


class CountInDict(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("counts", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        counts = self.state.value() or {}
        counts[value[1]] = counts.get(value[1], 0) + 1
        self.state.update(counts)
        ctx.timer_service().register_event_time_timer(value[1])
        yield value[0], counts

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        counts = self.state.value()
        counts[timestamp] += 100
        self.state.update(counts)
        yield ctx.get_current_key(), counts


@program(key=first)
def state_that_is_changed_and_emitted(env: Any) -> Any:
    """By records, and by timers at the end of input."""
    records = [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 3)]
    return env.from_collection(records).key_by(lambda record: record[0]).process(CountInDict())


@program(parallelisms=(1,))
def two_readers_of_one_object(env: Any) -> Any:
    """What one reader does to its copy is nothing to the other, nor to a third one in another task."""
    lists = env.from_collection([1, 2]).map(lambda v: [v])
    changed = lists.map(lambda v: v.append("changed") or ("changed", v))
    plain = lists.map(lambda v: ("plain", v))
    again = lists.map(lambda v: v.append("again") or ("again", v))
    far = lists.rebalance().map(lambda v: ("far", v))
    return changed.union(plain, again, far)


class Aside(ProcessFunction):
    aside = OutputTag("aside")

    def process_element(self, value: Any, ctx: Any) -> Any:
        out = [value]
        yield out
        yield self.aside, out
        out.append("too late")
        yield self.aside, out


@program(parallelisms=(1,))
def one_object_in_two_outputs(env: Any) -> Any:
    stream = env.from_collection([1, 2]).process(Aside())
    aside = stream.get_side_output(Aside.aside).map(lambda v: v.append("aside") or ("aside", v))
    return stream.map(lambda v: v.append("main") or ("main", v)).union(aside)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __repr__(self) -> str:
        return f"Point({self.x})"


class Move(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.point = Point(0)

    def map(self, value: int) -> Any:
        self.point.x += value
        return self.point


@program(parallelisms=(1,), key=whole)
def an_object_of_a_class_of_the_user(env: Any) -> Any:
    return env.from_collection([1, 2, 3]).map(Move()).rebalance().map(repr)


@program(parallelisms=(1,), key=whole)
def values_of_a_collection_that_are_changed(env: Any) -> Any:
    """By one reader; another has them as they were."""
    lists = env.from_collection([[1], [2]])
    return lists.map(lambda v: v.append("changed") or ("changed", v)).union(lists.map(lambda v: ("plain", v)))
