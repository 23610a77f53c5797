"""Event time beside records in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sources import At, ScriptedSource
from tests.unit.runtime.slow_jobs import UNALIGNED, Slow, SlowJob, Time
from tests.unit.runtime.test_unaligned import crash_behind
from tidegate.common import Time as Size
from tidegate.common.time import Duration
from tidegate.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from tidegate.datastream import AggregateFunction, ProcessFunction, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.window import SlidingEventTimeWindows


class Watching(ProcessFunction):
    """10 ms a record; emits the watermark each record has found."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        Time.clock.advance(10)
        Time.seen.append((ctx.timer_service().current_watermark(), ctx.timestamp(), value))
        yield value


def source(env: StreamExecutionEnvironment, name: str, limit: int, strategy: Any, *scripts: Any) -> Any:
    made = ScriptedSource(*scripts)
    made.initial_limit = made.maximum_limit = limit
    return env.from_source(made, strategy, name).uid(name)


@pytest.mark.parametrize("records", [100, 103, 150, 153])
def test_event_time_continues_after_a_split_that_has_ended(records: int, tmp_path: Path) -> None:
    marks = WatermarkStrategy.for_monotonous_timestamps()
    short, long = [At(n, n) for n in range(records)], [At(n, n) for n in range(400)]
    job = SlowJob(tmp_path, lambda env: source(env, "splits", 100_000, marks, short, long).process(Watching()))
    job.run(**UNALIGNED)
    assert max(watermark for watermark, _, _ in Time.seen) > 390, "the short split holds nothing back"


class Late(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            Time.seen.append(("late", value))
        yield value


@pytest.mark.parametrize("settings", [{}, UNALIGNED])
def test_a_source_that_is_not_asked_is_not_idle(settings: dict[str, Any], tmp_path: Path) -> None:
    marks = WatermarkStrategy.for_monotonous_timestamps().with_idleness(Duration.of_millis(500))

    def build(env: StreamExecutionEnvironment) -> Any:
        many = source(env, "many", 300, marks, [At(n, n) for n in range(900)]).rebalance().map(Slow())
        few = source(env, "few", 10, marks, [At(n * 10, -n) for n in range(90)])
        return many.union(few).rebalance().process(Late())

    job = SlowJob(tmp_path, build)
    job.run(**settings)
    assert [seen for seen in Time.seen if isinstance(seen, tuple)] == []


class Itself(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


def timed_behind_a_shuffle(env: StreamExecutionEnvironment) -> Any:
    """Time is told from records that several subtasks had in flight."""
    marks = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    numbers = source(env, "numbers", 600, WatermarkStrategy.no_watermarks(), list(range(1500)))
    return numbers.rebalance().map(Slow()).assign_timestamps_and_watermarks(marks).process(Late())


@pytest.mark.parametrize("checkpoint", [1, 3])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_several_subtasks_had_in_flight_is_not_late_in_one(
    parallelism: int, checkpoint: int, tmp_path: Path
) -> None:
    """One subtask's records come after another's, over several rounds: time stands still until all are through."""
    job = SlowJob(tmp_path, timed_behind_a_shuffle)
    crash_behind(job, checkpoint, **{"parallelism.default": 3})
    job.run(parallelism, **UNALIGNED)
    assert [seen for seen in Time.seen if isinstance(seen, tuple)] == []
    assert job.written() == list(range(1500))
    assert len(job.rounds) > 5


class SlowForSome(AggregateFunction):
    """The sum. Records of two keys of three take 10 ms, so their subtasks fall behind."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        Time.clock.advance(10 * (value % 3 > 0))
        return accumulator + int(value)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield from ((context.window().start, key, element) for element in elements)

    def clear(self, context: Any) -> None:
        pass


def sliding(env: StreamExecutionEnvironment) -> Any:
    marks = WatermarkStrategy.for_monotonous_timestamps()
    numbers = source(env, "numbers", 600, marks, [At(n, n) for n in range(900)]).set_parallelism(1)
    windows = numbers.key_by(lambda n: n % 3).window(
        SlidingEventTimeWindows.of(Size.milliseconds(40), Size.milliseconds(10))
    )
    return windows.aggregate(SlowForSome(), WithWindow()).uid("windows")


@pytest.mark.parametrize("checkpoint", [1, 2, 3])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_window_that_one_subtask_has_fired_does_not_fire_again_after_a_rescale(
    parallelism: int, checkpoint: int, tmp_path: Path
) -> None:
    """The subtasks of an unaligned checkpoint are not at the same event time; the one that is furthest behind counts."""
    job = SlowJob(tmp_path, sliding)
    crash_behind(job, checkpoint, **{"parallelism.default": 3, "tidegate.chunk.records": 10})
    job.run(parallelism, **UNALIGNED)
    sums: dict[tuple[int, int], int] = {}
    for n in range(900):
        for start in range(n // 10 * 10 - 30, n // 10 * 10 + 1, 10):
            sums[start, n % 3] = sums.get((start, n % 3), 0) + n
    assert job.written() == sorted([start, key, total] for (start, key), total in sums.items())
