"""Records in buffers: whatever their function does with them afterwards, they stay as they were emitted."""

from __future__ import annotations

import datetime
import enum
import threading
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tidegate.common import Row, RowKind, Types
from tidegate.graph.transformation import OutputTag
from tidegate.operators.loop.ownership import is_immutable, own

Point = namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = 1


@dataclass
class Order:
    items: list[Any]


@dataclass(frozen=True)
class Fixed:
    name: str
    parts: Any = None


@dataclass(frozen=True, slots=True)
class FixedSlots:
    name: str
    parts: Any = None


@dataclass(slots=True)
class Slots:
    name: str
    parts: Any = None


class Loose(Fixed):
    """Not a data class itself: it may have attributes of its own."""


class FixedStruct(msgspec.Struct, frozen=True):
    name: str
    parts: Any = None


class Struct(msgspec.Struct):
    name: str
    parts: Any = None


class Plain:
    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parts})"


class WithoutLock(Plain):
    """Its copy is what its own hooks make of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": "none"}


class TupleWithFields(tuple[int, ...]):
    more: list[int]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        1 << 80,
        "text",
        b"b",
        1.5,
        True,
        (),
        (1, "a", None),
        Color.RED,
        OutputTag("t"),
        datetime.date(2024, 2, 29),
        Point(1, "a"),
        Fixed("a"),
        FixedSlots("a", 1.5),
        FixedStruct("a", b"b"),
    ],
)
def test_what_cannot_change_is_not_copied(value: Any) -> None:
    assert own(value) is value


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        [[1], {"a": [2]}],
        {"a": 1},
        {"a": [1]},
        {1, 2},
        bytearray(b"x"),
        (1, [2]),
        Point(1, [2]),
        Row(1, "a"),
        Row(id=1, parts=[1]),
        Row.of_kind(RowKind.DELETE, 1),
        Order([1, [2]]),
        Fixed("a", [1]),
        FixedSlots("a", [1]),
        FixedStruct("a", {1: 2}),
        Struct("a"),
        Struct("a", [1]),
        Slots("a"),
        Slots("a", [1]),
        Plain(1),
        Plain([1]),
        Loose("a"),
        TupleWithFields((1, 2)),
    ],
    ids=str,
)
def test_what_can_change_is_copied_with_all_its_parts(value: Any) -> None:
    copied = own(value)
    assert copied is not value
    assert type(copied) is type(value)
    assert copied == value
    assert repr(copied) == repr(value)


def test_a_copy_stays_when_the_original_changes() -> None:
    inner = [1]
    tuple_, dict_, row, order = (inner, 1), {"a": inner}, Row(inner), Order(inner)
    copies = [own(value) for value in (tuple_, dict_, row, order)]
    inner.append(2)
    row[0] = "changed"
    assert repr(copies) == "[([1], 1), {'a': [1]}, <Row([1])>, Order(items=[1])]"


def test_a_record_that_contains_itself_is_copied() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    copied = own(circle)
    circle[0] = 2
    assert copied[0] == 1
    assert copied[1] is copied


def test_what_cannot_be_copied_is_left_for_the_buffer_to_refuse() -> None:
    lock = threading.Lock()
    assert own(lock) is lock


def test_declared_types_that_hold_nothing_that_changes() -> None:
    pair = Types.TUPLE([Types.LONG(), Types.STRING()])
    assert all(map(is_immutable, [Types.INT(), Types.STRING(), Types.SQL_DATE(), pair, Types.TUPLE([pair])]))
    changing = [None, Types.PICKLED_BYTE_ARRAY(), Types.LIST(Types.INT()), Types.ROW([Types.INT()])]
    assert not any(map(is_immutable, [*changing, Types.MAP(Types.INT(), Types.INT()), Types.TUPLE([Types.ROW([])])]))


@pytest.mark.parametrize("parts", [1, [1]])
def test_a_class_with_hooks_of_its_own_is_copied_by_them(parts: Any) -> None:
    assert own(WithoutLock(parts)).parts == "none"


class StructOfItsOwnMind(msgspec.Struct):
    number: int

    def __copy__(self) -> StructOfItsOwnMind:
        return self


def test_a_struct_that_does_not_copy_itself_is_copied() -> None:
    struct = StructOfItsOwnMind(1)
    copied = own(struct)
    struct.number = 2
    assert copied.number == 1


def test_an_attribute_that_is_added_later_is_copied_too() -> None:
    first, second = Plain(1), Plain(1)
    own(first)  # the class is known from here on
    second.more = [1]  # type: ignore[attr-defined]
    copied: Any = own(second)
    second.more.append(2)  # type: ignore[attr-defined]
    assert copied.more == [1]


def test_a_slot_without_a_value_stays_without_one() -> None:
    @dataclass(slots=True, frozen=True)
    class Half:
        one: int
        other: int

    half = object.__new__(Half)
    object.__setattr__(half, "one", 1)
    assert own(half).one == 1
    assert not hasattr(own(half), "other")
