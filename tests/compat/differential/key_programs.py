"""Which records share a key: by value and class, whatever the key is made of; and many records of many keys."""

from __future__ import annotations

import datetime
import decimal
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.compat.differential.catalog import first, program, whole
from tests.compat.differential.engine_api import (
    KeyedProcessFunction,
    MapFunction,
    NumberSequenceSource,
    Row,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.compat.differential.keyed_programs import CountWithKey


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Place:
    city: str
    number: int


class Pair(NamedTuple):
    left: int
    right: str


@program(key=first)
def keys_of_classes(env: Any) -> Any:
    """Enums, frozen data classes, named tuples, dates, decimals."""
    keys: list[Any] = [
        Color.RED,
        Place("a", 1),
        Pair(1, "x"),
        datetime.date(2024, 2, 29),
        decimal.Decimal("1.5"),
        datetime.datetime(2024, 2, 29, 1, 2),
        Color.BLUE,
        Place("a", 2),
    ]
    stream = env.from_collection([*keys, *keys[:6], Place("a", 1)]).key_by(lambda v: v)
    return stream.process(CountWithKey()).map(lambda r: (repr(r[0]), r[1]))


@program(key=first)
def boolean_keys(env: Any) -> Any:
    return env.from_collection([1, 5, 2, 7, 3]).key_by(lambda v: v > 2).process(CountWithKey())


@program(key=first)
def float_keys(env: Any) -> Any:
    return env.from_collection([1.5, 2.0, 1.5, -1.0, 2.0, float("inf")]).key_by(lambda v: v).process(CountWithKey())


@program(key=lambda record: record[:2])
def typed_keys(env: Any) -> Any:
    """Of every basic type."""
    values = env.from_collection([(1, "a"), (2, "b"), (1, "a")])
    ints = values.key_by(lambda v: v[0], Types.INT()).process(CountWithKey())
    texts = values.key_by(lambda v: v[1], Types.STRING()).process(CountWithKey())
    booleans = values.key_by(lambda v: v[0] == 1, Types.BOOLEAN()).process(CountWithKey())
    pairs = values.key_by(lambda v: v, Types.TUPLE([Types.INT(), Types.STRING()])).process(CountWithKey())
    named = [s.map(lambda r, n=n: (n, *r)) for n, s in enumerate((ints, texts, booleans, pairs))]
    return named[0].union(*named[1:])


@program(key=first)
def keys_that_come_back_from_timers(env: Any) -> Any:
    """A key is of its class when its timer fires."""
    keys = ["a", 2, 2.5, True, (1, "x"), Row(1, "y"), None, b"z"]
    return env.from_collection(keys).key_by(lambda v: v).process(AtTheEnd())


class AtTheEnd(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield repr(ctx.get_current_key()), type(ctx.get_current_key()).__name__


def numbers(env: Any, count: int) -> Any:
    """In order, from one subtask."""
    parallelism = env.get_parallelism()
    env.set_parallelism(1)
    source = NumberSequenceSource(1, count)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    env.set_parallelism(parallelism)
    return stream


class SumOfKey(KeyedProcessFunction):
    """Emits at the end of input: sum, count, and a number that depends on the order."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.folded = runtime_context.get_state(ValueStateDescriptor("folded", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value)
        self.folded.update(((self.folded.value() or 0) * 31 + value) % 1_000_003)
        ctx.timer_service().register_event_time_timer(1)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.total.value(), self.folded.value()


@program(parallelisms=(1, 2))
def many_records_of_many_keys(env: Any) -> Any:
    """More than a chunk holds; records of a key keep their order on the way from one subtask."""
    return numbers(env, 6000).key_by(lambda v: v % 97, Types.LONG()).process(SumOfKey())


@program(parallelisms=(2,))
def three_tasks_one_behind_another(env: Any) -> Any:
    """The first key is taken from the source itself: a map of two subtasks would deal the records of a key out."""
    summed = numbers(env, 2000).key_by(lambda v: v % 7).reduce(lambda a, b: a + 7 * b)
    counted = summed.map(lambda v: (v % 3, 1)).key_by(lambda v: v[0]).sum(1)
    return counted.filter(lambda v: v[1] % 100 == 0)


class Duplicates(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def map(self, value: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        return value, self.seen.value()


@program(parallelisms=(1,), key=whole)
def one_key_in_its_order(env: Any) -> Any:
    return env.from_collection(list("abcab")).key_by(lambda v: "one").map(Duplicates())
