"""Event time and processing time end to end: watermarks, timers of both kinds, idleness, late records."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.functions import CountRecords
from tests.sources import At, Pause, ScriptedSource
from tidegate.common import Duration, Time, TimestampAssigner, Types, WatermarkStrategy
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeDomain,
)
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

MIN, MAX = -(1 << 63), (1 << 63) - 1
NONE = WatermarkStrategy.no_watermarks()
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class ShowTime(ProcessFunction):
    """The record's timestamp and the watermark it meets."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


def test_no_timestamps_unless_somebody_gives_them(env: StreamExecutionEnvironment) -> None:
    found = list(env.from_collection(["a"]).process(ShowTime()).execute_and_collect())
    assert found == [("a", None, MIN)]


def one_at_a_time(*records: Any) -> ScriptedSource:
    """A round for each record, so that the watermark of one is there before the next."""
    script: list[Any] = []
    for record in records:
        script += [record, Pause(1)]
    return ScriptedSource(script)


def test_monotonous_watermarks_follow_the_greatest_timestamp(make_env: Any) -> None:
    strategy = MONOTONOUS.with_timestamp_assigner(SecondField())
    source = one_at_a_time(("a", 10), ("b", 20), ("c", 15))
    found = make_env(parallelism=1).from_source(source, strategy, "s").rebalance().process(ShowTime())
    assert [(ts, wm) for _, ts, wm in found.execute_and_collect()] == [(10, MIN), (20, 9), (15, 19)]


def test_bounded_out_of_orderness_waits(make_env: Any) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))
    stream = make_env(parallelism=1).from_source(one_at_a_time(At(10, "a"), At(30, "b"), At(12, "c")), strategy, "s")
    found = list(stream.rebalance().process(ShowTime()).execute_and_collect())
    assert found == [("a", 10, MIN), ("b", 30, 4), ("c", 12, 24)]


def test_timestamps_assigned_inside_the_stream_replace_the_former(make_env: Any) -> None:
    stream = make_env(parallelism=1).from_source(one_at_a_time(At(1, ("a", 100)), At(2, ("b", 200))), MONOTONOUS, "s")
    again = stream.assign_timestamps_and_watermarks(MONOTONOUS.with_timestamp_assigner(SecondField()))
    found = list(again.rebalance().process(ShowTime()).execute_and_collect())
    assert found == [(("a", 100), 100, MIN), (("b", 200), 200, 99)]


def test_an_assigner_sees_the_timestamp_the_record_had(make_env: Any) -> None:
    stream = make_env(parallelism=1).from_source(ScriptedSource([At(7, "a")]), NONE, "s")
    later = stream.assign_timestamps_and_watermarks(
        MONOTONOUS.with_timestamp_assigner(lambda value, before: before + 1)
    )
    assert list(later.process(ShowTime()).execute_and_collect()) == [("a", 8, MIN)]


class AlarmClock(KeyedProcessFunction):
    """Sets an event-time timer for each ('set', time), deletes it for ('delete', time), tells when it rings."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        _, what, moment = value
        service = ctx.timer_service()
        if what == "set":
            service.register_event_time_timer(moment)
        elif what == "delete":
            service.delete_event_time_timer(moment)
        yield ("seen", ctx.get_current_key(), moment, service.current_watermark())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        assert ctx.timestamp() == timestamp
        yield ("ring", ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark())


def alarm_clock(env: StreamExecutionEnvironment, *records: Any) -> Any:
    stream = env.from_source(one_at_a_time(*records), MONOTONOUS, "s")
    return stream.key_by(lambda v: v[0]).process(AlarmClock())


def test_event_time_timers_ring_in_order_once_and_only_after_the_watermark(make_env: Any) -> None:
    stream = alarm_clock(
        make_env(),
        At(10, ("a", "set", 40)),
        At(11, ("a", "set", 30)),
        At(12, ("a", "set", 30)),
        At(41, ("b", "other", 0)),
        At(42, ("b", "other", 0)),
    )
    found = list(stream.execute_and_collect())
    assert [v for v in found if v[0] == "ring"] == [("ring", "a", 30, 40), ("ring", "a", 40, 40)]


def test_a_deleted_timer_does_not_ring(make_env: Any) -> None:
    stream = alarm_clock(
        make_env(),
        At(10, ("a", "set", 30)),
        At(11, ("a", "delete", 30)),
        At(12, ("b", "set", 30)),
        At(50, ("b", "", 0)),
    )
    assert [v[:3] for v in stream.execute_and_collect() if v[0] == "ring"] == [("ring", "b", 30)]


def test_at_the_end_of_input_all_event_timers_ring(make_env: Any) -> None:
    stream = alarm_clock(make_env(), At(10, ("a", "set", 5_000)), At(11, ("b", "set", 4_000)))
    rung = [v for v in stream.execute_and_collect() if v[0] == "ring"]
    assert sorted(rung) == [("ring", "a", 5_000, MAX), ("ring", "b", 4_000, MAX)]


def test_batch_mode_has_one_watermark_at_the_end(make_env: Any) -> None:
    env = make_env().set_runtime_mode(RuntimeExecutionMode.BATCH)
    found = list(alarm_clock(env, At(10, ("a", "set", 20)), At(100, ("a", "", 0))).execute_and_collect())
    assert [v[3] for v in found] == [MIN, MIN, MAX]
    assert found[-1][:3] == ("ring", "a", 20)


def test_what_an_event_timer_emits_carries_its_time(make_env: Any) -> None:
    stream = alarm_clock(make_env(), At(10, ("a", "set", 20)), At(100, ("a", "", 0))).process(ShowTime())
    found = {value[0]: timestamp for value, timestamp, _ in stream.execute_and_collect() if value[0] == "ring"}
    assert found == {"ring": 20}


LATE = OutputTag("late", Types.STRING())


class DropLate(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if ctx.timestamp() <= ctx.timer_service().current_watermark():  # type: ignore[operator]
            yield LATE, value
        else:
            yield value


def test_late_records_to_a_side_output(make_env: Any) -> None:
    source = one_at_a_time(At(10, "a"), At(50, "b"), At(20, "late"), At(60, "c"))
    stream = make_env().from_source(source, MONOTONOUS, "s").key_by(lambda v: "all").process(DropLate())
    found = list(stream.union(stream.get_side_output(LATE).map(lambda v: f"!{v}")).execute_and_collect())
    assert sorted(found) == ["!late", "a", "b", "c"]


def test_the_slowest_input_holds_event_time_back(make_env: Any) -> None:
    fast = ScriptedSource([At(1_000, ("a", "set", 10)), Pause(1), At(2_000, ("a", "", 0))])
    slow = ScriptedSource([At(5, ("b", "", 0))], ends=False)
    env = make_env()
    united = env.from_source(fast, MONOTONOUS, "fast").union(env.from_source(slow, MONOTONOUS, "slow"))
    with united.key_by(lambda v: v[0]).process(AlarmClock()).execute_and_collect() as found:
        # The fast source ends, and then only the slow one's watermark counts: the timer at 10 waits after 4.
        seen = [found.next() for _ in range(3)]
    assert all(what == "seen" and watermark <= 4 for what, _, _, watermark in seen)


def test_an_idle_source_does_not_hold_event_time_back(make_env: Any) -> None:
    strategy = MONOTONOUS.with_idleness(Duration.of_millis(300))
    busy = ScriptedSource([At(1_000, ("a", "set", 10)), Pause(1), At(2_000, ("a", "", 0))], ends=False)
    silent = ScriptedSource([At(5, ("b", "", 0))], ends=False)
    env = make_env()
    united = env.from_source(busy, MONOTONOUS, "busy").union(env.from_source(silent, strategy, "silent"))
    with united.key_by(lambda v: v[0]).process(AlarmClock()).execute_and_collect() as found:
        # Nothing more comes in: it is the idleness itself that wakes the job and lets the timer ring.
        rung = next(v for v in found if v[0] == "ring")
    assert rung[:3] == ("ring", "a", 10)


class Timeout(KeyedProcessFunction):
    """Rings some time after a key's last record, if nothing else came: processing time."""

    def open(self, runtime_context: Any) -> None:
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        service = ctx.timer_service()
        if self.timer.value() is not None:
            service.delete_processing_time_timer(self.timer.value())
        moment = service.current_processing_time() + value[1]
        service.register_processing_time_timer(moment)
        self.timer.update(moment)
        yield "seen", value[0], None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
        assert timestamp == self.timer.value()
        assert ctx.timer_service().current_processing_time() >= timestamp
        yield "timeout", ctx.get_current_key(), None


def test_processing_time_timers_ring_without_input_and_can_be_deleted(make_env: Any) -> None:
    source = ScriptedSource([("a", 60_000), ("b", 60_000), Pause(1), ("a", 200), ("b", 400)], ends=False)
    stream = make_env().from_source(source, NONE, "s").key_by(lambda v: v[0]).process(Timeout())
    with stream.execute_and_collect() as found:
        rung = list(islice((v for v in found if v[0] == "timeout"), 2))
    assert sorted(key for _, key, _ in rung) == ["a", "b"]


def test_what_a_processing_timer_emits_has_no_timestamp(make_env: Any) -> None:
    source = ScriptedSource([At(5, ("a", 1))], ends=False)
    stream = make_env().from_source(source, MONOTONOUS, "s").key_by(lambda v: v[0]).process(Timeout())
    with stream.process(ShowTime()).execute_and_collect() as found:
        times = {value[0]: timestamp for value, timestamp, _ in islice(found, 2)}
    assert times == {"seen": 5, "timeout": None}


class EveryHour(KeyedProcessFunction):
    """Counts per hour of event time, with timers that may have been set many rounds ago."""

    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        hour = ctx.timestamp() // 3_600  # type: ignore[operator]
        self.counts.put(hour, (self.counts.get(hour) or 0) + 1)
        ctx.timer_service().register_event_time_timer(hour * 3_600 + 3_599)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        hour = timestamp // 3_600
        yield ctx.get_current_key(), hour, self.counts.get(hour)
        self.counts.remove(hour)


@pytest.mark.parametrize("limit", [1_000_000, 60])
def test_windows_by_timers_do_not_depend_on_the_rounds(make_env: Any, limit: int) -> None:
    records = [(key, t) for t in range(0, 14_400, 120) for key in ("a", "b", "c")]
    strategy = MONOTONOUS.with_timestamp_assigner(SecondField())
    env = make_env({"tidegate.round.max-records": limit})
    stream = env.from_collection(records).assign_timestamps_and_watermarks(strategy).key_by(lambda v: v[0])
    found = sorted(stream.process(EveryHour()).execute_and_collect())
    assert found == [(key, hour, 30) for key in ("a", "b", "c") for hour in range(4)]


def write_times(directory: Path, name: str, times: range, width: int) -> None:
    directory.mkdir(exist_ok=True)
    with open(directory / name, "w") as file:
        file.writelines(f"{time:<{width}}\n" for time in times)


def windows_over_files(env: StreamExecutionEnvironment, directory: Path) -> DataStream:
    """How many records each window of a second and key has."""
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(directory)).build()
    strategy = MONOTONOUS.with_timestamp_assigner(lambda line, _: int(line))
    lines = env.from_source(source, strategy, "files", Types.STRING())
    keyed = lines.key_by(lambda line: int(line) % 10, Types.LONG())
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).aggregate(
        CountRecords(), output_type=Types.LONG()
    )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_over_files_in_time_order_take_every_record_of_many_rounds(
    make_env: Any, tmp_path: Path, parallelism: int
) -> None:
    """Files of very different sizes: every round ends in the middle of one, or between two."""
    for name, times in (("a", range(20_000)), ("b", range(20_000, 21_000)), ("c", range(21_000, 40_000))):
        write_times(tmp_path / "in", name, times, 20)
    env = make_env({"tidegate.round.max-records": 200_000, "tidegate.chunk.records": 100}, parallelism=parallelism)
    found = list(windows_over_files(env, tmp_path / "in").execute_and_collect())
    assert found == [100] * 400


@pytest.mark.slow
def test_windows_over_two_files_of_90_megabytes_of_the_same_time_lose_no_record(make_env: Any, tmp_path: Path) -> None:
    """Each is read in order by one of two subtasks. Cut into parts, a third of the records would be late."""
    for name in "ab":
        write_times(tmp_path / "in", name, range(450_000), 199)
    assert (tmp_path / "in" / "a").stat().st_size == 90_000_000
    found = list(windows_over_files(make_env(parallelism=2), tmp_path / "in").execute_and_collect())
    assert sum(found) == 900_000
    assert found == [200] * 4_500
