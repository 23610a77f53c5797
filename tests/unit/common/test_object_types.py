"""Types by classes and annotations."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypedDict

import msgspec
import pytest

from tests.simulation.executor import Simulated
from tests.unit.snapshots.snapshot_jobs import kept, run
from tidegate.base.errors import ArgumentTypeError, StateFormatError, TidegateError, UserCodeError
from tidegate.common import Types
from tidegate.common.object_types import ObjectTypeInfo, type_of
from tidegate.common.type_texts import parse_type
from tidegate.datastream import KeyedProcessFunction, OutputTag, RuntimeContext
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.operators.flow.packing import Packer
from tidegate.state.codecs import codec_for, list_codec_for


@dataclass
class Item:
    name: str
    price: decimal.Decimal


@dataclass(frozen=True)
class Order:
    customer: str
    items: list[Item]
    at: datetime.datetime | None = None


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str


class Ordered(msgspec.Struct, array_like=True):
    a: int


class Tagged(msgspec.Struct, tag=True):
    a: int


class Omitting(msgspec.Struct, omit_defaults=True):
    """Its stored state would have the default of the class that reads it."""

    a: int = 1


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class NotAllFields:
    a: int
    b: InitVar[int]
    c: int = field(init=False, default=1)


class Loose(TypedDict):
    a: int


Untyped = namedtuple("Untyped", "a")


@pytest.mark.parametrize(
    ("declared", "described"),
    [
        (int, "LONG"),
        (str, "STRING"),
        (float, "DOUBLE"),
        (bytes, "PRIMITIVE_ARRAY<BYTE>"),
        (list[int], "LIST<LONG>"),
        (dict[str, list[float]], "MAP<STRING, LIST<DOUBLE>>"),
        (tuple[int, str], "TUPLE<LONG, STRING>"),
        (Optional[int], "LONG"),  # noqa: UP045 - the older spelling too
        (int | None, "LONG"),
        (Point, "NAMED_TUPLE<x: LONG, y: DOUBLE>"),
        (Item, "OBJECT<name: STRING, price: BIG_DEC>"),
        (Order, "OBJECT<customer: STRING, items: LIST<OBJECT<name: STRING, price: BIG_DEC>>, at: SQL_TIMESTAMP>"),
        (Renamed, "OBJECT<firstName: STRING>"),
        (Ordered, "NAMED_TUPLE<a: LONG>"),
        (Types.ROW([Types.INT()]), "ROW<f0: INT>"),
        *(
            (kind, "pickle")
            for kind in (Tagged, Omitting, Tree, NotAllFields, Loose, Untyped, object, set[int], int | str, dict)
        ),
    ],
)
def test_a_class_or_annotation_names_a_type(declared: Any, described: str) -> None:
    info = type_of("map", declared)
    assert info is not None
    assert info.describe() == described
    assert parse_type(described).describe() == described


@pytest.mark.parametrize("declared", [5, "int", Types.STRING, [int], ...])
def test_what_is_neither_a_type_nor_a_class_is_refused(declared: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="map takes type information, a class or None"):
        type_of("map", declared)


def test_classes_with_the_same_fields_are_different_types() -> None:
    same = ObjectTypeInfo({"x": Types.LONG(), "y": Types.DOUBLE()}, None, by_position=True)
    assert type_of("map", Point) == type_of("map", Point)
    assert type_of("map", Point) != same
    assert type_of("map", Point).describe() == same.describe()  # type: ignore[union-attr]


ORDERS = [Order("ada", [Item("a", decimal.Decimal("1.50"))], datetime.datetime(2026, 1, 2, 3, 4, 5)), Order("bob", [])]


@pytest.mark.parametrize("values", [ORDERS, [Point(1, 2.5), Point(-1)], [Renamed("a")], [Ordered(1)]])
def test_objects_are_stored_and_sent_as_they_are_without_pickle(values: list[Any]) -> None:
    info = type_of("map", type(values[0]))
    codec, packer = codec_for(info), Packer(info, "next")
    assert [codec.decode(data) for data in codec.encode_all(values) if data is not None] == values
    packed = packer.pack(values)
    assert packed[0] != 0x80
    assert repr(packer.unpack_list(packed)) == repr(values)
    assert [type(value) for value in packer.unpack_list(packed)] == [type(value) for value in values]


@dataclass
class Sealed(Item):
    seal: str = ""


@dataclass
class InCents:
    amount: int

    def __post_init__(self) -> None:
        self.amount *= 100


CEST = datetime.timezone(datetime.timedelta(hours=2))
NOT_AS_DECLARED = [
    Order("ada", [Sealed("a", decimal.Decimal(1), "red")]),
    Order("ada", [], datetime.datetime(2026, 1, 2, tzinfo=CEST)),
]


@pytest.mark.parametrize("value", NOT_AS_DECLARED)
def test_parts_that_would_come_back_changed_are_sent_by_pickle_and_refused_in_state(value: Order) -> None:
    info = type_of("map", Order)
    packer, codec = Packer(info, "next"), codec_for(info)
    assert repr(packer.unpack_list(packer.pack([*ORDERS, value]))) == repr([*ORDERS, value])
    for stored in (codec, codec_for(type_of("map", dict[str, Order])), list_codec_for(info)):
        one: Any = value if stored is codec else {"a": value} if stored.describe.startswith("MAP") else [value]
        with pytest.raises(StateFormatError, match="would come back changed"):
            stored.encode_all([one])


def test_an_object_of_a_subclass_is_refused_wherever_its_class_is_declared() -> None:
    sealed, info = Sealed("a", decimal.Decimal(1), "red"), type_of("map", tuple[Item, int])
    with pytest.raises(StateFormatError, match="would come back changed"):
        codec_for(type_of("map", Item)).encode_all([sealed])
    with pytest.raises(UserCodeError, match="declared as an object of Item"):
        Packer(info, "next").pack([(sealed, 1)])


@pytest.mark.parametrize("kind", [InCents, list[InCents]])
def test_a_class_with_post_init_is_pickled_so_that_it_does_not_run_again(kind: Any) -> None:
    info, value = type_of("map", kind), InCents(5) if kind is InCents else [InCents(5)]
    codec, packer = codec_for(info), Packer(info, "next")
    assert info == Types.PICKLED_BYTE_ARRAY()
    assert codec.decode_all(codec.encode_all([value])) == packer.unpack_list(packer.pack([value])) == [value]


def test_state_of_a_class_that_is_gone_is_read_by_its_fields() -> None:
    (stored,) = codec_for(type_of("map", Order)).encode_all(ORDERS[:1])
    described = type_of("map", Order).describe()  # type: ignore[union-attr]
    assert stored is not None
    assert codec_for(parse_type(described)).decode(stored)["items"] == [{"name": "a", "price": "1.50"}]
    (point,) = codec_for(type_of("map", Point)).encode_all([Point(1)])
    assert point is not None
    assert codec_for(parse_type("NAMED_TUPLE<x: LONG, y: DOUBLE>")).decode(point)._asdict() == {"x": 1, "y": 0.0}


def test_a_value_with_a_field_of_another_type_is_refused_where_it_is_stored() -> None:
    with pytest.raises(StateFormatError, match=r"(?s)Item\(name=5.*Expected `str`, got `int`"):
        codec_for(type_of("map", Item)).encode_all([Item(5, decimal.Decimal(1))])  # type: ignore[arg-type]


def test_a_record_with_a_field_of_another_type_is_refused_where_it_arrives() -> None:
    packer = Packer(type_of("map", Item), "next")
    with pytest.raises(
        UserCodeError, match=r"(?s)not of its declared type.*Expected `str`, got `int` - at `\$\[0\].name"
    ):
        packer.unpack_list(packer.pack([Item(5, decimal.Decimal(1))]))  # type: ignore[arg-type]


def test_a_record_of_another_class_is_refused() -> None:
    @dataclass
    class More(Item):
        more: int = 0

    packer = Packer(type_of("map", Item), "next")
    with pytest.raises(UserCodeError, match="declared as an object of Item"):
        packer.pack([More("a", decimal.Decimal(1))])


LATE = OutputTag("late", Point)


class Totals(KeyedProcessFunction[Point, Item, int]):
    """Keeps objects in state, by classes alone."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", Point))
        self.items = context.get_map_state(MapStateDescriptor("items", str, Item))

    def process_element(self, point: Point, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        last = self.last.value()
        self.last.update(point)
        item = self.items.get("sum") or Item("sum", decimal.Decimal(0))
        item.price += decimal.Decimal(point.y)
        self.items.put("sum", item)
        yield Item(f"{point.x} after {last.y if last else None}", item.price)
        yield LATE, point


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_program_with_classes_as_types(simulated: Simulated, backend: str) -> None:
    keys = {"state.backend.type": backend, "execution.checkpointing.interval": "10 ms"}
    env = simulated(**keys)
    points = env.from_collection([Point(n % 2, float(n)) for n in range(6)], Point)
    done = points.key_by(lambda point: point.x, int).process(Totals(), Item)
    found = done.union(done.get_side_output(LATE).map(lambda point: Item(f"late {point.x}", decimal.Decimal(0)), Item))
    items = found.execute_and_collect(limit=20)
    texts = sorted(f"{item.name}: {item.price}" for item in items)
    assert texts == sorted(
        [
            *(
                "0 after None: 0",
                "0 after 0.0: 2",
                "0 after 2.0: 6",
                "1 after None: 1",
                "1 after 1.0: 4",
                "1 after 3.0: 9",
            ),
            *(["late 0: 0"] * 3),
            *(["late 1: 0"] * 3),
        ]
    )


@dataclass
class Changed:
    x: int
    y: str


class Last(KeyedProcessFunction[int, int, int]):
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def open(self, context: RuntimeContext) -> None:
        self.state = context.get_state(ValueStateDescriptor("last", self.kind))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.state.update(self.kind(value, 1.0))
        yield value


def last(kind: Any) -> Any:
    return lambda env, numbers: numbers.key_by(lambda n: n % 7, int).process(Last(kind), int).uid("last")


def test_state_of_a_class_whose_fields_changed_is_refused_by_its_fields(tmp_path: Path) -> None:
    reader = kept(last(Point), tmp_path / "before")
    stored = next(iter(reader.read("last", "last")))
    assert stored.value._asdict() == {"x": stored.value[0], "y": 1.0}
    with pytest.raises(TidegateError, match=r"(?s)NAMED_TUPLE<x: LONG, y: DOUBLE>.*OBJECT<x: LONG, y: STRING>"):
        run(last(Changed), tmp_path / "after", restore=reader.address)


def test_a_class_of_the_main_program_can_still_be_pickled_by_value() -> None:
    """Msgspec's notes on a class cannot be pickled."""
    program = """
from dataclasses import dataclass
from typing import NamedTuple
import cloudpickle
from tidegate.common.object_types import type_of
from tidegate.operators.flow.packing import Packer
from tidegate.state.codecs import codec_for, list_codec_for

@dataclass
class Item:
    name: str

class Order(NamedTuple):
    items: list[Item]

info = type_of("map", Order)
packer = Packer(info, "next")
assert packer.unpack_list(packer.pack([Order([Item("a")])])) == [Order([Item("a")])]
codec_for(info), list_codec_for(info), codec_for(type_of("map", dict[str, Item]))
cloudpickle.dumps([Order([Item("a")]), Item("b"), Order, Item])
print(info)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Order(items)\n"), done.stderr
