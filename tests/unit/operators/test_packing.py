"""Columns of chunks: exactly what went in comes out."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common import Row, Types
from tidegate.common.errors import UserCodeError
from tidegate.operators.packing import PLAIN, Packer

PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])
NESTED = Types.TUPLE([PAIR, Types.DOUBLE(), Types.BOOLEAN()])
Point = namedtuple("Point", "x y")


class Number(enum.IntEnum):
    ONE = 1


def exactly(values: list[Any]) -> list[Any]:
    return [(type(v), exactly(list(v)) if isinstance(v, tuple) else repr(v)) for v in values]


def there_and_back(values: list[Any], declared: Any = None) -> tuple[bool, Any]:
    data = Packer(declared).pack(values)
    return data[0] != 0x80, Packer(declared).unpack(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.lists(scalars | st.tuples(scalars, scalars), min_size=1))
def test_anything_comes_back_exactly_without_a_declared_type(values: list[Any]) -> None:
    _, back = there_and_back(values)
    assert exactly(back) == exactly(values)


fields = st.tuples(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(), st.none() | st.text())


@given(st.lists(fields, min_size=1))
def test_declared_tuples_come_back_exactly(values: list[Any]) -> None:
    _, back = there_and_back(values, PAIR)
    assert exactly(back) == exactly(values)


@pytest.mark.parametrize(
    ("values", "declared", "short"),
    [
        ([1, None, True, 2.5, "a", b"b"], None, True),
        ([(1, "a"), (None, None)], PAIR, True),
        ([((1, "a"), 2.0, True), ((2, "b"), math.inf, False)], NESTED, True),
        ([(1, "a")], None, False),
        ([1, 2], PAIR, False),
        ([(2**80, "a")], PAIR, False),
        ([(1, "\ud800")], PAIR, False),
        ([[1, "a"]], PAIR, False),
        ([Point(1, "a")], PAIR, False),
        ([Row(1, "a")], PAIR, False),
        ([Number.ONE], None, False),
        ([datetime.date(2026, 1, 1)], Types.STRING(), False),
        ([{"a": 1}], None, False),
    ],
)
def test_the_short_way_is_taken_where_nothing_is_lost(values: list[Any], declared: Any, short: bool) -> None:
    packed, back = there_and_back(values, declared)
    assert (packed, exactly(back)) == (short, exactly(values))


@pytest.mark.parametrize("wrong", [("a", "b"), (decimal.Decimal(1), 1), (1, decimal.Decimal(1)), (1,), (1, "a", 2)])
def test_records_of_another_type_than_declared_are_named(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(UserCodeError, match="declared"):
        there_and_back([wrong], PAIR)


def test_keys_and_timestamps() -> None:
    assert PLAIN.unpack(PLAIN.pack([1, None, 3])) == [1, None, 3]
