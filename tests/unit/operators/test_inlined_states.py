"""Value states inside inlined functions are dict accesses, and mean what the calls mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import simulated_environment
from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.operators.loop.rewrites.inline import Inline, state_attributes

RECORDS = [(n % 7, n) for n in range(500)]


class Function(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.whole = runtime_context.get_state(ValueStateDescriptor("whole", Types.PICKLED_BYTE_ARRAY()))


class Counts(Function):
    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        if n % 3 == 0:
            self.text.update(f"{self.text.value()}{n}")
        if n % 11 == 0:
            self.text.clear()
        if n % 5 == 0:
            self.count.update(None)
        self.whole.update([n, self.count.value()])
        yield ctx.get_current_key(), n, self.text.value(), self.whole.value()[0]


class Swaps(Function):
    """A method of its own exchanges the states: nothing may be taken for granted."""

    def swap(self) -> None:
        self.count, self.other = self.other, self.count  # type: ignore[has-type]

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.other = runtime_context.get_state(ValueStateDescriptor("other", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.swap()
        yield value[0], n


class SwappedByTimer(Function):
    """The states are exchanged between two chunks."""

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.other = runtime_context.get_state(ValueStateDescriptor("other", Types.LONG()))
        self.swapped = False

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        ctx.timer_service().register_event_time_timer(1)
        yield value[0], n

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.count, self.other = self.other, self.count  # type: ignore[has-type]
        yield -1, self.count.value()


def results(function: type[KeyedProcessFunction], directory: Path, inline: bool) -> list[Any]:
    keys: dict[str, Any] = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.functions.inline": inline,
        "tidegate.chunk.records": 16,
        "parallelism.default": 2,
    }
    env = simulated_environment(directory / str(inline), **keys)
    stream = env.from_collection(RECORDS).key_by(lambda record: record[0], Types.LONG()).process(function())
    return sorted(stream.execute_and_collect(), key=repr)


def rank_of(number: int) -> int:
    return 1 if number < 100 else 2


class Lists(KeyedProcessFunction):
    """A value that is changed in place, with and without an update, and helpers that use the states too."""

    def open(self, runtime_context: Any) -> None:
        self.numbers = runtime_context.get_state(ValueStateDescriptor("numbers", Types.LIST(Types.LONG())))
        self.pair = runtime_context.get_state(ValueStateDescriptor("pair", Types.TUPLE([Types.LONG(), Types.LONG()])))

    def consider(self, number: int) -> None:
        before = self.pair.value()
        if before is None or number % 3 == 0:
            self.pair.update((number, rank_of(number)))
        elif number % 17 == 0:
            self.pair.clear()

    def process_element(self, value: Any, ctx: Any) -> Any:
        numbers = self.numbers.value() or [0, 0]
        numbers[0] += 1
        numbers[rank_of(value[1]) - 1] += value[1]
        if value[1] % 5:
            self.numbers.update(numbers)
        self.consider(value[1])
        yield value[0], list(numbers), self.pair.value()


class HelperOfAnotherObject(Lists):
    """A helper that sets an attribute: the states are not taken for granted."""

    def consider(self, number: int) -> None:
        self.numbers, self.pair = self.numbers, self.pair


@pytest.mark.parametrize("function", [Counts, Swaps, SwappedByTimer, Lists, HelperOfAnotherObject])
def test_inlined_and_called_functions_give_the_same(function: type[KeyedProcessFunction], tmp_path: Path) -> None:
    called = results(function, tmp_path, inline=False)
    assert len(called) >= len(RECORDS)
    assert results(function, tmp_path, inline=True) == called


def attributes(function: type[Any]) -> set[str]:
    prepared = Inline().prepare(function().process_element)
    return state_attributes(prepared.body, prepared.helpers.values())


def test_states_are_inlined_where_nothing_can_exchange_them() -> None:
    assert attributes(Counts) == {"count", "text", "whole"}
    assert attributes(SwappedByTimer) == {"count"}
    assert attributes(Lists) == {"numbers", "pair"}
    assert attributes(Swaps) == attributes(HelperOfAnotherObject) == set()
