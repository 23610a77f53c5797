"""Windows: assigners, triggers, functions, state. Watermarks stand still before the end of input, so no record is late."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    Time,
    TimestampAssigner,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
    window,
)

EVENTS = [
    ("a", 1),
    ("b", 4),
    ("a", 6),
    ("a", 3),
    ("b", 19),
    ("a", 22),
    ("b", 11),
    ("a", 24),
    ("a", 37),
    ("b", 38),
    ("a", 50),
]


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


NO_WATERMARKS = WatermarkStrategy.no_watermarks().with_timestamp_assigner(SecondField())


def events(env: Any, values: list[Any] = EVENTS) -> Any:
    """In order, from one subtask."""
    parallelism = env.get_parallelism()
    env.set_parallelism(1)
    stream = env.from_collection(values, Types.TUPLE([Types.STRING(), Types.INT()]))
    stream = stream.assign_timestamps_and_watermarks(NO_WATERMARKS)
    env.set_parallelism(parallelism)
    return stream


def keyed(env: Any, values: list[Any] = EVENTS) -> Any:
    return events(env, values).key_by(lambda v: v[0], key_type=Types.STRING())


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def described(found: Any) -> Any:
    return (found.start, found.end) if hasattr(found, "start") else repr(found)


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, described(context.window()), [element[1] for element in elements]


class Whole(ProcessWindowFunction):
    """Of the one value that an aggregation hands over."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, described(context.window()), list(elements)


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return [(key, described(window), [value[1] for value in inputs])]


class Times(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (*value, ctx.timestamp())


TUMBLING = window.TumblingEventTimeWindows.of(Time.milliseconds(10))
SHIFTED = window.TumblingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(-3))
SLIDING = window.SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(8))
EVEN = window.SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(5), Time.milliseconds(2))
GAPS = window.SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(12))
SESSION = window.EventTimeSessionWindows.with_gap(Time.milliseconds(5))


@program(parallelisms=(1, 2), key=first)
def tumbling_windows_listed(env: Any) -> Any:
    return keyed(env).window(TUMBLING).process(Listed())


@program(key=first)
def shifted_windows_applied(env: Any) -> Any:
    return keyed(env).window(SHIFTED).apply(Applied())


@program(key=first)
def times_of_window_results(env: Any) -> Any:
    """The last millisecond of the window."""
    return keyed(env).window(TUMBLING).process(Listed()).process(Times())


@program(key=first)
def tumbling_windows_reduced(env: Any) -> Any:
    return keyed(env).window(TUMBLING).reduce(lambda a, b: (a[0], a[1] + b[1]))


@program(key=first)
def tumbling_windows_reduced_with_a_function(env: Any) -> Any:
    return keyed(env).window(TUMBLING).reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program(key=first)
def tumbling_windows_aggregated(env: Any) -> Any:
    windows = keyed(env).window(TUMBLING)
    return windows.aggregate(Mean(), Whole(), Types.TUPLE([Types.LONG(), Types.LONG()]))


@program()
def aggregates_without_a_function(env: Any) -> Any:
    return keyed(env).window(TUMBLING).aggregate(Mean(), output_type=Types.DOUBLE())


@program(key=first)
def sliding_windows_listed(env: Any) -> Any:
    return keyed(env).window(SLIDING).process(Listed())


@program(key=first)
def sliding_windows_aggregated(env: Any) -> Any:
    return keyed(env).window(SLIDING).aggregate(Mean(), Whole())


@program(key=first)
def even_sliding_windows_reduced(env: Any) -> Any:
    return keyed(env).window(EVEN).reduce(lambda a, b: (a[0], max(a[1], b[1])), Whole())


@program(key=first)
def sliding_windows_with_gaps(env: Any) -> Any:
    return keyed(env).window(GAPS).reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program(parallelisms=(1, 2), key=first)
def sessions_counted(env: Any) -> Any:
    return keyed(env).window(SESSION).aggregate(Mean(), Whole())


class Gap(window.SessionWindowTimeGapExtractor):  # type: ignore[misc]
    def extract(self, element: Any) -> int:
        return 2 if element[0] == "a" else 7


@program(key=first)
def sessions_with_gaps_of_their_own(env: Any) -> Any:
    """Of each session the sum: in which order merged sessions list their records is not said. No record joins two sessions:
    PyFlink 2.3 then loses one of them."""
    windows = keyed(env).window(window.EventTimeSessionWindows.with_dynamic_gap(Gap()))
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program(key=first)
def count_windows(env: Any) -> Any:
    return keyed(env).count_window(2).process(Listed())


@program(key=first)
def sliding_count_windows(env: Any) -> Any:
    return keyed(env).count_window(3, 2).process(Listed())


@program(key=first)
def global_windows_with_a_count(env: Any) -> Any:
    windows = keyed(env).window(window.GlobalWindows.create())
    return windows.trigger(window.PurgingTrigger.of(window.CountTrigger.of(3))).process(Listed())


@program(key=first)
def windows_that_keep_what_fired(env: Any) -> Any:
    return keyed(env).window(TUMBLING).trigger(window.CountTrigger.of(2)).process(Listed())


class EverySecond(window.Trigger):  # type: ignore[misc]
    """Fires with every second record of a window, and at its end."""

    def __init__(self) -> None:
        self.seen = ReducingStateDescriptor("seen", lambda a, b: a + b, Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(window.max_timestamp())
        seen = ctx.get_partitioned_state(self.seen)
        seen.add(1)
        return TriggerResult.FIRE if seen.get() % 2 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> Any:
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> Any:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.seen)
        ctx.register_event_time_timer(window.max_timestamp())

    def can_merge(self) -> bool:
        return True

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.seen).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


TriggerResult = window.TriggerResult


@program(key=first)
def windows_with_a_trigger_of_the_program(env: Any) -> Any:
    return keyed(env).window(TUMBLING).trigger(EverySecond()).process(Listed())


@program(key=first)
def sessions_with_a_trigger_of_the_program(env: Any) -> Any:
    """Its state survives merges."""
    windows = keyed(env).window(SESSION).trigger(EverySecond())
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


class EvenAndOdd(window.WindowAssigner):  # type: ignore[misc]
    """Two windows of a program's own, told apart by the record."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        start = 1000 if element[1] % 2 else 0
        return [window.TimeWindow(start, start + 1000)]

    def get_default_trigger(self, env: Any) -> Any:
        return window.EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return window.TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


@program(key=first)
def windows_of_an_assigner_of_the_program(env: Any) -> Any:
    return keyed(env).window(EvenAndOdd()).process(Listed())


class Counting(ProcessWindowFunction):
    """How often this window, and any window of the key, has fired."""

    def open(self, runtime_context: Any) -> None:
        self.mine = ValueStateDescriptor("mine", Types.LONG())
        self.every = ValueStateDescriptor("every", Types.LONG())

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        mine = context.window_state().get_state(self.mine)
        mine.update((mine.value() or 0) + 1)
        every = context.global_state().get_state(self.every)
        every.update((every.value() or 0) + 1)
        yield key, described(context.window()), mine.value(), every.value(), len(list(elements))

    def clear(self, context: Any) -> None:
        context.window_state().get_state(self.mine).clear()


@program(key=first)
def state_of_windows_and_of_keys(env: Any) -> Any:
    return keyed(env).window(TUMBLING).trigger(EverySecond()).process(Counting())


class AllListed(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        yield described(context.window()), [element[1] for element in elements]


class AllApplied(AllWindowFunction):
    def apply(self, window: Any, inputs: Any) -> Any:
        yield described(window), [value[1] for value in inputs]


@program()
def all_windows_listed(env: Any) -> Any:
    return events(env).window_all(TUMBLING).process(AllListed())


@program()
def all_windows_applied(env: Any) -> Any:
    return events(env).window_all(SLIDING).apply(AllApplied())


@program()
def all_windows_reduced(env: Any) -> Any:
    return events(env).window_all(SESSION).reduce(lambda a, b: (a[0], a[1] + b[1]))


@program(fails_with="Long.MIN_VALUE timestamp")
def windows_need_timestamps(env: Any) -> Any:
    return env.from_collection([("a", 1)]).key_by(lambda v: v[0]).window(TUMBLING).process(Listed())


@program()
def the_end_of_input_ends_no_processing_time_window(env: Any) -> Any:
    days = window.TumblingProcessingTimeWindows.of(Time.days(10000))
    return keyed(env).window(days).process(Listed())
