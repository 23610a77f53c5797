"""Functions of every form: what a function does must not depend on how an engine calls it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from tests.compat.differential.catalog import program, whole
from tests.compat.differential.engine_api import (
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    Types,
    ValueStateDescriptor,
)

SCALE = 10
CALLS: dict[str, int] = {}


def tripled(value: int, /, by: int = 3, *, plus: int = 0) -> int:
    return value * by + plus


def of_many(*values: Any, **named: Any) -> Any:
    return len(values), sorted(named), values[0]


def counted(value: int) -> Any:
    """Changes a global of its module."""
    CALLS["counted"] = CALLS.get("counted", 0) + 1
    return value, CALLS["counted"]


def decorated(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def around(value: int) -> int:
        return -function(value)

    return around


@decorated
def negative_square(value: int) -> int:
    return value * value


class Adder:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, value: int) -> int:
        return value + self.amount

    def method(self, value: int) -> int:
        return value - self.amount

    @staticmethod
    def static(value: int) -> int:
        return value * 100

    @classmethod
    def of_class(cls, value: int) -> Any:
        return cls.__name__, value


def factorial(value: int) -> int:
    return 1 if value < 2 else value * factorial(value - 1)


def counter_from(start: int) -> Callable[[int], Any]:
    def count(value: int) -> Any:
        nonlocal start
        start += 1
        return value, start

    return count


def with_local_functions(value: int) -> Any:
    def twice(n: int) -> int:
        return n * 2

    squares = [(lambda n: n * n)(value + k) for k in range(3)]
    return twice(value), squares, {k: -v for k, v in zip("ab", squares, strict=False)}, sum(n for n in squares)


def with_everything(value: int) -> Any:
    try:
        result = 10 // value
    except ZeroDivisionError as error:
        return f"caught {error}"
    else:
        result += 1
    finally:
        value = value + 100
    if (half := result / 2) > 2 and not value % 2:
        return "even", half, value
    while result > 0:
        result -= 3
        if result == 5:
            continue
        if result < 2:
            break
    else:
        return "else", result
    match value:
        case 101 | 102:
            return "matched", result
        case _:
            return f"{value:>5}|{result!r}", SCALE


@program(parallelisms=(1,))
def functions_of_every_form(env: Any) -> Any:
    adder = Adder(5)
    maps: list[Any] = [
        tripled,
        functools.partial(tripled, by=2, plus=1),
        of_many,
        negative_square,
        adder,
        adder.method,
        Adder.static,
        Adder.of_class,
        factorial,
        with_local_functions,
        with_everything,
        str,
        math.sqrt,
        lambda v: v,
        lambda v, n=7: v + n,
        lambda v: v if v > 2 else None,
    ]
    numbers = env.from_collection([0, 1, 2, 3, 4])
    streams = [numbers.map(lambda v, f=f, n=n: (n, f(v))) for n, f in enumerate(maps)]
    direct = [numbers.map(f).map(lambda v, n=n: ("direct", n, v)) for n, f in enumerate(maps)]
    return streams[0].union(*streams[1:], *direct).map(repr)


@program(parallelisms=(1,), key=whole)
def closures_with_memory(env: Any) -> Any:
    """Each operator has a copy of its own of what its function remembers."""
    count = counter_from(10)
    return env.from_collection([1, 2, 3]).map(count).rebalance().map(count)


@program(parallelisms=(1,), key=whole)
def loops_that_make_operators(env: Any) -> Any:
    """A function sees variables as they are when its operator is added: of a loop, of a list that grows, of an object."""
    stream = env.from_collection([1])
    for n in range(4):
        stream = stream.map(lambda v: v * 10 + n)  # noqa: B023
    offset, names, adder = 1, ["a"], Adder(5)
    shifted = stream.map(lambda v: (v + offset, names)).key_by(lambda v: (offset, v[0]))
    keyed = shifted.process(KeyOnly()).map(lambda v: (*v, adder(0)))
    offset, adder.amount = 1000, 7
    names.append("b")
    return keyed.map(lambda v: (*v, offset, names, adder(0)))


class KeyOnly(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_current_key(), value


class Steps(FlatMapFunction):
    """A generator with every way out of its loops."""

    def flat_map(self, value: int) -> Iterator[Any]:
        if value == 0:
            return
        for n in range(value):
            if n == 1:
                continue
            if n == 4:
                break
            yield "for", value, n
        else:
            yield "else", value, -1
        yield from (("from", value, n) for n in range(2))
        try:
            yield "try", value, 10 // (value - 2)
        except ZeroDivisionError:
            yield "except", value, 0
        finally:
            yield "finally", value, 0
        if value > 4:
            return
        left = value
        while left:
            left -= 1
            yield "while", value, left


@program(parallelisms=(1,), key=whole)
def generators_with_every_way_out(env: Any) -> Any:
    return env.from_collection([0, 1, 2, 3, 5, 6]).flat_map(Steps())


@program(parallelisms=(1,), key=whole)
def flat_maps_that_return_containers(env: Any) -> Any:
    """Whatever can be looped over: lists, texts, dicts, ranges, sets of one, generators."""
    made: list[Any] = [[1, [2]], "ab", {"k": 1}, range(2), {3}, (), ((4, 5),)]
    return env.from_collection(range(len(made))).flat_map(lambda n: made[n])


class Base(MapFunction):
    factor = 2

    def open(self, runtime_context: Any) -> None:
        self.history: list[int] = []

    def map(self, value: int) -> Any:
        self.history.append(value)
        return self._value(value), len(self.history), self.twice

    @property
    def twice(self) -> int:
        return sum(self.history) * self.factor

    def _value(self, value: int) -> int:
        return value


class Derived(Base):
    factor = 3

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.history.append(100)

    def map(self, value: int) -> Any:
        return ("derived", *super().map(value))

    def _value(self, value: int) -> int:
        return -value


@program(parallelisms=(1,), key=whole)
def classes_that_inherit(env: Any) -> Any:
    return env.from_collection([1, 2]).map(Base()).rebalance().map(lambda v: v[0]).map(Derived())


class Delegating(KeyedProcessFunction):
    """State used in methods the engine does not call itself, in loops, behind conditions, and by its truth."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.other = runtime_context.get_state(ValueStateDescriptor("other", Types.LONG()))
        self.both = {"count": self.count, "other": self.other}

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = self._next(self.count)
        if n % 2:
            self._next(self.other)
        for name, state in self.both.items():
            if state.value():
                yield ctx.get_current_key(), name, state.value()
        if n == 3:
            self.count.clear()
            self.count, self.other = self.other, self.count

    def _next(self, state: Any) -> int:
        n = (state.value() or 0) + 1
        state.update(n)
        return int(n)


@program(parallelisms=(1,), key=whole)
def states_used_in_other_methods(env: Any) -> Any:
    return env.from_collection(list("aaaaabaa")).key_by(lambda v: v).process(Delegating())


class Mixed(ProcessFunction):
    aside = OutputTag("aside", Types.STRING())

    def process_element(self, value: int, ctx: Any) -> Any:
        if value == 1:
            return [("main", value), (self.aside, "from a list")]
        if value == 2:
            return self._generated(value)
        if value == 3:
            return ((self.aside, f"from an expression {n}") for n in range(2))
        return None

    def _generated(self, value: int) -> Iterator[Any]:
        yield self.aside, "from a generator"
        yield "main", value


@program(parallelisms=(1,))
def side_outputs_in_every_form(env: Any) -> Any:
    stream = env.from_collection([0, 1, 2, 3]).process(Mixed())
    return stream.union(stream.get_side_output(Mixed.aside).map(lambda v: ("aside", v)))
