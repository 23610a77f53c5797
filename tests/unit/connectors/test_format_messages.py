"""Serialization schemas: records to messages and back, one by one and in batches, with every option."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import Any

import cloudpickle
import pytest

from tests.unit.connectors.format_examples import ITEM, item
from tidegate.base import imports
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError, UserCodeError
from tidegate.common import (
    DeserializationSchema,
    Row,
    RowFieldExtractorSchema,
    SerializationSchema,
    SimpleStringSchema,
    Types,
)
from tidegate.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema, AvroSchema
from tidegate.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from tidegate.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema

DEEP = Types.ROW_NAMED(
    ["id", "when", "day", "at", "amount", "tags", "counts", "inner", "data"],
    [
        Types.LONG(),
        Types.SQL_TIMESTAMP(),
        Types.SQL_DATE(),
        Types.SQL_TIME(),
        Types.BIG_DEC(),
        Types.LIST(Types.STRING()),
        Types.MAP(Types.STRING(), Types.DOUBLE()),
        Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.FLOAT()]),
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
    ],
)
VALUE = Row(
    id=1,
    when=datetime.datetime(2024, 2, 29, 1, 2, 3, 4000),
    day=datetime.date(2024, 2, 29),
    at=datetime.time(1, 2, 3),
    amount=Decimal("1.50"),
    tags=["a", "b"],
    counts={"k": 0.5},
    inner=Row(a=1, b=0.5),
    data=b"xyz",
)
NOTHING = Row(**dict.fromkeys(DEEP.get_field_names()))


def json_reader(info: Any, *options: str) -> JsonRowDeserializationSchema:
    builder = JsonRowDeserializationSchema.builder().type_info(info)
    for option in options:
        getattr(builder, option)()
    return builder.build()


def json_writer(info: Any) -> JsonRowSerializationSchema:
    return JsonRowSerializationSchema.builder().with_type_info(info).build()


def test_json_messages_are_read_back_as_written() -> None:
    for info, values in ((DEEP, [VALUE, NOTHING]), (ITEM, [item(n) for n in range(5)])):
        writer, reader = cloudpickle.loads(cloudpickle.dumps((json_writer(info), json_reader(info))))
        messages = writer.serialize_batch(values)
        assert [writer.serialize(value) for value in values] == messages
        assert reader.deserialize_batch(messages) == [reader.deserialize(m) for m in messages] == values
        assert reader.get_produced_type() is not None


def test_json_as_flink_writes_it() -> None:
    assert json_writer(DEEP).serialize(VALUE) == (
        b'{"id":1,"when":"2024-02-29T01:02:03.004000Z","day":"2024-02-29","at":"01:02:03Z","amount":1.50,"tags":["a","b"],'
        b'"counts":{"k":0.5},"inner":{"a":1,"b":0.5},"data":"eHl6"}'
    )


def test_json_takes_numbers_from_texts_and_missing_fields_as_none() -> None:
    reader = json_reader(ITEM)
    row = Row(id=5, name="7", price=1.0, sold=True)
    assert reader.deserialize(b'{"id": " 5 ", "name": 7, "price": "1", "sold": "true", "more": {}}') == row
    assert reader.deserialize_batch([b'{"id": 1}', b"null"]) == [Row(id=1, name=None, price=None, sold=None), None]


def test_json_batches_with_lines_inside_messages() -> None:
    reader = json_reader(ITEM)
    messages = [b'{"id":\n1}', b'{"id": 2}', b' {"id": 3}\n']
    assert [row.id for row in reader.deserialize_batch(messages)] == [1, 2, 3]
    lenient = json_reader(ITEM, "ignore_parse_errors")
    found = lenient.deserialize_batch([b'{"id": 1}\n{"id": 2}', b"", b'{"id": 3}'])
    assert [row and row.id for row in found] == [None, None, 3]


@pytest.mark.parametrize(
    ("options", "message", "found"),
    [
        ((), b"no json", "'no json': JSON is malformed"),
        ((), b'{"id": 1099511627776}', "field 'id': it does not fit in 32 bits"),
        ((), b"[1]", "an object is expected, found [1]"),
        (("fail_on_missing_field",), b'{"id": 1}', "Could not find field with name 'name'"),
    ],
)
def test_message_that_is_not_a_json_object_of_the_type_is_refused(
    options: tuple[str, ...], message: bytes, found: str
) -> None:
    with pytest.raises(UserCodeError, match="A message is not a JSON object of the declared type") as caught:
        json_reader(ITEM, *options).deserialize_batch([b'{"id":1,"name":"a","price":1,"sold":true}', message])
    assert found in str(caught.value.found)
    assert caught.value.where == f"JSON of {ITEM}"


def test_invalid_arguments_of_json_schemas_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="failOnMissingField and ignoreParseErrors are both enabled"):
        json_reader(ITEM, "fail_on_missing_field", "ignore_parse_errors")
    with pytest.raises(ArgumentTypeError, match="takes a row type"):
        json_reader(Types.INT())
    with pytest.raises(ArgumentTypeError, match="takes a type"):
        JsonRowSerializationSchema.builder().build()
    with pytest.raises(ArgumentTypeError, match="field price is declared as DOUBLE"):
        json_writer(ITEM).serialize(Row(1, "a", "b", True))


def test_a_json_schema_is_a_row_type() -> None:
    schema = """{"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": ["null", "number"]},
        "t": {"type": "string", "format": "date-time"}, "l": {"type": "array", "items": {"$ref": "#/definitions/x"}}},
        "definitions": {"x": {"type": "object", "properties": {"ok": {"type": "boolean"}}}}}"""
    reader = JsonRowDeserializationSchema.builder().json_schema(schema).build()
    row = reader.deserialize(b'{"id": 1, "n": 2.50, "t": "2024-01-01T00:00:00Z", "l": [{"ok": true}]}')
    assert row == Row(id=1, n=Decimal("2.50"), t=datetime.datetime(2024, 1, 1), l=[Row(ok=True)])
    with pytest.raises(ConfigurationError, match="a type that rows cannot hold"):
        JsonRowDeserializationSchema.builder().json_schema('{"type": "strange"}')


# -- CSV

LISTS = Types.ROW_NAMED(["id", "tags"], [Types.INT(), Types.BASIC_ARRAY(Types.STRING())])


def test_csv_messages_are_read_back_as_written() -> None:
    values = [item(n) for n in range(5)]
    pair = CsvRowSerializationSchema.Builder(ITEM).build(), CsvRowDeserializationSchema.Builder(ITEM).build()
    writer, reader = cloudpickle.loads(cloudpickle.dumps(pair))
    messages = writer.serialize_batch(values)
    assert messages[1] == b'1,"no. 1, ""x""",0.5,false\n'
    assert reader.deserialize_batch(messages) == [reader.deserialize(m) for m in messages] == values


def test_csv_with_every_option() -> None:
    writer = (
        CsvRowSerializationSchema.Builder(LISTS)
        .set_field_delimiter("|")
        .set_array_element_delimiter("/")
        .set_quote_character("'")
        .set_escape_character("\\")
        .set_null_literal("n/a")
        .set_line_delimiter("\r\n")
        .build()
    )
    assert writer.serialize_batch([Row(1, ["a", "b"]), Row(None, ["it's|"])]) == [b"1|'a/b'\r\n", b"n/a|'it''s|'\r\n"]
    reader = (
        CsvRowDeserializationSchema.Builder(LISTS)
        .set_field_delimiter("|")
        .set_array_element_delimiter("/")
        .set_quote_character("'")
        .set_escape_character("\\")
        .set_null_literal("n/a")
        .set_allow_comments(True)
        .set_ignore_parse_errors(True)
        .build()
    )
    messages = [b"1|a/b\r\n", b"n/a|'it\\'s|'", b"# comment", b"x|y", b"1|2|3", b"2|"]
    found = [Row(id=1, tags=["a", "b"]), Row(id=None, tags=["it's|"]), None, None, None, Row(id=2, tags=[])]
    assert reader.deserialize_batch(messages) == [reader.deserialize(m) for m in messages] == found
    bare = CsvRowSerializationSchema.Builder(ITEM).disable_quote_character().build()
    assert bare.serialize(Row(1, 'a "b"', 1e20, True)) == b'1,a "b",1.0E20,true\n'


def test_a_quoted_line_break_in_a_batch() -> None:
    reader = CsvRowDeserializationSchema.Builder(LISTS).build()
    assert reader.deserialize_batch([b'1,"a\nb"', b"2,c"]) == [Row(id=1, tags=["a\nb"]), Row(id=2, tags=["c"])]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"1,a", "'1,a': Row length mismatch. 4 fields expected but was 2."),
        (b"1,a,x,true", "column 'price': 'x': could not convert string to float: 'x'"),
        (b"1,a,1,true\n2,b,2,true", "one line is expected, found 2"),
    ],
)
def test_csv_line_that_does_not_fit_is_refused(message: bytes, found: str) -> None:
    with pytest.raises(UserCodeError, match="A message is not a line of CSV of the declared type") as caught:
        CsvRowDeserializationSchema.Builder(ITEM).build().deserialize_batch([message])
    assert found in str(caught.value.found)


def test_invalid_arguments_of_csv_schemas_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="set_field_delimiter takes a single character"):
        CsvRowSerializationSchema.Builder(ITEM).set_field_delimiter("||")
    with pytest.raises(ConfigurationError, match="Unsupported new line delimiter"):
        CsvRowSerializationSchema.Builder(ITEM).set_line_delimiter("x")
    with pytest.raises(ConfigurationError, match="found: field m: MAP<STRING, INT>"):
        CsvRowDeserializationSchema.Builder(Types.ROW_NAMED(["m"], [Types.MAP(Types.STRING(), Types.INT())]))
    with pytest.raises(ArgumentTypeError, match="takes type information"):
        CsvRowDeserializationSchema.Builder(None)  # type: ignore[arg-type]


# -- Avro

USER = """{"type": "record", "name": "User", "fields": [
    {"name": "name", "type": "string"},
    {"name": "age", "type": ["null", "int"]},
    {"name": "home", "type": {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]}},
    {"name": "friends", "type": {"type": "array", "items": "Home"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}}]}"""


def test_avro_messages_are_read_back_as_written() -> None:
    pair = AvroRowSerializationSchema(avro_schema_string=USER), AvroRowDeserializationSchema(avro_schema_string=USER)
    writer, reader = cloudpickle.loads(cloudpickle.dumps(pair))
    day = datetime.date(2024, 1, 1)
    values = [Row("ada", 36, Row("London"), [], day), Row("bob", None, Row("Rom"), [], day)]
    messages = writer.serialize_batch(values)
    expected = [
        Row(name="ada", age=36, home=Row(city="London"), friends=[], day=day),
        Row(name="bob", age=None, home=Row(city="Rom"), friends=[], day=day),
    ]
    assert reader.deserialize_batch(messages) == expected
    assert reader.deserialize(writer.serialize(expected[0])) == expected[0]


def test_invalid_avro_schemas_and_messages_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="The Avro schema is invalid"):
        AvroSchema.parse_string('{"type": "strange"}')
    with pytest.raises(ArgumentTypeError, match="pass avro_schema_string"):
        AvroRowDeserializationSchema(record_class="org.example.User")
    with pytest.raises(ArgumentTypeError, match="record_class or avro_schema_string should be specified"):
        AvroRowSerializationSchema()
    writer, reader = AvroRowSerializationSchema(None, USER), AvroRowDeserializationSchema(None, USER)
    with pytest.raises(ArgumentTypeError, match="field age is declared as INT"):
        writer.serialize(Row("ada", "old", Row("London"), [], datetime.date(2024, 1, 1)))
    with pytest.raises(UserCodeError, match="A message is not a record of the Avro schema"):
        reader.deserialize(b"\x02")


# -- the others


def test_texts_of_a_character_set() -> None:
    schema = SimpleStringSchema("ISO-8859-1")
    assert schema.serialize_batch(["ä", "b"]) == [b"\xe4", b"b"]
    assert schema.deserialize_batch([b"\xe4"]) == ["ä"]
    assert SimpleStringSchema().deserialize(b"a\xff") == "a\ufffd"
    with pytest.raises(ArgumentTypeError, match="SimpleStringSchema takes a text"):
        schema.serialize_batch(["a", 5])


def test_a_field_of_a_row() -> None:
    schema = RowFieldExtractorSchema(1)
    assert schema.serialize_batch([Row("a", b"x"), Row("b", bytearray(b"y"))]) == [b"x", b"y"]
    with pytest.raises(ArgumentTypeError, match="Field 1 must be of type bytes"):
        schema.serialize(Row("a", "x"))
    with pytest.raises(ArgumentTypeError, match="a row with a field 1"):
        schema.serialize(Row("a"))
    with pytest.raises(ProgramError, match="Field index must be non-negative, got: -1"):
        RowFieldExtractorSchema(-1)


def test_a_null_row_and_a_null_field_are_empty_bytes_as_in_pyflink() -> None:
    assert RowFieldExtractorSchema(0).serialize_batch([None, Row(None, b"x"), Row(b"k")]) == [b"", b"", b"k"]


class Reversed(SerializationSchema, DeserializationSchema):
    def serialize(self, value: Any) -> bytes:
        return bytes(reversed(value))

    def deserialize(self, message: bytes) -> Any:
        return bytes(reversed(message))


def test_a_schema_of_a_user_has_batches_too() -> None:
    schema = pickle.loads(pickle.dumps(Reversed()))
    assert schema.deserialize_batch(schema.serialize_batch([b"ab", b"cd"])) == [b"ab", b"cd"]
    assert schema.get_produced_type() is None


def test_a_library_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Parquet files needs the package nolibrary") as caught:
        imports.library("nolibrary.parquet", "Parquet files")
    assert "pip install 'tidegate[formats]'" in str(caught.value)
