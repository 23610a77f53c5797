"""BATCH mode: windows, timers, connected streams, broadcast state. Nothing is late; what is due fires when the key ends.

PyFlink runs them in its thread mode. In process mode records and timers go to Python in bundles, while Flink drops the state of a
key as soon as the next one comes: results are missing, or the job comes to no end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compat.differential.catalog import Key, first
from tests.compat.differential.catalog import program as any_program
from tests.compat.differential.connected_programs import LEFT, RIGHT, RULES
from tests.compat.differential.engine_api import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    Time,
    Types,
    ValueStateDescriptor,
    window,
)
from tests.compat.differential.timer_programs import BOUNDED, MONOTONOUS, events
from tests.compat.differential.window_programs import (
    EVENTS,
    SESSION,
    SLIDING,
    TUMBLING,
    AllListed,
    Counting,
    EverySecond,
    Gap,
    Listed,
    Mean,
    Whole,
    described,
)

SCATTERED = [*EVENTS, *((key, moment * 37 % 101) for moment in range(12) for key in ("a", "c"))]
"""Far out of order: in STREAMING mode the watermarks of a monotonous stream would make many of them late."""


def program(
    parallelisms: tuple[int, ...] = (2,), key: Key | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return any_program(parallelisms=parallelisms, key=key, modes=("BATCH",), in_threads=True)


def keyed(env: Any, strategy: Any = MONOTONOUS) -> Any:
    return events(env, strategy, SCATTERED).key_by(lambda v: v[0], key_type=Types.STRING())


@program(parallelisms=(1, 2), key=first)
def tumbling_windows_in_batch_mode(env: Any) -> Any:
    return keyed(env).window(TUMBLING).process(Listed())


@program(key=first)
def tumbling_windows_behind_bounded_out_of_orderness_in_batch_mode(env: Any) -> Any:
    """A watermark that would not pass the last windows does not hold them back."""
    return keyed(env, BOUNDED).window(TUMBLING).aggregate(Mean(), Whole())


@program(key=first)
def sliding_windows_in_batch_mode(env: Any) -> Any:
    return keyed(env).window(SLIDING).reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program(key=first)
def sessions_in_batch_mode(env: Any) -> Any:
    return keyed(env).window(SESSION).process(Listed())


@program(key=first)
def sessions_with_gaps_of_their_own_in_batch_mode(env: Any) -> Any:
    windows = keyed(env).window(window.EventTimeSessionWindows.with_dynamic_gap(Gap()))
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program()
def all_windows_in_batch_mode(env: Any) -> Any:
    return events(env, MONOTONOUS, SCATTERED).window_all(TUMBLING).process(AllListed())


@program(key=first)
def windows_with_a_trigger_of_the_program_in_batch_mode(env: Any) -> Any:
    """With state of the window and of the key."""
    return keyed(env).window(TUMBLING).trigger(EverySecond()).process(Counting())


@program(key=first)
def windows_that_fire_again_and_again_in_batch_mode(env: Any) -> Any:
    trigger = window.PurgingTrigger.of(window.ContinuousEventTimeTrigger.of(Time.milliseconds(4)))
    return keyed(env).window(TUMBLING).trigger(trigger).process(Listed())


@program(key=first)
def count_and_global_windows_in_batch_mode(env: Any) -> Any:
    purging = window.PurgingTrigger.of(window.CountTrigger.of(3))
    whole = keyed(env).window(window.GlobalWindows.create()).trigger(purging).process(Listed())
    return whole.union(keyed(env).count_window(3, 2).process(Listed()).map(lambda r: (f"{r[0]} counted", *r[1:])))


@program(key=first)
def processing_time_windows_in_batch_mode(env: Any) -> Any:
    """They end with the records of the key, as all time does."""
    days = window.TumblingProcessingTimeWindows.of(Time.days(10000))
    return keyed(env).window(days).process(Listed())


class Aside(ProcessWindowFunction):
    told = OutputTag("told", Types.STRING())

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        values = [element[1] for element in elements]
        yield self.told, f"{key} {described(context.window())} {values}"
        yield key, sum(values)


@program(key=first)
def windows_behind_windows_in_batch_mode(env: Any) -> Any:
    """After the first ones nothing is late either; late records and side outputs."""
    late = OutputTag("late", Types.PICKLED_BYTE_ARRAY())
    once = keyed(env).window(TUMBLING).allowed_lateness(5).side_output_late_data(late).process(Aside())
    twice = once.key_by(lambda v: v[0], Types.STRING()).window(SLIDING).process(Listed())
    told = once.get_side_output(Aside.told).map(lambda text: ("told", text))
    return twice.union(once.get_side_output(late).map(lambda v: ("late", v)), told.map(lambda r: (r[1], "told")))


class TimersOfTimers(KeyedProcessFunction):
    """Timers in the past and in the future, of both domains; some that are deleted; some that timers set."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        self.seen.add(value[1])
        for time in (value[1] + 50, -5, 20):
            timers.register_event_time_timer(time)
        timers.register_event_time_timer(70)
        if value[1] > 60:
            timers.delete_event_time_timer(70)
        yield value[0], "record", value[1], ctx.timestamp(), timers.current_watermark() < 0

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp, list(self.seen.get()), ctx.timer_service().current_watermark()
        if timestamp == 20:
            ctx.timer_service().register_event_time_timer(1000)
            ctx.timer_service().register_event_time_timer(10)
        if timestamp == 1000:
            self.seen.clear()


@program(parallelisms=(1, 2), key=first)
def timers_of_timers_in_batch_mode(env: Any) -> Any:
    return keyed(env).process(TimersOfTimers())


class BothSides(KeyedCoProcessFunction):
    """The records of both inputs as they come, and when the key ends how many there were."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def _seen(self, side: str, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(1000)
        return value[0], side, value[1], self.count.value()

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield self._seen("left", value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield self._seen("right", value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp, self.count.value()


@program(parallelisms=(1, 2), key=first)
def keyed_connected_streams_in_batch_mode(env: Any) -> Any:
    """By their timestamps, whichever input they are of."""
    left = events(env, MONOTONOUS, [*LEFT, ("a", 35), ("b", 25), ("a", 0)])
    right = events(env, MONOTONOUS, RIGHT)
    return left.connect(right).key_by(lambda v: v[0], lambda v: v[0], Types.STRING()).process(BothSides())


class RulesFirst(KeyedBroadcastProcessFunction):
    """Every record sees every rule."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(1000)
        rules = ctx.get_broadcast_state(RULES)
        yield value[0], value[1], [rules.get(name) for name in ("a", "b", "d", "e")]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.get_broadcast_state(RULES).get("a")


@program(parallelisms=(1, 2), key=first)
def broadcast_rules_in_batch_mode(env: Any) -> Any:
    left, right = events(env, MONOTONOUS, LEFT), events(env, MONOTONOUS, RIGHT)
    return left.key_by(lambda v: v[0], Types.STRING()).connect(right.broadcast(RULES)).process(RulesFirst())
