"""Keys and reductions: rolling in STREAMING mode, one result per key in BATCH mode."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program, whole
from tests.compat.differential.engine_api import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    Row,
    Types,
    ValueStateDescriptor,
)

BOTH = ("STREAMING", "BATCH")
ORDERS = [("a", 3, "x"), ("a", 1, "y"), ("b", 5, "p"), ("a", 2, "z"), ("b", 2, "q"), ("a", 7, "w"), ("c", 4, "o")]
ORDER = Types.ROW_NAMED(["customer", "amount", "tag"], [Types.STRING(), Types.INT(), Types.STRING()])


@program(parallelisms=(1, 2), key=first)
def reduce_with_a_lambda(env: Any) -> Any:
    """Every record emits, the first one itself; the function gets the reduction first."""
    orders = env.from_collection(ORDERS).key_by(lambda order: order[0])
    return orders.reduce(lambda so_far, order: (so_far[0], so_far[1] + order[1], so_far[2] + order[2]))


class Sum(ReduceFunction):
    def open(self, runtime_context: Any) -> None:
        self.zero = 0

    def reduce(self, value1: Any, value2: Any) -> Any:
        return Row(value1[0], self.zero + value1[1] + value2.amount, "sum")


@program(key=first, modes=BOTH)
def reduce_with_a_function_object(env: Any) -> Any:
    """On rows of a declared type, key of a declared type."""
    return env.from_collection(ORDERS, ORDER).key_by(lambda row: row.customer, Types.STRING()).reduce(Sum())


def customer(record: Any) -> Any:
    """The kind of aggregation and the key."""
    return record[0], record[1][0]


def aggregations(keyed: Any, field: int | str) -> Any:
    streams = {
        "sum": keyed.sum(field),
        "min": keyed.min(field),
        "max": keyed.max(field),
        "min_by": keyed.min_by(field),
        "max_by": keyed.max_by(field),
    }
    named = [stream.map(lambda v, name=name: (name, v)) for name, stream in streams.items()]
    return named[0].union(*named[1:])


@program(parallelisms=(1, 2), key=customer, modes=BOTH)
def aggregations_of_tuples(env: Any) -> Any:
    return aggregations(env.from_collection(ORDERS).key_by(lambda order: order[0]), 1)


@program(key=customer, modes=BOTH)
def aggregations_of_rows_by_name(env: Any) -> Any:
    return aggregations(env.from_collection(ORDERS, ORDER).key_by(lambda row: row.customer), "amount")


@program(key=whole, parallelisms=(1,))
def aggregations_of_numbers(env: Any) -> Any:
    """A plain value has one field; texts have a least and a greatest too."""
    numbers = env.from_collection([3, 1, 4, 1, 5]).key_by(lambda v: 0)
    return numbers.sum().map(lambda v: ("sum", v)).key_by(lambda v: 0).max_by(1)


@program(key=customer, parallelisms=(1,))
def ties_of_min_by_and_max_by(env: Any) -> Any:
    """Of records with the same least field the first is kept."""
    records = [("a", 2, "first"), ("a", 2, "second"), ("a", 1, "third"), ("a", 1, "fourth"), ("a", 2, "fifth")]
    keyed = env.from_collection(records).key_by(lambda record: record[0])
    least, greatest = keyed.min_by(1), keyed.max_by(1)
    return least.map(lambda v: ("min_by", v)).union(greatest.map(lambda v: ("max_by", v)))


@program(key=first, parallelisms=(1,))
def a_reduction_of_a_reduction(env: Any) -> Any:
    counted = env.from_collection(ORDERS).map(lambda order: (order[0], 1)).key_by(lambda pair: pair[0]).sum(1)
    return counted.map(lambda pair: (pair[1], 1)).key_by(lambda pair: pair[0]).sum(1)


@program()
def another_key_instead(env: Any) -> Any:
    """``key_by`` on a keyed stream replaces the key."""
    return (
        env.from_collection(ORDERS)
        .key_by(lambda order: order[2])
        .key_by(lambda order: "one")
        .sum(1)
        .map(lambda v: v[1])
    )


class ByPair(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0], value[1] % 2


class CountWithKey(KeyedProcessFunction):
    """Key and number of the record among those of its key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count, value


@program(key=first, modes=BOTH)
def tuple_keys(env: Any) -> Any:
    return env.from_collection(ORDERS).key_by(ByPair()).process(CountWithKey()).map(lambda r: r[:2])


@program(key=first)
def tuple_keys_of_a_type(env: Any) -> Any:
    key = Types.TUPLE([Types.STRING(), Types.INT()])
    return env.from_collection(ORDERS).key_by(ByPair(), key).process(CountWithKey())


@program(key=first)
def row_keys(env: Any) -> Any:
    return env.from_collection(ORDERS).key_by(lambda v: Row(v[0], v[1] % 2)).process(CountWithKey())


@program(key=first)
def row_keys_of_a_type(env: Any) -> Any:
    key = Types.ROW_NAMED(["name", "odd"], [Types.STRING(), Types.INT()])
    return env.from_collection(ORDERS).key_by(lambda v: Row(v[0], v[1] % 2), key).process(CountWithKey())


@program(key=first)
def keys_of_many_kinds(env: Any) -> Any:
    """None, texts, bytes, numbers, booleans; keys of different classes that are not equal."""
    keys = [None, "a", b"a", 2, 2.5, -1, "", "ä", (1, "a"), (), 1 << 70, None, "a", b"a", 2, 2.5, (1, "a"), (), 1 << 70]
    return env.from_collection(keys).key_by(lambda v: v).process(CountWithKey()).map(lambda r: r[:2])


class RunningTotal(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def map(self, value: Any) -> Any:
        self.total.update((self.total.value() or 0) + value[1])
        return value[0], self.total.value()


class OnlyFirst(FilterFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def filter(self, value: Any) -> bool:
        new = self.seen.value() is None
        self.seen.update(True)
        return new


class SinceLast(FlatMapFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def flat_map(self, value: Any) -> Any:
        last = self.last.value()
        self.last.update(value[1])
        if last is not None:
            yield value[0], value[1] - last


@program(key=lambda record: (record[0], record[1]))
def state_in_map_flat_map_and_filter(env: Any) -> Any:
    """Function objects on a keyed stream have keyed state."""
    keyed = env.from_collection(ORDERS).key_by(lambda order: order[0])
    total = keyed.map(RunningTotal()).map(lambda r: ("map", *r))
    once = keyed.filter(OnlyFirst()).map(lambda r: ("filter", *r))
    since = keyed.flat_map(SinceLast()).map(lambda r: ("flat_map", *r))
    return total.union(once, since)


@program(parallelisms=(1,), fails_with="ZeroDivisionError")
def failing_reduce(env: Any) -> Any:
    return env.from_collection([1, 0]).key_by(lambda v: "key").reduce(lambda a, b: a // b)
