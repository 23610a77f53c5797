"""Declared types as functions: what comes out of a value, what is refused, and that whole batches are the same."""

from __future__ import annotations

import datetime
import pickle
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError
from tidegate.common import Instant, Row, Types
from tidegate.common.conversion import Boundary, Conversion, boundary, collection_converter, converter
from tidegate.common.typeinfo import ExternalTypeInfo, LocalTimeTypeInfo

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 4567)
LOCAL = LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE_TIME)
Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("info", "value", "converted"),
    [
        (Types.INT(), True, "1"),
        (Types.LONG(), 1.7, "1"),
        (Types.SHORT(), np.int64(5), "5"),
        (Types.BOOLEAN(), 2, "True"),
        (Types.STRING(), np.str_("x"), "'x'"),
        (Types.CHAR(), "x", "'x'"),
        (Types.BIG_INT(), 1 << 100, str(1 << 100)),
        (Types.BIG_DEC(), "2.50", "Decimal('2.50')"),
        (Types.BIG_DEC(), 1.5, "Decimal('1.5')"),
        (Types.SQL_DATE(), MOMENT, "datetime.date(2024, 2, 29)"),
        (Types.SQL_TIME(), MOMENT, "datetime.time(1, 2, 3, 4000)"),
        (Types.SQL_TIMESTAMP(), MOMENT.replace(tzinfo=datetime.UTC), "datetime.datetime(2024, 2, 29, 1, 2, 3, 4000)"),
        (LOCAL, MOMENT, "datetime.datetime(2024, 2, 29, 1, 2, 3, 4567)"),
        (ExternalTypeInfo(Types.FLOAT()), 0.1, "0.10000000149011612"),
        (Types.INSTANT(), Instant(1, 2), "Instant<1, 2>"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), bytearray(b"x"), "b'x'"),
        (PAIR, Point("a", True), "('a', 1)"),
        (PAIR, ("a", 1, 2), "('a', 1)"),
        (PAIR, (None, None), "(None, None)"),
        (Types.LIST(Types.INT()), [True, None], "[1, None]"),
        (Types.MAP(Types.INT(), PAIR), {True: ("a", 1.0)}, "{1: ('a', 1)}"),
        (
            Types.ROW_NAMED(["a", "b"], [PAIR, Types.FLOAT()]),
            Row(b=0.1, a=("x", 1)),
            "Row(a=('x', 1), b=0.10000000149011612)",
        ),
    ],
)
def test_values_of_another_class(info: Any, value: Any, converted: str) -> None:
    conversion = pickle.loads(pickle.dumps(Conversion(info)))
    assert repr(conversion(value)) == converted
    assert repr(Boundary(info)([value])) == f"[{converted}]"
    assert conversion(None) is None


@pytest.mark.parametrize(
    ("info", "value", "place", "found"),
    [
        (Types.SHORT(), 43878, "the record is declared as SHORT", "int 43878: it does not fit in 16 bits"),
        (Types.INT(), "1", "the record is declared as INT", "str '1': an integer is required"),
        (Types.STRING(), 1, "the record is declared as STRING", "int 1: a text is required"),
        (Types.CHAR(), "ab", "the record is declared as CHAR", "str 'ab': one character is required"),
        (Types.BIG_DEC(), "x", "the record is declared as BIG_DEC", "str 'x': a decimal number is required"),
        (Types.SQL_DATE(), "2024", "the record is declared as SQL_DATE", "str '2024': a datetime.date is required"),
        (Types.INSTANT(), 5, "the record is declared as INSTANT", "int 5: an Instant is required"),
        (PAIR, ["a", 1], "the record is declared as a tuple of 2 fields", "list ['a', 1]"),
        (PAIR, ("a",), "the record is declared as a tuple of 2 fields", "tuple ('a',)"),
        (Types.TUPLE([PAIR]), (("a", "b"),), "field [0][1] is declared as INT", "str 'b': an integer is required"),
        (Types.LIST(PAIR), [("a", 1), (2, 1)], "field [][0] is declared as STRING", "int 2: a text is required"),
        (Types.LIST(PAIR), (("a", 1),), "the record is declared as a list", "tuple (('a', 1),)"),
        (Types.MAP(Types.STRING(), Types.INT()), {1: 2}, "field {key} is declared as STRING", "int 1"),
        (Types.MAP(Types.STRING(), Types.INT()), [1], "the record is declared as a dict", "list [1]"),
        (
            Types.ROW_NAMED(["who", "n"], [Types.ROW_NAMED(["name"], [Types.STRING()]), Types.INT()]),
            Row(Row(5), 1),
            "field who.name is declared as STRING",
            "int 5: a text is required",
        ),
        (Types.ROW_NAMED(["a"], [Types.LIST(Types.INT())]), Row([1, "x"]), "field a[] is declared as INT", "str 'x'"),
        (
            Types.ROW_NAMED(["a"], [Types.INT()]),
            Row(1, 2),
            "a Row, tuple, list or dict with one value for each of ['a']",
            "",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(info: Any, value: Any, place: str, found: str) -> None:
    for call in (Conversion(info), lambda v: Boundary(info)([v])):
        with pytest.raises(ArgumentTypeError) as caught:
            call(value)
        assert place in caught.value.rule
        assert str(caught.value.found).startswith(found)


@pytest.mark.parametrize(
    ("info", "value", "wrapped"),
    [
        (Types.SHORT(), 43878, -21658),
        (Types.BYTE(), 300, 44),
        (Types.INT(), 1 << 31, -(1 << 31)),
        (Types.INT(), (1 << 63) - 1, -1),
        (Types.LONG(), -(1 << 63), -(1 << 63)),
        (Types.TUPLE([Types.SHORT(), PAIR]), [43878, ["a", 1]], (-21658, ("a", 1))),
        (Types.ROW([Types.BYTE()]), (300,), Row(f0=44)),
        (Types.LIST(Types.BYTE()), (300, 1), [44, 1]),
    ],
)
def test_integers_of_a_collection_wrap_around(info: Any, value: Any, wrapped: Any) -> None:
    convert = collection_converter(info)
    assert convert is not None
    assert convert(value) == wrapped


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 64, 1 << 70])
def test_what_64_bits_cannot_hold_is_refused_in_a_collection_too(number: int) -> None:
    for info in (Types.LONG(), Types.SHORT(), Types.TUPLE([Types.LONG()]), Types.ROW([Types.LONG()])):
        convert = collection_converter(info)
        assert convert is not None
        with pytest.raises(ArgumentTypeError, match=r"is declared as (LONG|SHORT)") as caught:
            convert(number if info in (Types.LONG(), Types.SHORT()) else (number,))
        assert str(caught.value.found).endswith("it does not fit in 64 bits")


def test_types_that_change_nothing_cost_nothing_inside_a_chain() -> None:
    info: Any
    for info in (Types.INT(), Types.STRING(), PAIR, Types.LIST(PAIR), Types.MAP(Types.STRING(), Types.LONG())):
        assert converter(info) is None
        assert boundary(info) is not None
    for info in (
        Types.DOUBLE(),
        Types.ROW([Types.INT()]),
        Types.TUPLE([Types.SQL_TIME()]),
        Types.LIST(Types.BIG_DEC()),
    ):
        assert converter(info) is not None
        assert boundary(info) is None
    for info in (None, Types.PICKLED_BYTE_ARRAY()):
        assert converter(info) is boundary(info) is collection_converter(info) is None


def test_a_record_of_the_declared_classes_is_handed_on_as_it_is() -> None:
    info = Types.ROW_NAMED(["a", "b", "c"], [Types.INT(), Types.DOUBLE(), Types.STRING()])
    row, pair = Row(a=1, b=0.5, c="x"), ("a", 1)
    assert Conversion(info)(row) is row
    assert Conversion(PAIR)(pair) is pair


EXACT = Types.TUPLE([Types.INT(), Types.DOUBLE(), Types.STRING(), Types.BOOLEAN(), Types.LIST(Types.LONG())])
values = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.booleans(),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)


@given(st.lists(values))
def test_values_of_the_type_come_out_equal(batch: list[Any]) -> None:
    assert repr(Boundary(EXACT)(batch)) == repr(batch)
    assert [Decimal(value[1]) for value in Boundary(EXACT)(batch)] == [Decimal(value[1]) for value in batch]


def test_a_batch_of_tuples_as_declared_passes_as_it_is_and_one_other_record_is_found() -> None:
    through = boundary(Types.TUPLE([Types.LONG(), Types.STRING()]))
    assert through is not None
    values = [(1, "a"), (2, "b")]
    assert through(values) is values
    for wrong in ((1 << 63, "a"), (1, 2), ("1", "a")):
        with pytest.raises(ArgumentTypeError):
            through([*values, wrong])


def test_a_collection_takes_objects_whose_attributes_are_called_like_the_fields() -> None:
    class Sensor:
        def __init__(self, id: str, level: int) -> None:
            self.id, self.level = id, level

    info = Types.ROW_NAMED(["level", "id", "more"], [Types.INT(), Types.STRING(), Types.INT()])
    convert = collection_converter(info)
    assert convert is not None and convert(Sensor("s1", 3)) == Row(level=3, id="s1", more=None)
    with pytest.raises(ArgumentTypeError, match="is declared as a Row, tuple, list or dict with one value for each of"):
        convert(object())
    with pytest.raises(ArgumentTypeError, match="is declared as a Row, tuple, list or dict with one value for each of"):
        Conversion(info)(Sensor("s1", 3))
