"""Late records: the watermark follows every record before the next one comes. PyFlink is given the time it needs for that."""

from __future__ import annotations

import time
from typing import Any

from tests.compat.differential.catalog import first, program, whole
from tests.compat.differential.engine_api import (
    ROOT,
    Configuration,
    Duration,
    KeyedProcessFunction,
    OutputTag,
    Time,
    Types,
    WatermarkStrategy,
    window,
)
from tests.compat.differential.timer_programs import MONOTONOUS, SecondField, Times
from tests.compat.differential.window_programs import TUMBLING, AllListed, Counting, EverySecond, Listed, Mean, Whole

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
EVENTS = [("a", 1), ("b", 12), ("a", 3), ("a", 25), ("b", 14), ("a", 11)]
EVENTS += [("b", 26), ("a", 24), ("a", 50), ("b", 23), ("a", 41), ("a", 48)]
PAUSE = ("pause", 0)
SLIDING = window.SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10))
SESSION = window.EventTimeSessionWindows.with_gap(Time.milliseconds(6))
ONE_BY_ONE = {"tidegate.round.max-records": "1", "python.fn-execution.bundle.size": "1"}
TEN_BEHIND = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10))


def waited(value: Any) -> Any:
    if value == PAUSE and ROOT == "pyflink":
        time.sleep(0.6)  # Flink's watermarks come every 200 ms of the clock
    return value


def slowly(env: Any, strategy: Any = MONOTONOUS) -> Any:
    configuration = Configuration()
    for key, value in ONE_BY_ONE.items():
        configuration.set_string(key, value)
    env.configure(configuration)
    values = [value for event in EVENTS for value in (event, PAUSE)]
    # in another task than the source's: there watermarks wait for its lock
    stream = env.from_collection(values, PAIR).rebalance().map(waited, PAIR).filter(lambda v: v[0] != "pause")
    return stream.assign_timestamps_and_watermarks(strategy)


def keyed(env: Any, strategy: Any = MONOTONOUS) -> Any:
    return slowly(env, strategy).key_by(lambda v: v[0], Types.STRING())


def name_and_key(record: Any) -> Any:
    """Which of two keys is told first when both fire nobody says."""
    return record[:2]


def late() -> Any:
    return OutputTag("late", Types.TUPLE([Types.STRING(), Types.INT()]))


def with_late(main: Any, name: str) -> Any:
    late_ones = main.get_side_output(late()).map(lambda r, name=name: (f"{name}, late", *r))
    return main.map(lambda r, name=name: (name, *r)).union(late_ones)


@program(parallelisms=(1,), key=whole)
def watermarks_behind_every_record(env: Any) -> Any:
    return slowly(env).process(Times())


@program(parallelisms=(1,), key=name_and_key)
def late_records_of_windows(env: Any) -> Any:
    """A record is late for the windows whose end has passed; aside goes one that is in no window any more."""
    stream = keyed(env)
    tumbling = stream.window(TUMBLING).side_output_late_data(late()).process(Listed())
    sliding = stream.window(SLIDING).side_output_late_data(late()).aggregate(Mean(), Whole())
    sessions = stream.window(SESSION).side_output_late_data(late()).process(Listed())
    return with_late(tumbling, "tumbling").union(with_late(sliding, "sliding"), with_late(sessions, "sessions"))


@program(parallelisms=(1,), key=name_and_key)
def late_records_of_windows_that_wait(env: Any) -> Any:
    """With an allowed lateness a window fires again for each, with all it has; a purging trigger with the late one alone."""
    stream = keyed(env)
    tumbling = stream.window(TUMBLING).allowed_lateness(12).side_output_late_data(late()).process(Listed())
    sliding = stream.window(SLIDING).allowed_lateness(5).side_output_late_data(late())
    reduced = sliding.reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())
    purging = window.PurgingTrigger.of(window.EventTimeTrigger.create())
    purged = (
        stream.window(TUMBLING).trigger(purging).allowed_lateness(12).side_output_late_data(late()).process(Listed())
    )
    return with_late(tumbling, "tumbling").union(with_late(reduced, "sliding"), with_late(purged, "purged"))


@program(parallelisms=(1,), key=name_and_key)
def late_records_of_sessions_that_wait(env: Any) -> Any:
    windows = keyed(env).window(SESSION).allowed_lateness(15).side_output_late_data(late())
    return with_late(windows.aggregate(Mean(), Whole()), "sessions")


@program(parallelisms=(1,), key=name_and_key)
def late_records_behind_bounded_out_of_orderness(env: Any) -> Any:
    windows = keyed(env, TEN_BEHIND.with_timestamp_assigner(SecondField())).window(TUMBLING)
    return with_late(windows.side_output_late_data(late()).process(Listed()), "bounded")


@program(parallelisms=(1,), key=first)
def state_of_windows_that_wait(env: Any) -> Any:
    """It is cleared when no late record can come any more."""
    stream = keyed(env)
    own = stream.window(TUMBLING).trigger(EverySecond()).allowed_lateness(12).process(Counting())
    default = stream.window(TUMBLING).allowed_lateness(12).process(Counting())
    return own.union(default.map(lambda r: (f"{r[0]} default", *r[1:])))


@program(parallelisms=(1,), key=whole)
def late_records_of_all_windows(env: Any) -> Any:
    return slowly(env).window_all(TUMBLING).allowed_lateness(12).process(AllListed())


class Behind(KeyedProcessFunction):
    """Timers behind the watermark, at it and ahead of it; one that is deleted."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        now = timers.current_watermark()
        yield value[0], "record", value[1], now
        if now > 0:
            for at in (now - 3, now, now + 1):
                timers.register_event_time_timer(at)
        timers.register_event_time_timer(value[1] + 2)
        timers.register_event_time_timer(value[1] + 3)
        timers.delete_event_time_timer(value[1] + 3)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp, ctx.timer_service().current_watermark()


@program(parallelisms=(1,), key=first)
def timers_behind_the_watermark(env: Any) -> Any:
    return keyed(env).process(Behind())
