"""Columns of chunks: exactly what went in comes out."""

from __future__ import annotations

import datetime
import enum
import math
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import StateFormatError, UserCodeError
from tidegate.common import Types
from tidegate.operators.flow.packing import OBJECTS, PLAIN, Packer, length_of

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


class Trip(NamedTuple):
    start: Any
    end: Any = None


class LongTrip(Trip):
    """A subclass of a named tuple may have anything."""


class WatchedTrip(namedtuple("WatchedTrip", "start end")):
    def __reduce__(self) -> Any:
        return WatchedTrip, ("seen", self.end)


@dataclass(slots=True)
class Slots:
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class OneSlot:
    a: Any


@dataclass(slots=True)
class MoreSlots(Slots):
    c: Any


@dataclass
class Plain:
    a: Any
    b: Any


CLASSES: list[Any] = [Trip, Slots, FrozenSlots, Plain]


@given(st.sampled_from(CLASSES), st.lists(st.tuples(scalars, scalars | st.lists(st.integers())), min_size=1))
def test_objects_come_back_exactly(kind: Any, fields: list[tuple[Any, Any]]) -> None:
    values = [kind(*pair) for pair in fields]
    _, back = there_and_back(values)
    assert exactly(back) == exactly(values)
    assert [type(value) for value in back] == [kind] * len(values)


@pytest.mark.parametrize(
    ("values", "short"),
    [
        ([Trip(1, "a"), Trip(2)], True),
        ([FrozenSlots(1, 2.5)], True),
        ([OneSlot(1), OneSlot("b")], True),
        ([MoreSlots(1, 2, 3)], True),
        ([Slots(1, [2])], False),
        ([Slots(1, 1 << 70)], False),
        ([Trip(1), Slots(1, 2)], False),
        ([Trip(Number.ONE)], False),
        ([LongTrip(1)], False),
        ([WatchedTrip(1, 2)], False),
        ([Plain(1, 2)], False),
        ([object.__new__(Slots)], False),
    ],
)
def test_objects_take_the_short_way_where_nothing_is_lost(values: list[Any], short: bool) -> None:
    data = PLAIN.pack(values)
    assert (data[0] == OBJECTS) == short
    assert length_of(data) == len(values)
    back = PLAIN.unpack_list(data)
    if not isinstance(values[0], WatchedTrip):
        assert [type(value) for value in back] == [type(value) for value in values]
        assert [repr(v) for v in back if hasattr(v, "a")] == [repr(v) for v in values if hasattr(v, "a")]
    else:
        assert back == [("seen", 2)]


def test_a_class_without_a_name_is_refused_as_before() -> None:
    local = namedtuple("local", "x")  # type: ignore[name-match]
    with pytest.raises(pickle.PicklingError):
        PLAIN.pack([local(1)])


def test_objects_of_another_version_are_refused() -> None:
    data = bytearray(PLAIN.pack([Trip(1)]))
    data[1] = 9
    with pytest.raises(StateFormatError, match="objects of version 9"):
        PLAIN.unpack_list(bytes(data))
