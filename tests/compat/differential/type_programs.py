"""Every declared type: what comes out after a task, what wraps around, and what is refused."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from tests.compat.differential.catalog import Surroundings, program
from tests.compat.differential.coercion_programs import through
from tests.compat.differential.engine_api import Instant, Row, Types
from tests.compat.differential.typed_programs import PAIR, PERSON, seen


def collected(env: Any, values: list[Any], info: Any) -> Any:
    """What a function sees of a collection of the type."""
    return env.from_collection(values, info).map(seen)


@program(parallelisms=(1,))
def integers_of_a_collection_wrap(env: Any) -> Any:
    numbers = [43878, -129, 128, 1 << 31, -(1 << 31) - 1, 1 << 40, 0]
    streams = [collected(env, numbers, info) for info in (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG())]
    pairs = collected(env, [(43878, "a"), (-43878, "b")], Types.TUPLE([Types.SHORT(), Types.STRING()]))
    return streams[0].union(*streams[1:], pairs)


@program(parallelisms=(1,))
def integers_of_a_collection_wrap_in_rows(env: Any) -> Any:
    return collected(env, [Row(43878, 300), (1, 2)], Types.ROW([Types.SHORT(), Types.BYTE()]))


@program(parallelisms=(1,))
def floats_of_a_collection(env: Any) -> Any:
    return collected(env, [0.1, 2.5, -1e300], Types.FLOAT())


@program(parallelisms=(1,))
def integers_at_the_ends_of_their_types(env: Any) -> Any:
    ends = [(Types.BYTE(), 7), (Types.SHORT(), 15), (Types.INT(), 31), (Types.LONG(), 63)]
    return through(env, *[(value, info) for info, bits in ends for value in (-(1 << bits), (1 << bits) - 1)])


@program(parallelisms=(1,))
def integers_of_another_class(env: Any) -> Any:
    """Whatever has an integer value."""
    return through(
        env,
        (True, Types.INT()),
        (1.7, Types.LONG()),
        (decimal.Decimal("2.5"), Types.SHORT()),
        (2, Types.BOOLEAN()),
        ((True, 1.0), Types.TUPLE([Types.INT(), Types.LONG()])),
        (Row(True, 1.5), Types.ROW([Types.INT(), Types.LONG()])),
        ([True, 2.0], Types.LIST(Types.INT())),
    )


@program(parallelisms=(1,))
def times_are_cut_to_milliseconds(env: Any) -> Any:
    moment = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    return through(
        env,
        (moment.time(), Types.SQL_TIME()),
        (moment, Types.SQL_TIMESTAMP()),
        (moment.replace(tzinfo=zone), Types.SQL_TIMESTAMP()),
        (moment, Types.SQL_DATE()),
        (Row(moment, moment.time()), Types.ROW([Types.SQL_TIMESTAMP(), Types.SQL_TIME()])),
    )


@program(parallelisms=(1,))
def instants(env: Any) -> Any:
    return through(env, (Instant(5, 6), Types.INSTANT()), (Row(Instant(5, 6)), Types.ROW([Types.INSTANT()])))


@program(parallelisms=(1,))
def decimals_of_another_class(env: Any) -> Any:
    return through(env, (1, Types.BIG_DEC()), ("2.50", Types.BIG_DEC()), (1.5, Types.BIG_DEC()))


@program(parallelisms=(1,))
def bytes_of_another_class(env: Any) -> Any:
    return through(env, (bytearray(b"ab"), Types.PRIMITIVE_ARRAY(Types.BYTE())))


@program(parallelisms=(1,))
def nested_to_the_bottom(env: Any) -> Any:
    deep = Types.ROW_NAMED(
        ["people", "counts", "pair"],
        [Types.LIST(PERSON), Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE())), Types.TUPLE([PAIR, Types.FLOAT()])],
    )
    value = Row([Row("a", 1), Row("b", None)], {"x": [1, 2], "y": []}, (("c", 3), 0.1))
    arrays = Types.TUPLE([Types.BASIC_ARRAY(Types.INT()), Types.OBJECT_ARRAY(Types.PRIMITIVE_ARRAY(Types.DOUBLE()))])
    return through(env, (value, deep), (([1, None], [[1, 2], []]), arrays))


@program(parallelisms=(1,))
def tuples_longer_than_declared(env: Any) -> Any:
    return through(env, (("a", 1, "more"), PAIR))


REFUSED = [
    (43878, Types.SHORT()),
    (1 << 63, Types.LONG()),
    ("1", Types.INT()),
    (1, Types.STRING()),
    (("a", "b"), PAIR),
    (["a", 1], PAIR),
    (Row("a", "b"), PERSON),
    ((1, 2), Types.LIST(Types.INT())),
    ({"a": "b"}, Types.MAP(Types.STRING(), Types.INT())),
]


@program(runs_itself=True, parallelisms=(1,))
def refused_values(env: Any, surroundings: Surroundings) -> Any:
    """A value that does not fit fails the job when it leaves its task."""
    outcomes: list[Any] = []
    for number, (value, info) in enumerate(REFUSED):
        stream = env.from_collection([1]).map(lambda v, value=value: value, info).rebalance().map(seen)
        try:
            with stream.execute_and_collect() as results:
                outcomes.append((number, list(results)))
        except Exception:
            outcomes.append((number, "refused"))
    return outcomes


@program(runs_itself=True, parallelisms=(1,))
def texts_of_types(env: Any, surroundings: Surroundings) -> Any:
    """What types look like, and which are equal."""
    infos = [
        Types.INT(),
        Types.CHAR(),
        Types.BIG_INT(),
        Types.INSTANT(),
        Types.SQL_DATE(),
        Types.PICKLED_BYTE_ARRAY(),
        Types.ROW([Types.INT(), PAIR]),
        PERSON,
        Types.ROW([Types.STRING(), Types.INT()]),
        PAIR,
        Types.PRIMITIVE_ARRAY(Types.INT()),
        Types.BASIC_ARRAY(Types.INT()),
        Types.OBJECT_ARRAY(Types.INT()),
        Types.LIST(Types.INT()),
        Types.MAP(Types.STRING(), PERSON),
    ]
    equal = [[n for n, other in enumerate(infos) if info == other] for info in infos]
    return [(str(info), repr(info)) for info in infos] + [("equal", text) for text in map(str, equal)]
