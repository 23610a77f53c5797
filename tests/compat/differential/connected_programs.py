"""Connected streams and the broadcast state pattern. Which of two inputs is ahead nobody promises, so no result depends on it."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    Types,
    ValueStateDescriptor,
)
from tests.compat.differential.window_programs import events

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
LEFT = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)]
RIGHT = [("a", 10), ("d", 20), ("b", 30), ("a", 40)]
RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())
SEEN = OutputTag("seen", Types.STRING())
END = 1_000


def both(env: Any) -> tuple[Any, Any]:
    return events(env, LEFT), events(env, RIGHT)


class Named(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return "left", value[0], value[1] + 1

    def map2(self, value: Any) -> Any:
        return "right", value[0], -value[1]


@program(parallelisms=(1, 2))
def connected_streams_are_mapped_each_in_its_way(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right).map(Named())


class Repeated(CoFlatMapFunction):
    """Nothing, one or several."""

    def flat_map1(self, value: Any) -> Any:
        for n in range(value[1] % 3):
            yield value[0], "left", n

    def flat_map2(self, value: Any) -> Any:
        if value[1] > 10:
            yield value[0], "right", value[1]


@program(parallelisms=(1, 2))
def connected_streams_are_flat_mapped(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right).flat_map(Repeated(), Types.TUPLE([Types.STRING(), Types.STRING(), Types.INT()]))


class Tagged(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield "left", value[0], ctx.timestamp()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield SEEN, f"{value[0]} at {ctx.timestamp()}"


@program(parallelisms=(1, 2))
def connected_streams_with_timestamps_and_a_side_output(env: Any) -> Any:
    left, right = both(env)
    main = left.connect(right).process(Tagged(), Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()]))
    texts = main.map(lambda r: f"{r[0]} {r[1]} {r[2]}", Types.STRING())
    return texts.union(main.get_side_output(SEEN).map(lambda text: f"seen {text}", Types.STRING()))


class Together(KeyedCoProcessFunction):
    """Both sides of a key share state; at the end of time it is told."""

    def open(self, runtime_context: Any) -> None:
        self.left = runtime_context.get_list_state(ListStateDescriptor("left", Types.INT()))
        self.right = runtime_context.get_map_state(MapStateDescriptor("right", Types.INT(), Types.STRING()))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def _seen(self, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(END)

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.left.add(value[1])
        self._seen(ctx)
        yield from ()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self.right.put(value[1], f"{ctx.get_current_key()}{value[1]}")
        self._seen(ctx)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, self.count.value(), list(self.left.get()), sorted(self.right.items())


@program(parallelisms=(1, 2), key=first)
def keyed_connected_streams_share_state_and_timers(env: Any) -> Any:
    left, right = both(env)
    by_key = left.connect(right).key_by(lambda v: v[0], lambda v: v[0], Types.STRING())
    return by_key.process(Together())


@program(parallelisms=(1, 2))
def a_union_is_one_side_of_connected_streams(env: Any) -> Any:
    left, right = both(env)
    return left.union(right).connect(right).map(Named())


class Rules(BroadcastProcessFunction):
    """Every subtask sees every rule, in the order of their one source."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield "record", value[0], value[1]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value[0], (rules.get(value[0]) or 0) + value[1])
        yield "rule", value[0], rules.get(value[0])
        if value[1] == 20:
            rules.remove("a")


@program(parallelisms=(1, 2))
def rules_are_broadcast_beside_records(env: Any) -> Any:
    left, right = both(env)
    return left.connect(right.broadcast(RULES)).process(
        Rules(), Types.TUPLE([Types.STRING(), Types.STRING(), Types.INT()])
    )


class KeyedRules(KeyedBroadcastProcessFunction):
    """What a key has come to is told at the end of time, with the rules there are then."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(END)
        yield from ()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        rules = sorted(ctx.get_broadcast_state(RULES).items())
        yield ctx.get_current_key(), self.total.value(), timestamp, rules


@program(parallelisms=(1, 2), key=first)
def rules_are_broadcast_beside_keyed_records(env: Any) -> Any:
    left, right = both(env)
    return left.key_by(lambda v: v[0], Types.STRING()).connect(right.broadcast(RULES)).process(KeyedRules())
