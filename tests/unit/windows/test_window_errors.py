"""What is wrong with windows is said before the job starts where that is possible, and always with what to do about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.sources import At
from tests.unit.windows.window_jobs import WindowJob, timed
from tidegate.base.errors import ArgumentTypeError, JobFailedError, ProgramError, TidegateError
from tidegate.common import Configuration, Time, Types
from tidegate.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.window import (
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    NeverTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

SESSIONS = EventTimeSessionWindows.with_gap(Time.seconds(1))
TUMBLING = TumblingEventTimeWindows.of(Time.seconds(1))


def ms(value: int) -> Time:
    return Time.milliseconds(value)


class NoMerge(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        pass


class Fails(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        raise ValueError("out of order")
        yield


class WindowState(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield context.window_state()


@pytest.fixture
def keyed() -> Any:
    env = StreamExecutionEnvironment(Configuration.from_dict({"parallelism.default": 1}))
    return env.from_collection([("a", 1)]).key_by(lambda r: r[0], Types.STRING())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(ms(0)), "The size of TumblingEventTimeWindows must be greater than 0"),
        (lambda: TumblingEventTimeWindows.of(ms(10), ms(10)), r"must satisfy abs\(offset\) < size"),
        (lambda: TumblingProcessingTimeWindows.of(ms(10), ms(-10)), r"must satisfy abs\(offset\) < size"),
        (lambda: SlidingEventTimeWindows.of(ms(10), ms(5), ms(5)), r"must satisfy abs\(offset\) < slide"),
        (
            lambda: SlidingEventTimeWindows.of(ms(10), ms(0)),
            "The slide of SlidingEventTimeWindows must be greater than 0",
        ),
        (lambda: EventTimeSessionWindows.with_gap(ms(-1)), "The gap of EventTimeSessionWindows must be greater than 0"),
        (lambda: CountTrigger.of(0), "The count of a CountTrigger must be at least 1"),
    ],
)
def test_sizes_and_offsets(make: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        make()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda k: k.window(5), ArgumentTypeError, "window takes a WindowAssigner object"),
        (lambda k: k.count_window(0), ProgramError, "The size of a count window must be at least 1"),
        (lambda k: k.window(SESSIONS).trigger(NeverTrigger()), ProgramError, "does not support merging"),
        (lambda k: k.window(SESSIONS).trigger(DeltaTrigger.of(1, max)), ProgramError, "does not support merging"),
        (lambda k: k.window(TUMBLING).trigger("x"), ArgumentTypeError, "trigger takes a Trigger object"),
        (lambda k: k.window(TUMBLING).evictor("x"), ArgumentTypeError, "evictor takes an Evictor object"),
        (lambda k: k.window(TUMBLING).allowed_lateness(-1), ProgramError, "allowed lateness cannot be negative"),
        (lambda k: k.window(TUMBLING).side_output_late_data("x"), ArgumentTypeError, "takes an OutputTag"),
        (
            lambda k: k.window(SESSIONS).aggregate(NoMerge()),
            ProgramError,
            "AggregateFunction does not merge two accumulators",
        ),
        (lambda k: k.window(TUMBLING).aggregate(NoMerge), ArgumentTypeError, "an AggregateFunction object"),
        (
            lambda k: k.window(TUMBLING).reduce(max, max),
            ArgumentTypeError,
            "a WindowFunction or a ProcessWindowFunction",
        ),
        (lambda k: k.window(TUMBLING).process(max), ArgumentTypeError, "a ProcessWindowFunction object"),
        (lambda k: k.window_all(TUMBLING).process(Fails()), ArgumentTypeError, "a ProcessAllWindowFunction object"),
    ],
)
def test_what_does_not_fit_together(build: Any, error: type[Exception], message: str, keyed: Any) -> None:
    with pytest.raises(error, match=message):
        build(keyed)


def test_a_merge_left_empty_is_no_matter_where_nothing_merges(keyed: Any) -> None:
    keyed.window(SlidingEventTimeWindows.of(ms(10), ms(5))).aggregate(NoMerge())


def failed(place: Path, build: Any, steps: Any) -> str:
    job = WindowJob(place, lambda s: build(s.key_by(lambda r: r[0], Types.STRING())), steps)
    with pytest.raises(TidegateError) as caught:
        job.run(1, **{"restart-strategy.type": "none"})
    error: BaseException | None = caught.value
    return f"{error} {error.__cause__ if isinstance(error, JobFailedError) else ''}"


@pytest.mark.parametrize("windows", [TUMBLING, SESSIONS], ids=["sliced", "general"])
def test_a_record_without_a_timestamp_is_named(windows: Any, tmp_path: Path) -> None:
    text = failed(tmp_path, lambda k: k.window(windows).reduce(lambda a, b: b), [("a", 0, 1)])
    assert "Records need timestamps to be put into event-time windows" in text
    assert re.search(rf"operator '{type(windows).__name__}', added at .*test_window_errors\.py:\d+", text)
    assert "Long.MIN_VALUE timestamp (= no timestamp marker)" in text
    assert "assign_timestamps_and_watermarks" in text


@pytest.mark.parametrize("windows", [TUMBLING, SESSIONS], ids=["sliced", "general"])
def test_an_error_of_a_window_function_names_operator_window_and_line(windows: Any, tmp_path: Path) -> None:
    text = failed(tmp_path, lambda k: k.window(windows).process(Fails()), timed([("a", 5, 1)]))
    assert "ValueError: out of order" in text
    assert f"operator '{type(windows).__name__}', TimeWindow(start=" in text
    assert "test_window_errors.py" in text


def test_merging_windows_have_no_state_of_their_own(tmp_path: Path) -> None:
    text = failed(tmp_path, lambda k: k.window(SESSIONS).process(WindowState()), timed([("a", 5, 1)]))
    assert "Per-window state is not allowed when using merging windows." in text


def test_a_gap_is_more_than_nothing(tmp_path: Path) -> None:
    windows = EventTimeSessionWindows.with_dynamic_gap(lambda record: 0)
    text = failed(tmp_path, lambda k: k.window(windows).reduce(lambda a, b: b), [At(1, ("a", 1, 1))])
    assert "Dynamic session time gap must satisfy 0 < gap" in text
    assert "operator 'DynamicEventTimeSessionWindows'" in text
