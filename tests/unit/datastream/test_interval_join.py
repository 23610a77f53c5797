"""Interval joins: pairs, times, late records, mistakes; and random ones against a plain model, through crashes and rescales."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import configuration_of
from tests.simulation.executor import Simulated
from tests.sources import At, ScriptedSource
from tests.unit.simulation.api_scenario import run, source
from tidegate.base.errors import ArgumentTypeError, JobFailedError, ProgramError
from tidegate.common import Configuration, Types
from tidegate.common.time import Duration, Time
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.datastream import (
    DataStream,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
)
from tidegate.operators.kinds import interval_join


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(**{"parallelism.default": 2})


def timed(env: StreamExecutionEnvironment, records: list[tuple[str, int]], disorder: int = 0) -> Any:
    scripted = ScriptedSource([At(record[1], record) for record in records])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(disorder))
    return env.from_source(scripted, strategy, "timed").key_by(lambda record: record[0])


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        assert (ctx.get_left_timestamp(), ctx.get_right_timestamp()) == (left[1], right[1])
        assert ctx.get_timestamp() == max(left[1], right[1])
        yield left[0], left[1], right[1]


class Stamp(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp()


def collect(stream: DataStream) -> list[Any]:
    return sorted(stream.execute_and_collect())


LEFT = [("a", 10), ("b", 10), ("a", 20), ("a", 20)]
RIGHT = [("a", 5), ("a", 10), ("b", 12), ("a", 15), ("c", 15), ("a", 26)]


def test_pairs_within_the_bounds_with_the_later_time(env: StreamExecutionEnvironment) -> None:
    joined = timed(env, LEFT).interval_join(timed(env, RIGHT)).between(Time.milliseconds(-5), Time.milliseconds(5))
    assert collect(joined.process(Pairs()).process(Stamp())) == [
        (("a", 10, 5), 10),
        (("a", 10, 10), 10),
        (("a", 10, 15), 15),
        (("a", 20, 15), 20),
        (("a", 20, 15), 20),
        (("b", 10, 12), 12),
    ]


def test_exclusive_bounds(env: StreamExecutionEnvironment) -> None:
    joined = timed(env, LEFT).interval_join(timed(env, RIGHT)).between(Duration.of_millis(-5), Duration.of_millis(5))
    inside = joined.lower_bound_exclusive().upper_bound_exclusive()
    assert collect(inside.process(Pairs())) == [("a", 10, 10), ("b", 10, 12)]


def test_bounds_on_one_side_of_the_left_record(env: StreamExecutionEnvironment) -> None:
    later = timed(env, LEFT).interval_join(timed(env, RIGHT)).between(Time.milliseconds(2), Time.milliseconds(6))
    assert collect(later.process(Pairs())) == [("a", 10, 15), ("a", 20, 26), ("a", 20, 26), ("b", 10, 12)]
    before = timed(env, LEFT).interval_join(timed(env, RIGHT)).between(Time.milliseconds(-6), Time.milliseconds(-2))
    assert collect(before.process(Pairs())) == [("a", 10, 5), ("a", 20, 15), ("a", 20, 15)]


def test_declared_types_side_outputs_and_a_function_without_result(env: StreamExecutionEnvironment) -> None:
    tag = OutputTag("same", Types.LONG())

    class Some(ProcessJoinFunction):
        def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
            if left[1] == right[1]:
                return [(tag, left[1])]
            return [left] if left[0] == "b" else None

    info = Types.ROW_NAMED(["key", "at"], [Types.STRING(), Types.LONG()])
    joined = timed(env, LEFT).interval_join(timed(env, RIGHT)).between(Time.milliseconds(-5), Time.milliseconds(5))
    main = joined.process(Some(), info)
    both = main.map(lambda row: f"{row.key} {row.at}").union(main.get_side_output(tag).map(str))
    assert collect(both) == ["10", "b 10"]


def test_late_records_go_to_their_side_outputs(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    configuration_of(env).set_string("tidegate.chunk.records", "1")
    left_late, right_late = OutputTag("left"), OutputTag("right")
    left = [("a", 100), ("a", 200), ("a", 1), ("a", 300)]
    right = [("a", 100), ("a", 200), ("a", 2), ("a", 300)]
    joined = timed(env, left).interval_join(timed(env, right)).between(Time.milliseconds(0), Time.milliseconds(0))
    main = joined.side_output_left_late_data(left_late).side_output_right_late_data(right_late).process(Pairs())
    tagged = main.map(lambda value: ("pair", value[1])).union(
        main.get_side_output(left_late).map(lambda value: ("left", value[1])),
        main.get_side_output(right_late).map(lambda value: ("right", value[1])),
    )
    found = collect(tagged)
    assert [value for value in found if value[0] == "pair"] == [("pair", 100), ("pair", 200), ("pair", 300)]
    # both inputs have to be past a time before a record at it is late, and which is read first is not known
    assert {value for value in found if value[0] != "pair"} <= {("left", 1), ("right", 2)}
    assert ("left", 1) in found or ("right", 2) in found


def test_a_function_that_changes_a_record_changes_none_that_waits(env: StreamExecutionEnvironment) -> None:
    class Changes(ProcessJoinFunction):
        def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
            yield tuple(left[2]), tuple(right[2])
            left[2].append("x")
            right[2].append("y")

    def lists(*moments: int) -> Any:
        return timed(env, [["k", moment, []] for moment in moments])  # type: ignore[misc]

    joined = lists(1, 2, 3).interval_join(lists(1, 2, 3)).between(Time.milliseconds(-9), Time.milliseconds(9))
    assert set(collect(joined.process(Changes()))) == {((), ())}


# -- mistakes ---------------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(env: StreamExecutionEnvironment) -> None:
    keyed, plain = timed(env, LEFT), env.from_collection([1])
    bounds = Time.seconds(-1), Time.seconds(1)
    with pytest.raises(ProgramError, match=r"needs keyed streams(.|\n)*call key_by"):
        plain.interval_join(keyed)
    with pytest.raises(ArgumentTypeError, match="interval_join takes keyed streams"):
        keyed.interval_join(plain)
    with pytest.raises(ProgramError, match=r"is above the upper bound(.|\n)*1000 ms and -1000 ms"):
        keyed.interval_join(keyed).between(*reversed(bounds))
    none = keyed.interval_join(keyed).between(Time.seconds(0), Time.seconds(0))
    with pytest.raises(ProgramError, match=r"interval join is empty(.|\n)*from 1 to -1 ms"):
        none.lower_bound_exclusive().upper_bound_exclusive().process(Pairs())
    with pytest.raises(ArgumentTypeError, match="between takes times"):
        keyed.interval_join(keyed).between(1, 2)
    with pytest.raises(ArgumentTypeError, match="process of an interval join takes a ProcessJoinFunction"):
        keyed.interval_join(keyed).between(*bounds).process(lambda left, right: left)
    with pytest.raises(ArgumentTypeError, match="side_output_left_late_data takes an OutputTag"):
        keyed.interval_join(keyed).between(*bounds).side_output_left_late_data("late")
    with pytest.raises(ProgramError, match="event time only"):
        keyed.interval_join(keyed).in_processing_time()
    with pytest.raises(ProgramError, match="belong to different environments"):
        keyed.interval_join(timed(StreamExecutionEnvironment(Configuration()), LEFT))


def test_records_without_timestamps_are_refused(env: StreamExecutionEnvironment) -> None:
    """Of a source that might have given them: with the first record. Of one that never does: before the job starts."""

    def joined(stream: Any) -> Any:
        plain = stream.key_by(lambda record: record[0])
        return plain.interval_join(plain).between(Time.seconds(0), Time.seconds(1)).process(Pairs()).name("joined")

    untimed = env.from_source(ScriptedSource([("a", 1)], ends=True), WatermarkStrategy.no_watermarks(), "s")
    with pytest.raises(JobFailedError) as failed:
        collect(joined(untimed))
    text = str(failed.value.__cause__)
    assert "An interval join needs records with timestamps" in text
    assert "operator 'joined'" in text
    with pytest.raises(ProgramError, match=r"'joined' uses event time, but its records have no timestamps") as refused:
        collect(joined(env.from_collection([("a", 1)])))
    assert re.fullmatch(r"operator 'joined', .*test_interval_join\.py:\d+", str(refused.value.where))


# -- random ones ------------------------------------------------------------------------------------------------------------


def records_of(dice: random.Random, count: int) -> list[tuple[str, int, int]]:
    moments = sorted(dice.randrange(count * 3) for _ in range(count))
    return [(f"k{dice.randrange(4)}", moment, n) for n, moment in enumerate(moments)]


class All(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield [left[0], left[2], right[2], ctx.get_timestamp()]


@pytest.mark.parametrize("seed", range(20))
def test_random_joins_are_those_of_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    if seed % 3 == 0:
        monkeypatch.setattr(interval_join, "MOST_BUFFERED", 5)
    monkeypatch.setattr(interval_join, "MANY_READ", dice.choice([1, 2, 5, 256]))
    monkeypatch.setattr(interval_join, "MOST_LISTED", dice.choice([1, 3, 100_000]))
    left, right = records_of(dice, 50), records_of(dice, 50)
    lower = dice.randrange(-30, 20)
    upper = lower + dice.randrange(0, 40)
    limits = dice.choice([(3, 7), (10, 10), (100, 100), (2, 100)])
    parallelism = dice.choice([(1,), (3,), (2, 4), (1, 3, 2), (4, 1)])

    def build(env: StreamExecutionEnvironment) -> Any:
        sides = [
            source(env, [At(record[1], record) for record in side], limit=limit, name=name).key_by(lambda r: r[0])
            for side, limit, name in ((left, limits[0], "left"), (right, limits[1], "right"))
        ]
        joined: Any = sides[0].interval_join(sides[1])  # type: ignore[arg-type]
        return joined.between(Time.milliseconds(lower), Time.milliseconds(upper)).process(All())

    expected = [
        [a[0], a[2], b[2], max(a[1], b[1])]
        for a in left
        for b in right
        if a[0] == b[0] and lower <= b[1] - a[1] <= upper
    ]
    root = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        run(build, expected, root, seed, parallelism=parallelism)
    finally:
        shutil.rmtree(root)


def test_state_is_gone_when_the_bound_has_passed(
    env: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys come once and never again: what waits is bounded by the interval, not by the length of the stream."""
    waiting: list[int] = []
    parts = interval_join.IntervalJoinOperator.parts

    def looked_at(operator: Any) -> Any:
        found = parts(operator)
        waiting.append(sum(len(times) for kept in operator._waiting.values() for times in kept.times))
        assert operator.backend.event_timers.next_time() is None or waiting[-1]
        return found

    monkeypatch.setattr(interval_join.IntervalJoinOperator, "parts", looked_at)
    env.set_parallelism(1)
    sides = []
    for name in ("left", "right"):
        scripted = ScriptedSource([At(n, (f"key-{n}", n)) for n in range(600)])
        scripted.initial_limit = scripted.maximum_limit = 20
        stream = env.from_source(scripted, WatermarkStrategy.for_monotonous_timestamps(), name)
        sides.append(stream.key_by(lambda record: record[0]))
    joined = sides[0].interval_join(sides[1]).between(Time.milliseconds(-30), Time.milliseconds(30))
    assert len(collect(joined.process(Pairs()))) == 600
    assert len(waiting) >= 30
    assert max(waiting) <= 2 * (30 + 40) + 2 * 60 // 8
    assert waiting[-1] == 0
