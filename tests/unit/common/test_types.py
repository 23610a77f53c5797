"""Rows, type information, time classes."""

from __future__ import annotations

import copy
import datetime
import pickle
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError, ProgramError
from tidegate.common import Duration, Instant, Row, RowKind, Time, TypeInformation, Types
from tidegate.common.conversion import converter
from tidegate.common.time import millis_of
from tidegate.common.typeinfo import RowTypeInfo
from tidegate.table.types import DataTypes, RowType


def test_row_by_position_name_and_attribute() -> None:
    row = Row(id=1, name="a")
    assert (row[0], row["name"], row.name, len(row), list(row)) == (1, "a", "a", 2, [1, "a"])
    assert "id" in row
    assert 1 in Row(1, 2)
    row["name"] = "b"
    row[0] = 2
    assert row == Row(id=2, name="b")
    assert row[0:1] == [2]
    person = Row("id", "name")
    assert person(1, "a") == Row(id=1, name="a")
    assert repr(person(1, "a")) == "Row(id=1, name='a')"
    assert repr(Row(1, "x")) == "<Row(1, 'x')>"


def test_rows_are_equal_by_kind_names_and_values() -> None:
    assert Row(1, 2) == Row(1, 2)
    assert Row(1, 2) != Row(a=1, b=2)
    assert Row(1, 2) != (1, 2)
    assert Row.of_kind(RowKind.DELETE, 1, 2) != Row(1, 2)
    assert hash(Row(1, 2)) == hash(Row(1, 2))
    assert Row(a=1, b=2) == Row(b=2, a=1)
    assert hash(Row(a=1, b=2)) == hash(Row(b=2, a=1))
    assert Row(a=1, b=2) != Row(b=1, a=2)
    assert Row(a=1, b=2) != Row(a=1, c=2)
    assert str(RowKind.UPDATE_AFTER) == "+U"


def test_row_as_dict_and_field_names() -> None:
    row = Row(a=[Row(b=1)], c={"k": Row(d=1)})
    assert row.as_dict(recursive=True) == {"a": [{"b": 1}], "c": {"k": {"d": 1}}}
    assert Row(a=Row(b=1)).as_dict() == {"a": Row(b=1)}
    with pytest.raises(TypeError, match="set_field_names"):
        Row(1).as_dict()
    plain = Row(1, 2)
    plain.set_field_names(["x", "y"])
    assert plain.get_fields_by_names(["y", "x"]) == [2, 1]
    with pytest.raises(ProgramError, match="The Row has no such field"):
        plain.get_fields_by_names(["z"])


def test_row_mistakes() -> None:
    with pytest.raises(ProgramError, match="mixes positional and named fields"):
        Row(1, a=2)
    with pytest.raises(AttributeError, match="z"):
        _ = Row(a=1).z
    with pytest.raises(KeyError, match="no field names"):
        _ = Row(1)["a"]
    with pytest.raises(ProgramError, match="more values than it has field names"):
        Row("a")(1, 2)


@pytest.mark.parametrize("row", [Row(1, "a"), Row(a=1, b=None), Row.of_kind(RowKind.DELETE, a=1), Row()])
def test_rows_pickle_and_copy(row: Row) -> None:
    for again in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert again == row
        assert again.get_row_kind() is row.get_row_kind()


def test_a_pickled_row_in_a_chunk_costs_little_more_than_its_tuple() -> None:
    names = ["customer", "amount"]
    rows = [Row(n, n) for n in range(1000)]
    for row in rows:
        row._fields = names
    tuples = len(pickle.dumps([(n, n) for n in range(1000)], protocol=5))
    assert len(pickle.dumps(rows, protocol=5)) < 2.5 * tuples


# -- types

INFOS: list[tuple[TypeInformation, str, str]] = [
    (Types.STRING(), "String", "STRING"),
    (Types.INT(), "Integer", "INT"),
    (Types.LONG(), "Long", "LONG"),
    (Types.BIG_INT(), "BigInteger", "BIG_INT"),
    (Types.BIG_DEC(), "BigDecimal", "BIG_DEC"),
    (Types.INSTANT(), "Instant", "INSTANT"),
    (Types.SQL_DATE(), "DateTypeInfo", "SQL_DATE"),
    (Types.SQL_TIME(), "TimeTypeInfo", "SQL_TIME"),
    (Types.SQL_TIMESTAMP(), "TimestampTypeInfo", "SQL_TIMESTAMP"),
    (Types.PICKLED_BYTE_ARRAY(), "PickledByteArrayTypeInfo", "pickle"),
    (Types.ROW([Types.INT(), Types.STRING()]), "RowTypeInfo(Integer, String)", "ROW<f0: INT, f1: STRING>"),
    (Types.ROW_NAMED(["a"], [Types.INT()]), "RowTypeInfo(a: Integer)", "ROW<a: INT>"),
    (Types.TUPLE([Types.INT(), Types.STRING()]), "TupleTypeInfo(Integer, String)", "TUPLE<INT, STRING>"),
    (Types.PRIMITIVE_ARRAY(Types.INT()), "PrimitiveArrayTypeInfo<Integer>", "PRIMITIVE_ARRAY<INT>"),
    (Types.BASIC_ARRAY(Types.STRING()), "BasicArrayTypeInfo<String>", "BASIC_ARRAY<STRING>"),
    (
        Types.OBJECT_ARRAY(Types.TUPLE([Types.INT()])),
        "ObjectArrayTypeInfo<TupleTypeInfo(Integer)>",
        "OBJECT_ARRAY<TUPLE<INT>>",
    ),
    (Types.MAP(Types.STRING(), Types.INT()), "MapTypeInfo<String, Integer>", "MAP<STRING, INT>"),
    (Types.LIST(Types.INT()), "ListTypeInfo<Integer>", "LIST<INT>"),
]


@pytest.mark.parametrize(("info", "shown", "described"), INFOS, ids=[entry[2] for entry in INFOS])
def test_types_look_like_pyflinks_and_have_a_stable_text(info: TypeInformation, shown: str, described: str) -> None:
    assert str(info) == repr(info) == shown
    assert info.describe() == described
    assert pickle.loads(pickle.dumps(info)) == info


def test_types_are_equal_by_structure_only() -> None:
    for index, (info, _, _) in enumerate(INFOS):
        for other_index, (other, _, _) in enumerate(INFOS):
            assert (info == other) == (index == other_index)
            assert info != "INT"
    assert len({info for info, _, _ in INFOS}) == len(INFOS)


SCHEMAS: list[tuple[TypeInformation, list[Any]]] = [
    (Types.LONG(), [0, -(1 << 63), (1 << 63) - 1]),
    (Types.BYTE(), [7]),
    (Types.BOOLEAN(), [True, False]),
    (Types.DOUBLE(), [1.5, float("inf")]),
    (Types.STRING(), ["", "ä"]),
    (Types.CHAR(), ["x"]),
    (Types.BIG_DEC(), [Decimal("1.10")]),
    (Types.INSTANT(), [Instant(5, 7)]),
    (Types.SQL_DATE(), [datetime.date(2024, 2, 29)]),
    (Types.SQL_TIME(), [datetime.time(1, 2, 3, 4)]),
    (Types.SQL_TIMESTAMP(), [datetime.datetime(2024, 1, 2, 3, 4, 5, 6)]),
    (Types.TUPLE([Types.LONG(), Types.STRING()]), [(1, "a"), (1, None)]),
    (Types.TUPLE([Types.TUPLE([Types.INT()]), Types.LIST(Types.DOUBLE())]), [((1,), [1.0])]),
    (Types.LIST(Types.LONG()), [[], [1, 2]]),
    (Types.MAP(Types.STRING(), Types.LIST(Types.LONG())), [{"a": [1]}, {}]),
    (Types.MAP(Types.LONG(), Types.STRING()), [{1: "a"}]),
    (Types.MAP(Types.TUPLE([Types.INT(), Types.STRING()]), Types.INT()), [{(1, "a"): 2}]),
    (Types.MAP(Types.SQL_DATE(), Types.INT()), [{datetime.date(2024, 1, 1): 2}]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"abc"]),
    (Types.PRIMITIVE_ARRAY(Types.INT()), [[1, 2]]),
    (Types.BASIC_ARRAY(Types.STRING()), [["a", None]]),
]


@pytest.mark.parametrize(("info", "values"), SCHEMAS, ids=[info.describe() for info, _ in SCHEMAS])
def test_schemas_take_values_through_msgspec_unchanged(info: TypeInformation, values: list[Any]) -> None:
    decoder = msgspec.msgpack.Decoder(info.to_schema())
    for value in values:
        again = decoder.decode(msgspec.msgpack.encode(value))
        assert again == value
        assert type(again) is type(value)


@given(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.text(), st.lists(st.floats(allow_nan=False))))
def test_a_typed_tuple_survives_whatever_is_in_it(value: tuple[Any, ...]) -> None:
    info = Types.TUPLE([Types.LONG(), Types.STRING(), Types.LIST(Types.DOUBLE())])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=info.to_schema()) == value


def test_what_msgspec_cannot_hold_is_pickled() -> None:
    for info in (Types.BIG_INT(), Types.PICKLED_BYTE_ARRAY(), Types.ROW([Types.INT()])):
        assert info.to_schema() is None
        assert Types.TUPLE([Types.INT(), info]).to_schema() is None
        assert Types.LIST(info).to_schema() is None
        assert Types.MAP(Types.STRING(), info).to_schema() is None


def test_wrong_type_arguments() -> None:
    with pytest.raises(ArgumentTypeError, match=r"Types.TUPLE takes type information\n  found: type <class 'int'>"):
        Types.TUPLE([int])  # type: ignore[list-item]
    with pytest.raises(ArgumentTypeError, match="a primitive element type"):
        Types.PRIMITIVE_ARRAY(Types.STRING())
    with pytest.raises(ArgumentTypeError, match="a basic element type"):
        Types.BASIC_ARRAY(Types.LIST(Types.INT()))
    with pytest.raises(ProgramError, match="1 name for 2 types"):
        Types.ROW_NAMED(["a"], [Types.INT(), Types.INT()])


def test_row_type_fields() -> None:
    info = RowTypeInfo([Types.INT(), Types.STRING()], ["a", "b"])
    assert info.get_field_names() == ["a", "b"]
    assert info.get_field_index("b") == 1
    with pytest.raises(ValueError, match="not in list"):
        info.get_field_index("c")
    assert Types.ROW([Types.INT()]).get_field_index("f0") == -1
    assert info == Types.ROW([Types.INT(), Types.STRING()]) != Types.ROW([Types.INT()])
    assert info.get_field_types() == [Types.INT(), Types.STRING()]


# -- rows a declared type promises


def test_values_become_the_rows_their_type_promises() -> None:
    convert = converter(Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]))
    assert convert is not None
    for value in (Row(1, "x"), (1, "x"), [1, "x"], {"b": "x", "a": 1}, Row(b="x", a=1), Row(p=1, q="x")):
        assert convert(value) == Row(a=1, b="x")
    assert convert(None) is None
    assert pickle.loads(pickle.dumps(convert))((1, "x")) == Row(a=1, b="x")
    with pytest.raises(ArgumentTypeError, match="one value for each"):
        convert((1, 2, 3))
    with pytest.raises(ArgumentTypeError, match="a Row, tuple, list or dict"):
        convert(5)


def test_rows_inside_other_types_are_found_and_the_kind_stays() -> None:
    inner = Types.ROW([Types.INT()])
    row = Row(f0=1)
    assert converter(inner)(Row.of_kind(RowKind.DELETE, 1)).get_row_kind() is RowKind.DELETE  # type: ignore[misc]
    assert converter(Types.TUPLE([Types.INT(), inner]))((5, (1,))) == (5, row)  # type: ignore[misc]
    assert converter(Types.LIST(inner))([(1,), (1,)]) == [row, row]  # type: ignore[misc]
    assert converter(Types.MAP(Types.STRING(), inner))({"k": (1,)}) == {"k": row}  # type: ignore[misc]
    assert converter(Types.ROW([inner]))(((1,),)) == Row(f0=row)  # type: ignore[misc]


def test_types_without_rows_cost_nothing() -> None:
    for info in (None, Types.STRING(), Types.TUPLE([Types.INT()]), Types.LIST(Types.INT()), Types.PICKLED_BYTE_ARRAY()):
        assert converter(info) is None


# -- time


def test_durations_times_and_instants() -> None:
    assert Duration.of_days(1).to_millis() == 86_400_000
    assert Duration.of_seconds(3) == Duration.of_millis(3000)
    assert Duration.of_nanos(1_500_000).to_millis() == 1
    assert Duration.of_seconds(1) < Duration.of_minutes(1)
    assert hash(Duration.of_hours(1)) == hash(Duration.of_minutes(60))
    assert str(Time.seconds(3)) == "3000 ms"
    assert Time.days(1) == Time.milliseconds(86_400_000)
    assert Instant.of_epoch_milli(-1) == Instant(-1, 999_000_000)
    assert Instant.of_epoch_milli(-1).to_epoch_milli() == -1
    assert repr(Instant(1, 5)) == "Instant<1, 5>"
    assert hash(Instant(1, 5)) == hash(Instant(1, 5))


def test_a_bare_number_is_no_time_span() -> None:
    assert millis_of("wait", datetime.timedelta(seconds=2)) == 2000
    with pytest.raises(
        ArgumentTypeError, match=r"wait takes a Duration, a Time or a datetime.timedelta\n  found: int 5"
    ):
        millis_of("wait", 5)


def test_a_copy_of_a_row_has_values_of_its_own() -> None:
    row = Row.of_kind(RowKind.DELETE, a=1, b=[2])
    copied = copy.copy(row)
    row["a"] = 5
    assert repr(copied) == "Row(a=1, b=[2])"
    assert copied.get_row_kind() is RowKind.DELETE
    assert copied["b"] is row["b"]


@pytest.mark.parametrize(
    ("info", "value", "converted"),
    [
        (Types.DOUBLE(), 1, "1.0"),
        (Types.DOUBLE(), True, "1.0"),
        (Types.DOUBLE(), 0.1, "0.1"),
        (Types.DOUBLE(), None, "None"),
        (Types.FLOAT(), 0.1, "0.10000000149011612"),
        (Types.FLOAT(), 2, "2.0"),
        (Types.FLOAT(), -1e300, "-inf"),
        (Types.TUPLE([Types.DOUBLE(), Types.INT()]), (1, 2), "(1.0, 2)"),
        (Types.LIST(Types.DOUBLE()), [1, 2], "[1.0, 2.0]"),
        (Types.BASIC_ARRAY(Types.DOUBLE()), [1, None], "[1.0, None]"),
        (Types.MAP(Types.DOUBLE(), Types.DOUBLE()), {1: 2}, "{1.0: 2.0}"),
        (Types.ROW([Types.DOUBLE()]), Row(1), "Row(f0=1.0)"),
    ],
    ids=str,
)
def test_declared_floats_are_floats(info: Any, value: Any, converted: str) -> None:
    convert = converter(info)
    assert convert is not None
    assert repr(convert(value)) == converted


def test_a_row_type_is_the_same_however_it_is_made() -> None:
    fields = [DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("name", DataTypes.STRING().not_null())]
    grown = RowType().add("id", DataTypes.INT()).add(fields[1])
    assert grown == RowType(fields) == DataTypes.ROW(fields)
    assert str(grown) == "ROW<`id` INT, `name` STRING NOT NULL>"
    assert grown.names == ["id", "name"] and list(grown) == fields and len(grown) == 2
    assert grown.info == Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    assert grown.not_null() != grown and pickle.loads(pickle.dumps(grown)) == grown
    with pytest.raises(ArgumentTypeError, match=r"RowType.add takes a type for the name"):
        RowType().add("id")
    with pytest.raises(ArgumentTypeError, match="RowType takes a list of fields"):
        RowType(["id"])  # type: ignore[list-item]
