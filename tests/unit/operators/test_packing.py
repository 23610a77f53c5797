"""Columns of chunks: exactly what went in comes out."""

from __future__ import annotations

import datetime
import enum
import math
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import UserCodeError
from tidegate.common import Types
from tidegate.operators.flow.packing import PLAIN, Packer

PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])
NESTED = Types.TUPLE([PAIR, Types.DOUBLE(), Types.BOOLEAN()])
Point = namedtuple("Point", "x y")


class Number(enum.IntEnum):
    ONE = 1


def exactly(values: list[Any]) -> list[Any]:
    return [(type(v), exactly(list(v)) if isinstance(v, tuple) else repr(v)) for v in values]


def there_and_back(values: list[Any], declared: Any = None) -> tuple[bool, Any]:
    data = Packer(declared, "next").pack(values)
    return data[0] != 0x80, Packer(declared, "next").unpack_list(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.lists(scalars | st.tuples(scalars, scalars), min_size=1))
def test_anything_comes_back_exactly_without_a_declared_type(values: list[Any]) -> None:
    _, back = there_and_back(values)
    assert exactly(back) == exactly(values)


numbers = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e15, 1e15)


@given(st.lists(st.tuples(numbers, st.none() | st.text()), min_size=1))
def test_declared_tuples_come_back_as_declared(values: list[Any]) -> None:
    _, back = there_and_back(values, PAIR)
    assert exactly(back) == exactly([(None if number is None else int(number), text) for number, text in values])


@given(st.lists(st.none() | st.booleans() | st.integers(-(2**15), 2**15 - 1), min_size=1))
def test_declared_numbers_come_back_as_declared(values: list[Any]) -> None:
    _, back = there_and_back(values, Types.SHORT())
    assert exactly(back) == exactly([None if number is None else int(number) for number in values])


@pytest.mark.parametrize(
    ("values", "declared", "short"),
    [
        ([1, None, True, 2.5, "a", b"b"], None, True),
        ([(1, "a"), (None, None)], PAIR, True),
        ([((1, "a"), 2.0, True), ((2, "b"), math.inf, False)], NESTED, True),
        ([(1, "a")], None, False),
        ([(1, "\ud800")], PAIR, False),
        ([Number.ONE], None, False),
        ([{"a": 1}], None, False),
    ],
)
def test_the_short_way_is_taken_where_nothing_is_lost(values: list[Any], declared: Any, short: bool) -> None:
    packed, back = there_and_back(values, declared)
    assert (packed, exactly(back)) == (short, exactly(values))


@pytest.mark.parametrize(
    ("wrong", "declared", "place", "found"),
    [
        (("a", "b"), PAIR, "field [0] is declared as LONG", "str 'a': an integer is required"),
        ((1, 2), PAIR, "field [1] is declared as STRING", "int 2: a text is required"),
        ((2**63, "a"), PAIR, "field [0] is declared as LONG", "it does not fit in 64 bits"),
        ((2**80, "a"), PAIR, "field [0] is declared as LONG", "it does not fit in 64 bits"),
        ((1,), PAIR, "the record is declared as a tuple of 2 fields", "tuple (1,)"),
        ([1, "a"], PAIR, "the record is declared as a tuple of 2 fields", "list [1, 'a']"),
        (5, PAIR, "the record is declared as a tuple of 2 fields", "int 5"),
        (((1, 5), 2.0, True), NESTED, "field [0][1] is declared as STRING", "int 5: a text is required"),
        (43878, Types.SHORT(), "the record is declared as SHORT", "int 43878: it does not fit in 16 bits"),
        (datetime.date(2026, 1, 1), Types.STRING(), "the record is declared as STRING", "a text is required"),
        ([1, "a"], Types.LIST(Types.INT()), "field [] is declared as INT", "str 'a': an integer is required"),
    ],
)
def test_records_of_another_type_than_declared_are_named(wrong: Any, declared: Any, place: str, found: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        there_and_back([wrong], declared)
    assert f"A record is not of its declared type: {place}" in caught.value.rule
    assert found in str(caught.value.found)
    assert caught.value.where == f"records declared as {declared}, sent to next"


def test_a_tuple_of_another_class_or_with_more_fields_comes_out_as_declared() -> None:
    assert exactly(there_and_back([Point(1, "a"), (1, "b", 2)], PAIR)[1]) == exactly([(1, "a"), (1, "b")])


def test_keys_and_timestamps() -> None:
    assert PLAIN.unpack_list(PLAIN.pack([1, None, 3])) == [1, None, 3]
