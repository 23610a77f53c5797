"""Time of the clock: timers that fire while the input continues, and more of event time after unions and side outputs."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import Surroundings, first, program
from tests.compat.differential.engine_api import (
    KeyedProcessFunction,
    NumberSequenceSource,
    OutputTag,
    ProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.compat.differential.timer_programs import MONOTONOUS, NONE, Times, events


class Alarm(KeyedProcessFunction):
    """The first record of a key sets a timer that is due at once; when it has rung, nothing else is emitted."""

    def open(self, runtime_context: Any) -> None:
        self.set = runtime_context.get_state(ValueStateDescriptor("set", Types.BOOLEAN()))

    def process_element(self, value: int, ctx: Any) -> Any:
        if self.set.value() is None:
            self.set.update(True)
            timers = ctx.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 1)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        late = ctx.timer_service().current_processing_time() >= timestamp
        yield ctx.get_current_key(), str(ctx.time_domain()), ctx.timestamp() == timestamp, late


@program(runs_itself=True, parallelisms=(1,))
def processing_time_timers_that_fire(env: Any, surroundings: Surroundings) -> Any:
    """While the input continues: it is ended when all have fired."""
    source = env.from_source(NumberSequenceSource(0, 1 << 40), WatermarkStrategy.no_watermarks(), "numbers")
    alarms = source.key_by(lambda v: v % 3).process(Alarm())
    with alarms.execute_and_collect() as rung:
        return [next(rung) for _ in range(3)]


class Deadline(KeyedProcessFunction):
    """Keeps one timer: each record moves it on, the last one's fires."""

    def open(self, runtime_context: Any) -> None:
        self.at = runtime_context.get_state(ValueStateDescriptor("at", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers, before = ctx.timer_service(), self.at.value()
        if before is not None:
            timers.delete_event_time_timer(before)
        self.at.update(ctx.timestamp() + 100)
        timers.register_event_time_timer(ctx.timestamp() + 100)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, self.at.value()
        self.at.clear()


@program(key=first)
def a_timer_that_is_moved(env: Any) -> Any:
    """No watermark passes it before the next record has moved it on."""
    return events(env, NONE).key_by(lambda v: v[0]).process(Deadline())


class Gaps(KeyedProcessFunction):
    """Sessions by hand: records nearer than 10 belong together. Correct whenever the watermark comes."""

    def open(self, runtime_context: Any) -> None:
        self.session = runtime_context.get_state(ValueStateDescriptor("session", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        session = self.session.value()
        if session is not None and value[1] - session[-1] > 10:
            yield ctx.get_current_key(), session
            session = None
        self.session.update([*(session or []), value[1]])
        ctx.timer_service().register_event_time_timer(value[1] + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        session = self.session.value()
        if session is not None and session[-1] + 10 <= timestamp:
            yield ctx.get_current_key(), session
            self.session.clear()


@program(parallelisms=(1, 2), key=first, modes=("STREAMING", "BATCH"))
def sessions_by_hand(env: Any) -> Any:
    records = [(key, n * 3 + (n // 5) * 20) for n in range(30) for key in ("a", "b", "c") if (n + len(key)) % 4]
    return events(env, MONOTONOUS, records).key_by(lambda v: v[0]).process(Gaps())


class Watermarks(ProcessFunction):
    """Whether the watermark is behind the record's timestamp, as it should be for records in time."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark() < ctx.timestamp()


@program(parallelisms=(1, 2))
def no_record_of_a_monotonous_stream_is_late(env: Any) -> Any:
    records = [(n % 3, n) for n in range(200)]
    return events(env, MONOTONOUS, records).rebalance().process(Watermarks())


@program()
def timestamps_behind_a_union(env: Any) -> Any:
    """Records with and without one."""
    return events(env, NONE).union(env.from_collection([("x", 0)])).process(Times())


class TimestampOnly(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


class Route(KeyedProcessFunction):
    small, large = OutputTag("small", Types.STRING()), OutputTag("large", Types.TUPLE([Types.STRING(), Types.INT()]))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[1] < 15:
            yield self.small, f"{ctx.get_current_key()}:{value[1]}"
        else:
            yield self.large, value
        if value[1] % 2 == 0:
            yield value


@program(parallelisms=(1, 2))
def side_outputs_of_a_keyed_function(env: Any) -> Any:
    """With timestamps, through other operators, side outputs of side outputs."""
    routed = events(env, NONE).key_by(lambda v: v[0]).process(Route())
    small = routed.get_side_output(Route.small).map(lambda v: ("small", v)).process(TimestampOnly())
    large = routed.get_side_output(Route.large).key_by(lambda v: v[0]).process(Route())
    again = large.get_side_output(Route.large).map(lambda v: ("again", v)).process(TimestampOnly())
    return routed.map(lambda v: ("main", v)).process(TimestampOnly()).union(small, again)
