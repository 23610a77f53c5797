"""Decimals in files of every format: precision and scale are kept, and a value that would lose digits is refused and named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.orc
import pyarrow.parquet
import pytest

from tidegate.base.errors import ArgumentTypeError, CorruptFileError, TidegateError, UserCodeError
from tidegate.common import Row, Types
from tidegate.datastream.formats.avro import (
    AvroBulkWriters,
    AvroFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
)
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonBulkWriters, JsonLinesFormat
from tidegate.datastream.formats.orc import OrcBulkWriters
from tidegate.datastream.formats.parquet import (
    AvroParquetReaders,
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)
from tidegate.table import DataTypes

PRICE = DataTypes.DECIMAL(10, 2)
COLUMNS = DataTypes.ROW([DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("price", PRICE)])
LOOSE = CsvSchema.builder().add_number_column("id", DataTypes.INT()).add_number_column("price", PRICE).build()
CSV = CsvSchema.builder().add_columns_from(LOOSE).set_strict_decimals().build()
AVRO = AvroSchema.parse_string(
    '{"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}, {"name": "price", "type":'
    ' {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}]}'
)


def row(text: str) -> Row:
    return Row(id=1, price=Decimal(text))


def fields(text: str) -> dict[str, Any]:
    return {"id": 1, "price": Decimal(text)}


FORMATS: dict[str, tuple[Any, Any, Any]] = {
    "parquet": (ParquetBulkWriters.for_row_type(COLUMNS), ParquetColumnarRowInputFormat(COLUMNS), row),
    "csv": (CsvBulkWriters.for_schema(CSV), CsvReaderFormat.for_schema(CSV), row),
    "json": (JsonBulkWriters.for_type(COLUMNS), JsonLinesFormat.for_type(COLUMNS), row),
    "avro": (AvroBulkWriters.for_generic_record(AVRO), AvroFormat(AVRO), fields),
    "avro-parquet": (AvroParquetWriters.for_generic_record(AVRO), AvroParquetReaders.for_generic_record(AVRO), fields),
}
every_format = pytest.mark.parametrize("name", FORMATS)


def written(factory: Any, values: list[Any], path: Path) -> Path:
    with path.open("wb") as target:
        factory.write(iter([factory.pack(values)]), target)
    return path


def read(file_format: Any, path: Path) -> list[Any]:
    size = os.path.getsize(path)
    batches: Iterator[Any] = file_format.read(str(path), size, 0, size)
    return [value for batch in batches for value in batch]


@every_format
def test_a_decimal_comes_back_with_the_scale_of_its_column(name: str, tmp_path: Path) -> None:
    factory, file_format, value = FORMATS[name]
    path = written(factory, [value("1.5"), value("-12345678.09"), value("0"), value("7E+2")], tmp_path / "file")
    assert [str(found["price"]) for found in read(file_format, path)] == ["1.50", "-12345678.09", "0.00", "700.00"]


def test_files_say_which_digits_a_column_has(tmp_path: Path) -> None:
    for name in ("parquet", "avro-parquet"):
        path = written(FORMATS[name][0], [FORMATS[name][2]("1.5")], tmp_path / name)
        assert str(pyarrow.parquet.read_schema(path).field("price").type) == "decimal128(10, 2)"
    path = written(OrcBulkWriters.for_row_type(COLUMNS), [row("1.5")], tmp_path / "orc")
    assert str(pyarrow.orc.read_table(path).schema.field("price").type) == "decimal128(10, 2)"
    with written(FORMATS["avro"][0], [fields("1.5")], tmp_path / "avro").open("rb") as file:
        schema: Any = fastavro.reader(file).writer_schema
    price = schema["fields"][1]["type"]
    assert (price["precision"], price["scale"]) == (10, 2)


@every_format
@pytest.mark.parametrize("text", ["1.555", "123456789.00", "NaN", "Infinity"])
def test_a_decimal_that_would_lose_digits_is_refused_when_written(name: str, text: str) -> None:
    factory, _, value = FORMATS[name]
    with pytest.raises(UserCodeError) as caught:
        factory.pack([value("1.5"), value(text)])
    assert repr(Decimal(text)) in str(caught.value.found)
    assert "writer" in str(caught.value.where)


def test_the_message_says_which_digits_are_too_many() -> None:
    for text, problem in (
        ("1.555", "it has more than 2 digits after the decimal point"),
        ("123456789", "it has more than 8 digits before the decimal point"),
        ("1E+9", "it has more than 8 digits before the decimal point"),
        ("NaN", "a finite number is required"),
    ):
        with pytest.raises(UserCodeError) as caught:
            ParquetBulkWriters.for_row_type(COLUMNS).pack([row(text)])
        assert caught.value.rule == "A record is not of its declared type: field price is declared as DECIMAL(10, 2)"
        assert caught.value.found == f"Decimal {Decimal(text)!r}: {problem}"
        assert caught.value.cure == "return a value of that type, or declare the type of the value"


def test_a_decimal_that_would_lose_digits_is_refused_when_read(tmp_path: Path) -> None:
    wide = DataTypes.ROW([DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("price", DataTypes.DECIMAL(12, 3))])
    parquet = written(ParquetBulkWriters.for_row_type(wide), [row("1.555")], tmp_path / "parquet")
    (tmp_path / "csv").write_text("1,1.5\n2,1.555\n")
    (tmp_path / "json").write_text('{"id": 1, "price": "1.5"}\n{"id": 2, "price": 1.555}\n')
    for name, path, problem in (
        ("parquet", parquet, "would cause data loss"),
        ("csv", tmp_path / "csv", "column 'price': '1.555': it has more than 2 digits after the decimal point"),
        ("json", tmp_path / "json", "field 'price': it has more than 2 digits after the decimal point"),
    ):
        with pytest.raises(CorruptFileError) as caught:
            read(FORMATS[name][1], path)
        assert problem in str(caught.value.found)
        assert str(path) in str(caught.value.where)


def test_csv_rounds_decimals_unless_strict(tmp_path: Path) -> None:
    texts = ["1.005", "-1.005", "1.004", "12345678.994", "123456789", "99999999.995", " 1.5 "]
    rounded = ["1.01", "-1.01", "1.00", "12345678.99", "None", "None", "1.50"]
    (tmp_path / "read").write_text("".join(f"1,{text}\n" for text in texts))
    assert [str(found["price"]) for found in read(CsvReaderFormat.for_schema(LOOSE), tmp_path / "read")] == rounded
    path = written(CsvBulkWriters.for_schema(LOOSE), [row(text.strip()) for text in texts], tmp_path / "written")
    assert path.read_text() == "".join(f"1,{text.replace('None', '')}\n" for text in rounded)


def test_csv_rounds_decimals_in_arrays(tmp_path: Path) -> None:
    builder = CsvSchema.builder().add_array_column("prices", element_type=PRICE)
    (tmp_path / "file").write_text("1.005;2\n")
    (found,) = read(CsvReaderFormat.for_schema(builder.build()), tmp_path / "file")
    assert found["prices"] == [Decimal("1.01"), Decimal("2.00")]
    with pytest.raises(CorruptFileError, match="more than 2 digits after the decimal point"):
        read(CsvReaderFormat.for_schema(builder.set_strict_decimals().build()), tmp_path / "file")


def test_columns_of_more_or_fewer_digits_are_read_where_nothing_is_lost(tmp_path: Path) -> None:
    path = written(FORMATS["parquet"][0], [row("1.50")], tmp_path / "file")
    for declared, text in ((DataTypes.DECIMAL(4, 1), "1.5"), (DataTypes.DECIMAL(38, 5), "1.50000")):
        columns = DataTypes.ROW([DataTypes.FIELD("price", declared)])
        assert [str(found["price"]) for found in read(ParquetColumnarRowInputFormat(columns), path)] == [text]
    loose = Types.ROW_NAMED(["price"], [Types.BIG_DEC()])
    assert [found["price"] for found in read(ParquetColumnarRowInputFormat(loose), path)] == [Decimal("1.5")]


def test_decimals_deep_in_a_column(tmp_path: Path) -> None:
    inner = DataTypes.ROW([DataTypes.FIELD("sums", DataTypes.ARRAY(DataTypes.DECIMAL(38, 0)))])
    columns = DataTypes.ROW([DataTypes.FIELD("inner", inner)])
    factory = ParquetBulkWriters.for_row_type(columns)
    path = written(factory, [Row(inner=Row(sums=[Decimal(10) ** 37, 3]))], tmp_path / "file")
    assert read(ParquetColumnarRowInputFormat(columns), path) == [Row(inner=Row(sums=[Decimal(10) ** 37, Decimal(3)]))]
    with pytest.raises(UserCodeError, match=r"field inner.sums\[\] is declared as DECIMAL\(38, 0\)"):
        factory.pack([Row(inner=Row(sums=[Decimal("0.5")]))])


def test_messages_of_avro() -> None:
    serializer = AvroRowSerializationSchema(avro_schema_string=str(AVRO))
    deserializer = AvroRowDeserializationSchema(avro_schema_string=str(AVRO))
    assert str(deserializer.deserialize(serializer.serialize(row("1.5")))["price"]) == "1.50"
    with pytest.raises(TidegateError, match=r"field price is declared as DECIMAL\(10, 2\)"):
        serializer.serialize(row("1.555"))


def test_digits_that_no_decimal_has_are_refused() -> None:
    for precision, scale in ((0, 0), (39, 2), (5, 6), (5, -1)):
        with pytest.raises(ArgumentTypeError, match=r"DataTypes.DECIMAL takes a precision of 1 to 38 digits"):
            DataTypes.DECIMAL(precision, scale)
