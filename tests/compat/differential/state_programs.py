"""Every kind of keyed state: what it says when it is empty, changed, cleared."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Row,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)

COMMANDS: list[tuple[str, Any]] = [
    (key, command) for command in range(8) for key in ("a", "b") if not (key == "b" and command == 3)
]
"""Each key goes through the same commands, one leaves one out; a function turns a number into what it does with its state."""


class Commanded(KeyedProcessFunction):
    """Runs the command and yields key, command, and what the state says before and after."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, command = value
        before = self.look()
        self.command(command)
        yield key, command, before, self.look()

    def look(self) -> Any:
        raise NotImplementedError

    def command(self, number: int) -> None:
        raise NotImplementedError


def commanded(env: Any, function: Any) -> Any:
    return env.from_collection(COMMANDS).key_by(lambda pair: pair[0], Types.STRING()).process(function)


class Values(Commanded):
    def __init__(self, info: Any, values: list[Any]) -> None:
        self.info, self.written = info, values

    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("value", self.info))

    def look(self) -> Any:
        return self.state.value()

    def command(self, number: int) -> None:
        if number == 4:
            self.state.clear()
        elif number < len(self.written):
            self.state.update(self.written[number])


@program(parallelisms=(1, 2), key=first)
def value_state(env: Any) -> Any:
    """None updates; falsy values are values."""
    return commanded(env, Values(Types.LONG(), [0, 5, None, 7, None, -1]))


@program(key=first)
def value_state_pickled(env: Any) -> Any:
    return commanded(env, Values(Types.PICKLED_BYTE_ARRAY(), [(), {"a": (1, [2])}, None, "text", None, Row(x=1)]))


@program(key=first)
def value_state_of_a_row(env: Any) -> Any:
    info = Types.ROW_NAMED(["n", "text"], [Types.INT(), Types.STRING()])
    return commanded(env, Values(info, [Row(1, "a"), Row(2, None), None, Row(n=3, text="c")]))


@program(key=first)
def value_state_of_a_tuple(env: Any) -> Any:
    return commanded(env, Values(Types.TUPLE([Types.INT(), Types.STRING()]), [(1, "a"), (2, None), None, (3, "c")]))


class Lists(Commanded):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_list_state(ListStateDescriptor("list", Types.INT()))

    def look(self) -> Any:
        return list(self.state.get()), list(self.state)

    def command(self, number: int) -> None:
        state = self.state
        steps = [
            lambda: state.add(1),
            lambda: state.add_all([2, 3]),
            lambda: state.update([9]),
            lambda: state.update([]),
            lambda: state.add_all([]),
            lambda: state.add(4),
            lambda: state.clear(),
            lambda: state.add_all([5, 5]),
        ]
        steps[number]()


@program(key=first)
def list_state(env: Any) -> Any:
    return commanded(env, Lists())


class Maps(Commanded):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))

    def look(self) -> Any:
        state = self.state
        listed = sorted(state.keys()), sorted(state.values(), key=str), sorted(state.items()), sorted(state)
        return *listed, state.is_empty(), state.contains("x"), "y" in state, state.get("x"), state["y"]

    def command(self, number: int) -> None:
        state = self.state
        steps = [
            lambda: state.put("x", 1),
            lambda: state.put_all({"y": 2, "z": 3}.items()),  # PyFlink takes pairs only
            lambda: state.remove("y"),
            lambda: state.remove("never there"),
            lambda: state.__setitem__("x", 10),
            lambda: state.__delitem__("z"),
            lambda: state.clear(),
            lambda: state.put("y", 0),
        ]
        steps[number]()


@program(parallelisms=(1, 2), key=first)
def map_state(env: Any) -> Any:
    return commanded(env, Maps())


class Reducing(Commanded):
    def open(self, runtime_context: Any) -> None:
        descriptor = ReducingStateDescriptor("least", lambda a, b: min(a, b), Types.LONG())
        self.state = runtime_context.get_reducing_state(descriptor)

    def look(self) -> Any:
        return self.state.get()

    def command(self, number: int) -> None:
        if number == 4:
            self.state.clear()
        else:
            self.state.add([5, 7, 0, 3, 0, 9, 8, 10][number])


@program(key=first)
def reducing_state(env: Any) -> Any:
    return commanded(env, Reducing())


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1] if accumulator[1] else "none yet"

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Aggregating(Commanded):
    def open(self, runtime_context: Any) -> None:
        descriptor = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        self.state = runtime_context.get_aggregating_state(descriptor)

    def look(self) -> Any:
        return self.state.get()

    def command(self, number: int) -> None:
        if number == 4:
            self.state.clear()
        else:
            self.state.add(number)


@program(key=first)
def aggregating_state(env: Any) -> Any:
    return commanded(env, Aggregating())


class Lasting(Commanded):
    """States that live an hour: in this test for ever."""

    def open(self, runtime_context: Any) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .cleanup_full_snapshot()
            .build()
        )
        value = ValueStateDescriptor("value", Types.INT())
        values = ListStateDescriptor("list", Types.INT())
        entries = MapStateDescriptor("map", Types.INT(), Types.INT())
        for descriptor in (value, values, entries):
            descriptor.enable_time_to_live(ttl)
        self.value = runtime_context.get_state(value)
        self.list = runtime_context.get_list_state(values)
        self.map = runtime_context.get_map_state(entries)

    def look(self) -> Any:
        return self.value.value(), list(self.list.get()), sorted(self.map.items())

    def command(self, number: int) -> None:
        self.value.update(number)
        self.list.add(number)
        self.map.put(number % 3, number)
        if number == 5:
            self.list.clear()
            self.map.remove(1)


@program(key=first)
def states_with_time_to_live(env: Any) -> Any:
    return commanded(env, Lasting())


class TwoStates(KeyedProcessFunction):
    """Both begin empty for every key; a state of the same name in another operator is another."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.keys = runtime_context.get_list_state(ListStateDescriptor("keys", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.keys.add(ctx.get_current_key())
        yield value[0], self.count.value(), list(self.keys.get())


@program(key=first)
def two_operators_with_states_of_one_name(env: Any) -> Any:
    once = env.from_collection(COMMANDS).key_by(lambda pair: pair[0]).process(TwoStates())
    return once.key_by(lambda record: record[0]).process(TwoStates())
