"""Declared types: what functions get, what is collected, what is printed.

PyFlink gives records their declared type between two tasks; functions it fuses hand objects over as they are. So here nearly
every function is followed by a ``rebalance()``, which ends a task.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from tests.compat.differential.catalog import Surroundings, program, whole
from tests.compat.differential.engine_api import Row, RowKind, Types

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])


def seen(value: Any) -> Any:
    """What a function sees of a record."""
    return type(value).__name__, repr(value)


@program(parallelisms=(1,), key=whole)
def rows_of_a_collection(env: Any) -> Any:
    """Tuples, lists, dicts and rows become rows of the declared names."""
    people = [("a", 1), ["b", 2], Row("d", 4), Row(name="e", age=5), Row(age=6, name="f")]
    return env.from_collection(people, PERSON)


@program(parallelisms=(1,), key=whole)
def rows_a_function_sees(env: Any) -> Any:
    people = env.from_collection([("a", 1), ("b", 2)], PERSON)
    return people.map(
        lambda row: (row.name, row["age"], row[0], len(row), "name" in row, list(row), repr(row), str(row))
    )


@program(parallelisms=(1,), key=whole)
def rows_a_function_returns(env: Any) -> Any:
    """A declared row type gives names to what a function returns; a row without names has f0, f1."""
    info = Types.ROW([Types.INT(), PERSON])
    made = env.from_collection([1, 2]).map(lambda v: Row(v, Row(str(v), v)), info)
    return made.rebalance().map(lambda row: (*seen(row), *seen(row[1]), row.f1.name))


@program(parallelisms=(1,))
def a_row_two_functions_see(env: Any) -> Any:
    """The type one of them declares for it is nothing to the other."""
    pairs = env.from_collection([1]).map(lambda v: (v, Row("a", v)))
    typed = pairs.map(lambda pair: pair[1], PERSON).rebalance().map(lambda row: ("typed", repr(row)))
    keyed = pairs.key_by(lambda pair: pair[1], PERSON).map(lambda pair: ("keyed", repr(pair)))
    return typed.union(keyed, pairs.map(lambda pair: ("plain", repr(pair))))


@program(parallelisms=(1,), key=whole)
def rows_collected(env: Any) -> Any:
    return env.from_collection([1]).map(lambda v: Row(str(v), v), PERSON)


@program(parallelisms=(1,), key=whole)
def rows_without_a_type(env: Any) -> Any:
    """Pickled: as the function made them, kind included."""
    kinds = [Row(1, "a"), Row(id=1, text="a"), Row.of_kind(RowKind.DELETE, 1), Row(Row(1), None)]
    return env.from_collection(kinds).map(lambda row: row)


@program(parallelisms=(1,), key=whole)
def tuples_and_containers(env: Any) -> Any:
    info = Types.TUPLE(
        [Types.STRING(), Types.LIST(Types.INT()), Types.MAP(Types.STRING(), Types.LONG()), PAIR, PERSON, Types.DOUBLE()]
    )
    record = ("a", [1, 2], {"x": 1, "y": 2}, ("b", 3), Row("c", 4), 0.5)
    return env.from_collection([record]).map(lambda v: v, info).rebalance().map(lambda v: v)


@program(parallelisms=(1,), key=whole)
def arrays(env: Any) -> Any:
    info = Types.TUPLE(
        [
            Types.PRIMITIVE_ARRAY(Types.INT()),
            Types.BASIC_ARRAY(Types.STRING()),
            Types.OBJECT_ARRAY(PAIR),
            Types.PRIMITIVE_ARRAY(Types.BYTE()),
        ]
    )
    return (
        env.from_collection([1])
        .map(lambda v: ([1, 2], ["a", "b"], [("c", 1)], b"xy"), info)
        .rebalance()
        .map(lambda v: v)
    )


@program(parallelisms=(1,), key=whole)
def basic_types(env: Any) -> Any:
    """In Python and back: the value, and its class, is what it was."""
    source = env.from_collection([1])
    values = [
        (True, Types.BOOLEAN()),
        (-7, Types.BYTE()),
        (300, Types.SHORT()),
        (70_000, Types.INT()),
        (1 << 40, Types.LONG()),
        (0.1, Types.DOUBLE()),
        ("ä", Types.STRING()),
        (decimal.Decimal("1.50"), Types.BIG_DEC()),
        (datetime.date(2024, 2, 29), Types.SQL_DATE()),
        (datetime.time(1, 2, 3), Types.SQL_TIME()),
        (datetime.datetime(2024, 2, 29, 1, 2, 3, 4000), Types.SQL_TIMESTAMP()),
    ]
    info = Types.TUPLE([info for _, info in values])
    record = tuple(value for value, _ in values)
    return source.map(lambda v: record, info).rebalance().map(seen)


@program(parallelisms=(1,), key=whole)
def nulls_in_typed_records(env: Any) -> Any:
    info = Types.ROW_NAMED(["a", "b", "c"], [Types.STRING(), Types.INT(), PAIR])
    return env.from_collection([1]).map(lambda v: Row(None, None, None), info).rebalance().map(seen)


@program(parallelisms=(1,), key=whole)
def projections(env: Any) -> Any:
    triple = Types.TUPLE([Types.INT(), Types.STRING(), Types.INT()])
    return env.from_collection([(1, "a", 2), (3, "b", 4)], triple).project(2, 0)


@program(runs_itself=True, parallelisms=(1,))
def printed(env: Any, surroundings: Surroundings) -> Any:
    """As Flink prints: rows with their kind, tuples without quotes, pickled objects by str."""
    env.from_collection([("a", 1)], PERSON).print()
    env.from_collection([("a", 1)], PERSON).print("people")
    env.from_collection([("a", 1)], PAIR).print("pairs")
    env.from_collection([("a", None)], PERSON).print("unknown")
    env.from_collection([("a", 1), "text", 1.5, None, True, [1, "x"], {"k": 1}, Row(1, "r"), Row(n=1)]).print("pickled")
    env.from_collection([1, 2], Types.INT()).print("ints")
    doubles = [1.0, 0.1, -0.0, 1e20, 1.5e-9, 123456.75, 12345678.5, 1e7, 0.001, 0.00099, -2.5e10, float("inf")]
    env.from_collection(doubles, Types.DOUBLE()).print("doubles")
    env.from_collection([True], Types.BOOLEAN()).print("booleans")
    env.from_collection(["s"], Types.STRING()).print("strings")
    times = Types.TUPLE([Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.BIG_DEC(), Types.BOOLEAN()])
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4000)
    record = (moment.date(), moment.time().replace(microsecond=0), moment, decimal.Decimal("1.50"), True)
    env.from_collection([1]).map(lambda v: record, times).rebalance().print("times")
    deep = Types.TUPLE([PAIR, Types.LIST(Types.STRING()), PERSON, Types.MAP(Types.STRING(), Types.DOUBLE())])
    env.from_collection([1]).map(lambda v: (("a", v), ["x", "y"], Row("p", v), {"k": 0.5}), deep).print("deep")
    env.from_collection([1]).map(lambda v: [v, 2], Types.LIST(Types.INT())).print("lists")
    env.from_collection([1]).map(lambda v: {"k": v}, Types.MAP(Types.STRING(), Types.INT())).print("maps")
    nested = env.from_collection([1]).map(lambda v: Row("n", Row("x", v)), Types.ROW([Types.STRING(), PERSON]))
    nested.rebalance().print("nested")
    env.from_collection([7]).key_by(lambda v: v).print()
    env.execute()
    return surroundings.printed()


@program(runs_itself=True, parallelisms=(2,))
def printed_by_two(env: Any, surroundings: Surroundings) -> Any:
    """The subtask is part of the line, counted from 1."""
    where = env.from_collection([0, 1]).partition_custom(lambda key, n: key, lambda v: v).map(lambda v: v)
    where.print("by")
    where.print()
    env.execute()
    return surroundings.printed()
