"""Event-time windows after sources without timestamps: refused before the job starts, where that can be known."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.programs import program_of
from tidegate.base.errors import ProgramError
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.graph.plan import build

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
UNTIMED = WatermarkStrategy.for_monotonous_timestamps()
BY_CLOCK = TumblingProcessingTimeWindows.of(Time.seconds(1))
WINDOWS = TumblingEventTimeWindows.of(Time.seconds(1))


class Custom(TumblingEventTimeWindows):
    """Who assigns windows otherwise may do without timestamps."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return super().assign_windows(element, element, context)


class MaySetTimers(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(Configuration())


def refuse(env: StreamExecutionEnvironment) -> None:
    build(program_of(env, "job"), 1, None, {})


@pytest.mark.parametrize(
    "windows",
    [
        WINDOWS,
        SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1)),
        EventTimeSessionWindows.with_gap(Time.seconds(1)),
    ],
)
def test_no_way_gives_timestamps(env: StreamExecutionEnvironment, windows: Any) -> None:
    few = env.from_collection([1, 2], Types.LONG()).map(lambda n: n, Types.LONG()).name("few")
    many = env.from_source(NumberSequenceSource(0, 9), UNTIMED, "many", Types.LONG())
    both = few.union(many.assign_timestamps_and_watermarks(UNTIMED)).filter(lambda n: True)
    both.key_by(lambda n: n % 2).window(windows).reduce(max).print()
    with pytest.raises(ProgramError) as refused:
        refuse(env)
    name = type(windows).__name__
    assert refused.value.rule == f"'{name}' uses event time, but its records have no timestamps"
    assert re.fullmatch(rf"operator '{name}', .*test_timestamps_needed\.py:\d+", str(refused.value.where))
    assert refused.value.found == (
        "records of 'Collection Source', 'many' have none (Long.MIN_VALUE timestamp in Flink), "
        "and no operator on the path assigns any"
    )
    assert "assign_timestamps_and_watermarks" in str(refused.value.cure)


@pytest.mark.parametrize(
    "build_on",
    [
        lambda s: s.assign_timestamps_and_watermarks(TIMED).key_by(lambda n: n).window(WINDOWS),
        lambda s: s.assign_timestamps_and_watermarks(TIMED).map(lambda n: n).key_by(lambda n: n).window(WINDOWS),
        lambda s: s.union(s.assign_timestamps_and_watermarks(TIMED)).key_by(lambda n: n).window(WINDOWS),
        lambda s: s.key_by(lambda n: n).process(MaySetTimers()).key_by(lambda n: n).window(WINDOWS),
        lambda s: s.key_by(lambda n: n).window(BY_CLOCK),
        lambda s: s.key_by(lambda n: n).window(GlobalWindows.create()).trigger(CountTrigger.of(2)),
        lambda s: s.key_by(lambda n: n).window(Custom(1000)),
        lambda s: s.key_by(max).window(BY_CLOCK).reduce(max).key_by(max).window(WINDOWS),
    ],
)  # fmt: skip
def test_what_may_have_timestamps_is_left_alone(env: StreamExecutionEnvironment, build_on: Any) -> None:
    build_on(env.from_collection([1, 2], Types.LONG())).reduce(max).print()
    refuse(env)
