"""Values that are not quite of the declared type: behind a partitioning PyFlink hands on what its serializer made of them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from tests.compat.differential.catalog import Surroundings, first, program, whole
from tests.compat.differential.engine_api import KeyedProcessFunction, MapFunction, Row, Types, ValueStateDescriptor
from tests.compat.differential.typed_programs import PAIR, PERSON, seen


def through(env: Any, *values_and_types: tuple[Any, Any]) -> Any:
    """Each value of a stream of its type, as a function after it sees it."""
    streams = []
    for number, (value, info) in enumerate(values_and_types):
        stream = env.from_collection([number]).map(lambda n, value=value: value, info)
        streams.append(stream.rebalance().map(lambda v, n=number: (n, *seen(v))))
    return streams[0].union(*streams[1:])


@program(parallelisms=(1,))
def numbers_of_another_class(env: Any) -> Any:
    """Where doubles are declared."""
    return through(env, (1, Types.DOUBLE()), (True, Types.DOUBLE()), (2, Types.FLOAT()), (-0.0, Types.DOUBLE()))


@program(parallelisms=(1,))
def floats_of_four_bytes(env: Any) -> Any:
    return through(env, (0.1, Types.FLOAT()), (0.5, Types.FLOAT()), (1e-3, Types.FLOAT()))


@program(parallelisms=(1,))
def sequences_of_another_class(env: Any) -> Any:
    return through(
        env,
        (["x", "y"], Types.BASIC_ARRAY(Types.STRING())),
        ([("c", 1)], Types.OBJECT_ARRAY(PAIR)),
        ([1, 2], Types.LIST(Types.DOUBLE())),
    )


@program(parallelisms=(1,))
def numbers_inside_containers(env: Any) -> Any:
    return through(
        env,
        ((1, 2), Types.TUPLE([Types.DOUBLE(), Types.INT()])),
        (Row("a", 1), Types.ROW_NAMED(["k", "v"], [Types.STRING(), Types.DOUBLE()])),
        ({"a": 1}, Types.MAP(Types.STRING(), Types.DOUBLE())),
        ({1: [2]}, Types.MAP(Types.INT(), Types.LIST(Types.DOUBLE()))),
    )


@program(parallelisms=(1,))
def rows_with_names_in_another_order(env: Any) -> Any:
    return through(env, (Row(age=1, name="a"), PERSON), (Row("a", 1), PERSON), (Row("a", None), PERSON))


@program(parallelisms=(1,))
def times_of_every_type(env: Any) -> Any:
    """To the millisecond: PyFlink drops what is below, we keep it."""
    moment = datetime.datetime(2024, 2, 29, 23, 59, 58, 123000)
    return through(
        env,
        (moment.date(), Types.SQL_DATE()),
        (moment.time(), Types.SQL_TIME()),
        (moment, Types.SQL_TIMESTAMP()),
        (datetime.date(1969, 12, 31), Types.SQL_DATE()),
        (datetime.time(), Types.SQL_TIME()),
    )


@program(parallelisms=(1,))
def decimals(env: Any) -> Any:
    return through(
        env,
        (decimal.Decimal("1.50"), Types.BIG_DEC()),
        (decimal.Decimal("-1234567890.123456789"), Types.BIG_DEC()),
        (decimal.Decimal("-1E+3"), Types.BIG_DEC()),
    )


@program(parallelisms=(1,), key=whole)
def doubles_of_a_collection(env: Any) -> Any:
    return env.from_collection([1.0, 2.5, -0.0], Types.DOUBLE()).map(lambda v: (type(v).__name__, repr(v)))


@program(parallelisms=(1,))
def typed_collections(env: Any) -> Any:
    """What a function gets from a collection of a declared type."""
    tuples = env.from_collection([("a", 1), ("b", 2)], PAIR).map(seen)
    booleans = env.from_collection([True, False], Types.BOOLEAN()).map(seen)
    return tuples.union(booleans)


class CountOfTypedKey(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield seen(ctx.get_current_key()), self.count.value()


@program(key=first)
def keys_by_their_declared_type(env: Any) -> Any:
    """Keys of the classes int, bool and float are one key if the type says so."""
    values = env.from_collection([1, True, 2, 2.0, 1.0])
    return values.key_by(lambda v: v, Types.DOUBLE()).process(CountOfTypedKey())


class Written(MapFunction):
    """State gives back a value of its declared type."""

    def open(self, runtime_context: Any) -> None:
        self.double = runtime_context.get_state(ValueStateDescriptor("double", Types.DOUBLE()))
        self.pair = runtime_context.get_state(ValueStateDescriptor("pair", PAIR))

    def map(self, value: Any) -> Any:
        before = self.double.value(), self.pair.value()
        self.double.update(value * 0.5)
        self.pair.update((str(value), value))
        return before


@program(parallelisms=(1,), key=whole)
def typed_values_in_state(env: Any) -> Any:
    return env.from_collection([1, 2, 3]).key_by(lambda v: 0).map(Written())


@program(runs_itself=True, parallelisms=(1,))
def coerced_values_printed(env: Any, surroundings: Surroundings) -> Any:
    env.from_collection([1]).map(lambda v: v, Types.DOUBLE()).print("double")
    env.from_collection([1]).map(lambda v: (v, v), Types.TUPLE([Types.DOUBLE(), Types.FLOAT()])).print("tuple")
    env.from_collection([0.1]).map(lambda v: v, Types.FLOAT()).print("float")
    env.from_collection([1]).map(lambda v: [v], Types.LIST(Types.DOUBLE())).print("list")
    env.from_collection([1]).map(lambda v: [v, 2], Types.PRIMITIVE_ARRAY(Types.INT())).map(str).print("array")
    env.execute()
    return surroundings.printed()
