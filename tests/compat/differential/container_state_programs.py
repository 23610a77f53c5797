"""Keyed states of containers, states that timers change."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
)
from tests.compat.differential.state_programs import COMMANDS, Commanded, commanded


class EmptyThings(Commanded):
    """None where a state allows it, containers that become empty. (A map that was emptied entry by entry is not ``is_empty`` for
    PyFlink's cache; it is here.)"""

    def open(self, runtime_context: Any) -> None:
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.PICKLED_BYTE_ARRAY()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.PICKLED_BYTE_ARRAY()))

    def look(self) -> Any:
        return sorted(self.map.items(), key=str), list(self.list.get()), self.map.get("none")

    def command(self, number: int) -> None:
        steps: list[Any] = [
            lambda: self.map.put("none", None),
            lambda: self.list.add({}),
            lambda: self.map.put("empty", []),
            lambda: self.map.remove("none"),
            lambda: self.list.update([0, "", False]),
            lambda: self.map.remove("empty"),
            lambda: self.list.clear(),
            lambda: self.map.clear(),
        ]
        steps[number]()


@program(key=first)
def empty_things_in_states(env: Any) -> Any:
    return commanded(env, EmptyThings())


class TypedContainers(Commanded):
    def open(self, runtime_context: Any) -> None:
        pair = Types.TUPLE([Types.STRING(), Types.INT()])
        row = Types.ROW_NAMED(["n", "text"], [Types.INT(), Types.STRING()])
        self.pairs = runtime_context.get_list_state(ListStateDescriptor("pairs", pair))
        self.rows = runtime_context.get_map_state(MapStateDescriptor("rows", pair, row))
        self.lists = runtime_context.get_state(ValueStateDescriptor("lists", Types.LIST(Types.INT())))
        self.maps = runtime_context.get_state(ValueStateDescriptor("maps", Types.MAP(Types.STRING(), Types.INT())))

    def look(self) -> Any:
        return list(self.pairs.get()), sorted(self.rows.items()), self.lists.value(), self.maps.value()

    def command(self, number: int) -> None:
        self.pairs.add((str(number), number))
        self.rows.put((str(number % 2), number % 2), Row(number, str(number)))
        self.lists.update([*(self.lists.value() or []), number])
        self.maps.update({**(self.maps.value() or {}), str(number % 3): number})
        if number == 6:
            self.rows.remove(("1", 1))
            self.pairs.update([("only", 1)])


@program(key=first)
def states_of_containers_with_types(env: Any) -> Any:
    return commanded(env, TypedContainers())


class IterateAndChange(Commanded):
    """A map that is changed after a loop over a copy of its keys."""

    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_map_state(MapStateDescriptor("map", Types.INT(), Types.INT()))

    def look(self) -> Any:
        return sorted(self.state.items()), sorted(self.state.keys()), sum(self.state.values())

    def command(self, number: int) -> None:
        for key in list(self.state.keys()):
            if key % 2 == number % 2:
                del self.state[key]
            else:
                self.state[key] = self.state[key] * 2
        self.state[number] = number


@program(key=first)
def maps_that_change_while_they_are_read(env: Any) -> Any:
    return commanded(env, IterateAndChange())


class Collecting(AggregateFunction):
    """Its accumulator is a list that is changed in place."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return len(accumulator), accumulator[-1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


class AggregatingLists(Commanded):
    def open(self, runtime_context: Any) -> None:
        descriptor = AggregatingStateDescriptor("all", Collecting(), Types.PICKLED_BYTE_ARRAY())
        self.state = runtime_context.get_aggregating_state(descriptor)

    def look(self) -> Any:
        return self.state.get()

    def command(self, number: int) -> None:
        self.state.add(None if number == 5 else number)


@program(key=first)
def aggregating_state_of_a_list(env: Any) -> Any:
    """Adding None clears the state."""
    return commanded(env, AggregatingLists())


class OfTimers(KeyedProcessFunction):
    """Timers read and clear what records have written."""

    def open(self, runtime_context: Any) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.values.add(value[1])
        ctx.timer_service().register_event_time_timer(10 + value[1] // 3)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, list(self.values.get())
        self.values.clear()


@program(key=first)
def states_that_timers_clear(env: Any) -> Any:
    return env.from_collection(COMMANDS).key_by(lambda pair: pair[0]).process(OfTimers())
