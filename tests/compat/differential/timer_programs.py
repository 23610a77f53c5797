"""Event time: timestamps, watermarks where they are determined, timers up to the end of input."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    Duration,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    TimestampAssigner,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

EVENTS = [("a", 10), ("b", 12), ("a", 11), ("a", 30), ("b", 9), ("a", 25), ("b", 40)]
MIN, MAX = -(1 << 63), (1 << 63) - 1


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


NONE = WatermarkStrategy.no_watermarks().with_timestamp_assigner(SecondField())
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(100)).with_timestamp_assigner(SecondField())


def events(env: Any, strategy: Any, values: list[Any] = EVENTS) -> Any:
    """In order, from one subtask: two would deal the records of a key out to two channels."""
    parallelism = env.get_parallelism()
    env.set_parallelism(1)
    stream = env.from_collection(values).assign_timestamps_and_watermarks(strategy)
    env.set_parallelism(parallelism)
    return stream


def timestamp(ctx: Any) -> int | None:
    """A record without one has None in PyFlink's documentation and thread mode, the least integer in its process mode."""
    found: int | None = ctx.timestamp()
    return None if found == MIN else found


class Times(ProcessFunction):
    """The record with its timestamp and the watermark, which stands still before the end of input."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, timestamp(ctx), ctx.timer_service().current_watermark()


class KeyedTimes(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, timestamp(ctx), ctx.timer_service().current_watermark()


@program(modes=("STREAMING", "BATCH"))
def times_without_timestamps(env: Any) -> Any:
    """No timestamp, and the least watermark: with a key and without."""
    numbers = env.from_collection([1, 2]).rebalance()
    keyed = numbers.key_by(lambda v: v).process(KeyedTimes())
    return numbers.process(Times()).union(keyed.map(lambda r: ("keyed", *r)))


@program(parallelisms=(1, 2), modes=("STREAMING", "BATCH"))
def times_behind_an_assigner(env: Any) -> Any:
    """A timestamp stays with what is made of its record: through maps, flat maps, filters, keys and reductions."""
    stream = events(env, NONE)
    near = stream.process(Times())
    mapped = stream.map(lambda v: v).flat_map(lambda v: [v, v]).filter(lambda v: True)
    far = mapped.rebalance().process(Times()).map(lambda r: ("far", *r))
    keyed = stream.key_by(lambda v: v[0]).process(KeyedTimes()).map(lambda r: ("keyed", *r))
    reduced = stream.key_by(lambda v: v[0]).sum(1).process(Times()).map(lambda r: ("reduced", *r))
    return near.union(far, keyed, reduced)


class Former(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return -5 if record_timestamp < -1000 else record_timestamp + 1


@program(parallelisms=(1,))
def a_second_assigner_sees_the_former_timestamp(env: Any) -> Any:
    again = WatermarkStrategy.no_watermarks().with_timestamp_assigner(Former())
    fresh = env.from_collection([("x", 0)]).assign_timestamps_and_watermarks(again)
    return fresh.union(events(env, NONE).assign_timestamps_and_watermarks(again).filter(lambda v: v[1] == 40)).process(
        Times()
    )


class Reminders(KeyedProcessFunction):
    """One timer per record, at the record's time plus 5; tells what it finds when the timer fires."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield value[0], "record", value[1]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp, ctx.timestamp(), str(ctx.time_domain())


def of_timers(record: Any) -> Any:
    """Timers of a key are compared in their order, its records are not: BATCH mode sorts them by timestamp in Flink."""
    return record if record[1] == "record" else record[:2]


@program(key=of_timers, modes=("STREAMING", "BATCH"))
def timers_with_bounded_out_of_orderness(env: Any) -> Any:
    return events(env, BOUNDED).key_by(lambda v: v[0]).process(Reminders())


@program(key=of_timers)
def timers_with_monotonous_timestamps(env: Any) -> Any:
    rising = sorted(EVENTS, key=lambda v: v[1])
    return events(env, MONOTONOUS, rising).key_by(lambda v: v[0], Types.STRING()).process(Reminders())


class AtTheEnd(KeyedProcessFunction):
    """Timers of every sort, all fired by the end of input: before it no watermark passes any of them."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        for time in (50, 20, 20, MAX, 70, -3, 60):
            timers.register_event_time_timer(time)
        timers.delete_event_time_timer(70)
        timers.delete_event_time_timer(80)
        timers.delete_event_time_timer(60)
        timers.register_event_time_timer(60)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


@program(parallelisms=(1, 2), key=first, modes=("STREAMING", "BATCH"))
def timers_at_the_end_of_input(env: Any) -> Any:
    """In order. Duplicates are one; deleted ones do not fire; those in the past do."""
    return events(env, NONE, [("a", 1), ("b", 2)]).key_by(lambda v: v[0]).process(AtTheEnd())


class Chained(KeyedProcessFunction):
    """Timers set by timers, into the past and into the future.

    PyFlink hands timers to Python in bundles: what ``on_timer`` sets comes after the whole bundle. So no order is compared.
    """

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1])
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp
        if 0 < timestamp < 1000:
            ctx.timer_service().register_event_time_timer(timestamp + 1000)
        elif timestamp > 1000:
            ctx.timer_service().register_event_time_timer(-timestamp)


@program()
def timers_set_by_timers(env: Any) -> Any:
    return events(env, NONE).key_by(lambda v: v[0]).process(Chained())


@program(key=first)
def timers_without_timestamps(env: Any) -> Any:
    return env.from_collection([("a", 1), ("b", 1), ("a", 2)]).key_by(lambda v: v[0]).process(AtTheEnd())


class Late(KeyedProcessFunction):
    """A timer in the past of the watermark fires at once: at the end of input at the latest, and once."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(0)
        yield value[0], "record", value[1]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp


@program(key=of_timers)
def a_timer_in_the_past_of_every_record(env: Any) -> Any:
    return events(env, NONE).key_by(lambda v: v[0]).process(Late())


@program()
def timestamps_of_what_timers_emit(env: Any) -> Any:
    """The time the timer was set for; side outputs too."""
    reminded = events(env, NONE).key_by(lambda v: v[0]).process(RemindersAside())
    aside = reminded.get_side_output(RemindersAside.aside).process(Times())
    return reminded.process(Times()).union(aside.map(lambda r: ("aside", *r)))


class RemindersAside(Reminders):
    aside = OutputTag("aside", Types.LONG())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.seen.value()
        yield self.aside, timestamp


class FarProcessingTime(KeyedProcessFunction):
    """A processing-time timer far ahead, and one deleted again."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        far = 1 << 45
        timers.register_processing_time_timer(far)
        timers.register_processing_time_timer(far + 1)
        timers.delete_processing_time_timer(far + 1)
        yield value[0], "record", timers.current_processing_time() < far

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp, str(ctx.time_domain())


@program(key=of_timers, modes=("STREAMING", "BATCH"))
def processing_time_timers_behind_the_end_of_input(env: Any) -> Any:
    """They do not fire in STREAMING mode; in BATCH mode time ends with the input."""
    return env.from_collection([("a", 1), ("b", 2)]).key_by(lambda v: v[0]).process(FarProcessingTime())


class FailingTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(1)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        raise ArithmeticError("on_timer")


@program(parallelisms=(1,), fails_with="ArithmeticError")
def failing_on_timer(env: Any) -> Any:
    return events(env, NONE).key_by(lambda v: v[0]).process(FailingTimer())


class InOrder(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


@program(modes=("BATCH",))
def keyed_records_in_batch_mode(env: Any) -> Any:
    """Flink sorts the records of a key by their timestamps; a result that depends on it is not compared."""
    return events(env, NONE).key_by(lambda v: v[0]).process(InOrder())
