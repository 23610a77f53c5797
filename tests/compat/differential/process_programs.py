"""Process functions of every kind: timers that set and delete timers, side outputs of each method, broadcast states."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compat.differential.catalog import first, program, whole
from tests.compat.differential.connected_programs import PAIR, RULES, both
from tests.compat.differential.engine_api import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    CoMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    Time,
    Types,
    ValueStateDescriptor,
)
from tests.compat.differential.timer_programs import Times
from tests.compat.differential.window_programs import events, keyed

TEXTS, NUMBERS = OutputTag("a", Types.STRING()), OutputTag("b", Types.INT())
NAMES = MapStateDescriptor("names", Types.INT(), Types.LIST(Types.STRING()))


def with_side_outputs(main: Any) -> Any:
    numbers = main.get_side_output(NUMBERS).map(lambda number: f"b {number}", Types.STRING())
    return main.map(str, Types.STRING()).union(main.get_side_output(TEXTS), numbers)


class Deletes(KeyedProcessFunction):
    """A timer that is deleted does not fire; deleting one of the other clock changes nothing; the state is the timers' own."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        for time in (100, 200, 300, 400):
            timers.register_event_time_timer(time)
        timers.register_processing_time_timer(100 + (1 << 45))
        timers.delete_processing_time_timer(100)
        timers.delete_event_time_timer(400)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count == 3:
            self.count.clear()
        yield ctx.get_current_key(), timestamp, count


@program(key=first)
def timers_that_are_deleted(env: Any) -> Any:
    return keyed(env).process(Deletes())


class Again(KeyedProcessFunction):
    """A timer sets itself once more, for the same time."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(100)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count < 3:
            ctx.timer_service().register_event_time_timer(timestamp)
        yield ctx.get_current_key(), timestamp, count, ctx.timer_service().current_watermark()


@program(key=first)
def timers_that_set_themselves_again(env: Any) -> Any:
    return keyed(env).process(Again())


class BothSides(KeyedCoProcessFunction):
    """Timers of both sides are those of the key, and the other side does not know which of them are not its own."""

    def open(self, runtime_context: Any) -> None:
        self.totals = runtime_context.get_map_state(MapStateDescriptor("totals", Types.STRING(), Types.INT()))

    def _add(self, side: str, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(500)
        self.totals.put(side, (self.totals.get(side) or 0) + value[1])

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self._add("l", value, ctx)
        ctx.timer_service().register_event_time_timer(value[1] + 600)
        yield TEXTS, f"{value[0]}{value[1]} {ctx.get_current_key()} {ctx.timestamp()}"

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self._add("r", value, ctx)
        ctx.timer_service().delete_event_time_timer(value[1] + 600)
        yield NUMBERS, value[1]
        yield value[0], -1, []

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield TEXTS, f"timer {timestamp} {ctx.get_current_key()} {ctx.time_domain()}"
        yield ctx.get_current_key(), timestamp, sorted(self.totals.items())


@program()
def side_outputs_of_both_sides(env: Any) -> Any:
    left, right = both(env)
    by_key = left.connect(right).key_by(lambda v: v[0], lambda v: v[0], Types.STRING())
    return with_side_outputs(by_key.process(BothSides()))


class TwoStates(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(2000)
        yield TEXTS, f"record {value[0]}{value[1]} {ctx.get_current_key()} {ctx.timestamp()}"

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        rules, names = ctx.get_broadcast_state(RULES), ctx.get_broadcast_state(NAMES)
        rules.put(value[0], value[1])
        names.put(value[1], [*(names.get(value[1]) or []), value[0]])
        yield NUMBERS, value[1]
        yield "rule", ctx.timestamp(), sorted(rules.keys())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        rules, names = ctx.get_broadcast_state(RULES), ctx.get_broadcast_state(NAMES)
        found = sorted(rules.items()), sorted(names.items()), rules.contains("a"), rules.get("nope")
        yield ctx.get_current_key(), timestamp, *found


@program()
def two_broadcast_states_and_side_outputs(env: Any) -> Any:
    left, right = both(env)
    by_key = left.key_by(lambda v: v[0], Types.STRING())
    return with_side_outputs(by_key.connect(right.broadcast(RULES, NAMES)).process(TwoStates()))


class Writes(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        try:
            ctx.get_broadcast_state(RULES).put("x", 1)
        except Exception:
            yield "refused", value[1]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return ()


@program()
def broadcast_state_is_not_written_beside_records(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right.broadcast(RULES)).process(Writes())


class SetsTimers(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        try:
            ctx.timer_service().register_event_time_timer(1)
        except Exception:
            yield "refused"


@program(parallelisms=(1,))
def timers_need_a_key(env: Any) -> Any:
    return events(env).process(SetsTimers())


class CountsBoth(CoMapFunction):
    """One state for both sides of a key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def map1(self, value: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return value[0], count

    def map2(self, value: Any) -> Any:
        return self.map1(value)


@program()
def streams_keyed_behind_their_connection(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right).key_by(lambda v: v[0], lambda v: v[0], Types.STRING()).map(CountsBoth(), PAIR)


@program()
def streams_keyed_before_their_connection(env: Any) -> Any:
    left, right = (stream.key_by(lambda v: v[0], Types.STRING()) for stream in both(env))
    return left.connect(right).map(CountsBoth(), PAIR)


class OnlyTheSecond(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return None

    def map2(self, value: Any) -> Any:
        return value


@program()
def none_is_no_record_of_connected_streams(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right).map(OnlyTheSecond())


class NoneAside(KeyedProcessFunction):
    """A pair that begins with the name of an output is a record as any other."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield TEXTS, None
        yield TEXTS, str(value[1])
        yield "a", value[1]


@program()
def none_in_a_side_output(env: Any) -> Any:
    main = keyed(env).process(NoneAside())
    aside = main.get_side_output(TEXTS).map(lambda text: f"aside {text}", Types.STRING())
    return main.map(str, Types.STRING()).union(aside)


class SomeHang(AsyncFunction):
    async def async_invoke(self, value: int) -> Any:
        await asyncio.sleep(60 if value % 5 == 0 else 0.001)
        return [value]

    def timeout(self, value: int) -> Any:
        return [] if value % 10 else [-value - 1]


@program(parallelisms=(1,))
def calls_of_which_some_take_too_long(env: Any) -> Any:
    """What is given instead of a result may be none at all."""
    numbers = env.from_collection(list(range(21)))
    return AsyncDataStream.unordered_wait(numbers, SomeHang(), Time.milliseconds(1500), 30)


class Hangs(AsyncFunction):
    async def async_invoke(self, value: int) -> Any:
        await asyncio.sleep(60)


@program(parallelisms=(1,), fails_with="timed out")
def a_call_that_takes_too_long_without_an_answer_for_it(env: Any) -> Any:
    return AsyncDataStream.ordered_wait(env.from_collection([1]), Hangs(), Time.milliseconds(300))


class Two(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:
        return [(value[0], value[1] * 1000), (None, value[1])]


@program(parallelisms=(1,), key=whole)
def times_and_types_behind_asynchronous_calls(env: Any) -> Any:
    return AsyncDataStream.ordered_wait(events(env), Two(), Time.seconds(30), 4, PAIR).process(Times())
