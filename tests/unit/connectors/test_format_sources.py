"""Files in every format as a source: the contract of sources, and files that are not what they should be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest

from tests.unit.connectors.format_examples import ITEM, ITEM_COLUMNS, RECORD, csv_columns, frozen, item, record
from tidegate.base.errors import CorruptFileError, UserCodeError
from tidegate.common import Row, Types
from tidegate.connectors.files.source import FileSource
from tidegate.datastream.formats.avro import AvroFormat, AvroInputFormat, AvroSchema
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonLinesFormat
from tidegate.datastream.formats.parquet import AvroParquetReaders, AvroParquetWriters, ParquetColumnarRowInputFormat
from tidegate.operators.contracts.arrow_batch import ArrowBatch
from tidegate.operators.contracts.batch import ColumnBatch
from tidegate.operators.contracts.source import Batch, SplitInterval, SplitReader
from tidegate.table import DataTypes
from tidegate.testing.source_contract import SourceContract, read_all

COUNT = 150


def table() -> Any:
    return pyarrow.Table.from_pylist([item(n).as_dict() for n in range(COUNT)])


class FormatContract(SourceContract):
    """Small splits, so that every file is cut."""

    limits = (64, 100, 1_000, 10_000)
    file_format: Any

    def write(self, path: Path) -> None:
        raise NotImplementedError

    def make_source(self, directory: Path) -> Any:
        path = directory / "file"
        if not path.exists():
            self.write(path)
        return FileSource.for_record_stream_format(type(self).file_format, str(path)).with_split_size(512).build()

    def expected(self) -> list[Any]:
        return [item(n) for n in range(COUNT)]


class TestParquetSource(FormatContract):
    file_format = ParquetColumnarRowInputFormat(ITEM_COLUMNS)

    def write(self, path: Path) -> None:
        pyarrow.parquet.write_table(table(), path, row_group_size=17)


class TestJsonSource(FormatContract):
    file_format = JsonLinesFormat.for_type(ITEM)

    def write(self, path: Path) -> None:
        lines = [
            f'{{"id": {n}, "name": "no. {n}, \\"x\\"", "price": {n * 0.5}, "sold": {str(n % 2 == 0).lower()}}}'
            for n in range(COUNT)
        ]
        path.write_text("\n".join(lines))


class TestCsvSource(FormatContract):
    file_format = CsvReaderFormat.for_schema(csv_columns().build(), quoted_line_breaks=False)

    def write(self, path: Path) -> None:
        path.write_text("".join(f'{n},"no. {n}, ""x""",{n * 0.5},{str(n % 2 == 0).lower()}\n' for n in range(COUNT)))


class TestWholeCsvSource(TestCsvSource):
    file_format = CsvReaderFormat.for_schema(csv_columns().build())


class _Frozen(SplitReader):
    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for batch in map(Batch.of, self._reader.read(interval)):
            yield Batch([frozen(value) for value in batch], batch.times)


class FrozenSource(FileSource):
    """Of records that a Counter can hold."""

    def create_reader(self, subtask: int) -> SplitReader:
        return _Frozen(super().create_reader(subtask))


class TestAvroSource(FormatContract):
    file_format = AvroFormat(RECORD)

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            fastavro.writer(file, RECORD.parsed, [record(n) for n in range(COUNT)], codec="deflate", sync_interval=400)

    def make_source(self, directory: Path) -> Any:
        source = super().make_source(directory)
        return FrozenSource(source.paths, source.format, None, 128)

    def expected(self) -> list[Any]:
        return [frozen(record(n)) for n in range(COUNT)]


def read(file_format: Any, path: Path) -> list[Any]:
    return read_all(FileSource.for_bulk_file_format(file_format, str(path)).build(), [(1, 1 << 20)]).values


def test_files_are_really_cut(tmp_path: Path) -> None:
    for contract in (TestParquetSource(), TestJsonSource(), TestCsvSource(), TestAvroSource()):
        directory = tmp_path / type(contract).__name__
        directory.mkdir()
        reading = read_all(contract.make_source(directory), [(4, 10_000)])
        assert len([split for split, values in reading.by_split.items() if values]) > 2


def test_tuples_of_numbers_and_texts_stay_columns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pyarrow.parquet.write_table(table(), path)
    file_format = ParquetColumnarRowInputFormat(ITEM_COLUMNS, as_tuples=True)
    assert file_format.produced_type() == Types.TUPLE(ITEM.get_field_types())
    (batch,) = file_format.read(str(path), path.stat().st_size, 0, path.stat().st_size)
    assert isinstance(batch, ArrowBatch)
    columns = batch.as_columns()
    assert isinstance(columns, ColumnBatch)
    assert columns.rows() == batch.rows()
    assert batch.rows() == [tuple(item(n)) for n in range(COUNT)]
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, None]}), path)
    some = ParquetColumnarRowInputFormat(Types.ROW_NAMED(["id"], [Types.INT()]), as_tuples=True)
    assert read(some, path) == [(1,), (None,)]


def test_text_that_is_not_utf8_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([b"a", b"\xff"])}), path)
    with pytest.raises(CorruptFileError, match=str(path)):
        read(ParquetColumnarRowInputFormat(Types.ROW_NAMED(["text"], [Types.STRING()])), path)


def test_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records = [record(n) for n in range(10)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert read(AvroParquetReaders.for_generic_record(RECORD), path) == records
    TestAvroSource().write(path)
    assert len(read_all(AvroInputFormat(str(path), RECORD).source(), [(2, 100)]).values) == COUNT
    upper = ParquetColumnarRowInputFormat(
        DataTypes.ROW([DataTypes.FIELD("ID", DataTypes.BIGINT())]), is_case_sensitive=False
    )
    pyarrow.parquet.write_table(table(), path)
    assert read(upper, path)[:2] == [Row(ID=0), Row(ID=1)]


def test_headers_comments_and_compressed_csv(tmp_path: Path) -> None:
    path = tmp_path / "items.csv.gz"
    path.write_bytes(gzip.compress(b'sold,id,name,price\n#x\ntrue,1,"a\nb",2\n\nfalse,2,NULL,3\n'))
    schema = csv_columns().set_use_header().set_allow_comments().set_null_value("NULL").build()
    expected = [Row(id=1, name="a\nb", price=2.0, sold=True), Row(id=2, name=None, price=3.0, sold=False)]
    assert read(CsvReaderFormat.for_schema(schema), path) == expected


@pytest.mark.parametrize("header", ["h1,h2", "id", "x,y,z", "name,name"])
def test_csv_header_with_other_names_is_skipped_and_columns_stand_as_in_the_schema(tmp_path: Path, header: str) -> None:
    builder = CsvSchema.builder().add_number_column("id").add_string_column("name").set_use_header()
    (tmp_path / "file").write_text(f"{header}\n1,a\n")
    assert read(CsvReaderFormat.for_schema(builder.build()), tmp_path / "file") == [Row(id=1, name="a")]
    with pytest.raises(CorruptFileError, match="the header has the columns"):
        read(CsvReaderFormat.for_schema(builder.set_strict_headers().build()), tmp_path / "file")


def test_csv_quotes_are_doubled_and_escape_characters_escaped_as_in_flink(tmp_path: Path) -> None:
    schema = CsvSchema.builder().add_string_column("a").add_string_column("b").set_escape_char("\\").build()
    rows = [Row(a="x\\y", b='"q"'), Row(a="a,b", b="plain")]
    content = CsvBulkWriters.for_schema(schema).pack(rows)
    assert content == b'"x\\\\y","""q"""\n"a,b",plain\n'
    (tmp_path / "file").write_bytes(content)
    assert read(CsvReaderFormat.for_schema(schema), tmp_path / "file") == rows


def test_a_source_knows_the_type_of_its_records(tmp_path: Path) -> None:
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(ITEM_COLUMNS), str(tmp_path)).build()
    assert str(source.get_produced_type()) == str(ITEM)


CSV = CsvReaderFormat.for_schema(csv_columns().build())
STRICT = CsvReaderFormat.for_schema(csv_columns().set_use_header().set_strict_headers().build())
OTHER = AvroSchema.parse_string('{"type": "record", "name": "Item", "fields": [{"name": "size", "type": "int"}]}')


@pytest.mark.parametrize(
    ("file_format", "content", "place", "found"),
    [
        (CSV, '1,"a\nb",1,true\n2,b,2\n', "line 3", "Row length mismatch. 4 fields expected but was 3."),
        (CSV, "1,a,1,true\n\n2,b,zwei,true\n", "line 3", "column 'price': 'zwei': could not convert string to float"),
        (CSV, b"1,\xff,1,true\n", "after line 0", "'utf-8' codec can't decode byte 0xff"),
        (STRICT, "name,id,price,sold\n", "line 1", "the header has the columns ['name', 'id', 'price', 'sold']"),
        (
            CsvReaderFormat.for_schema(csv_columns().build(), quoted_line_breaks=False),
            "1,a,1,true\n2,b\n",
            "line '2,b'",
            "Row length mismatch. 4 fields expected but was 2.",
        ),
        (JsonLinesFormat.for_type(ITEM), '{"id": 1}\nno json\n', "line 2", "'no json': JSON is malformed"),
        (JsonLinesFormat.for_type(ITEM), '{"id": "x"}\n', "line 1", "field 'id': invalid literal for int()"),
        (
            JsonLinesFormat.for_type(ITEM, fail_on_missing_field=True),
            '{"id": 1}\n',
            "line 1",
            "Could not find field with name 'name'",
        ),
        (ParquetColumnarRowInputFormat(ITEM_COLUMNS), "PAR1 is not all", "", "Parquet magic bytes not found in footer"),
        (AvroFormat(RECORD), "Obj is not all", "in bytes 0 to 14", "is it an avro file?"),
    ],
)
def test_damaged_file_fails_and_is_named(
    tmp_path: Path, file_format: Any, content: str | bytes, place: str, found: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorruptFileError) as caught:
        read(file_format, path)
    assert caught.value.where == f"file {path}" + (f", {place}" if place else "")
    assert found in str(caught.value.found)


def test_parquet_and_avro_files_with_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pyarrow.parquet.write_table(pyarrow.table({"id": ["x"], "other": [1]}), path)
    with pytest.raises(CorruptFileError, match="no column name, price, sold; it has id, other"):
        read(ParquetColumnarRowInputFormat(ITEM_COLUMNS), path)
    with pytest.raises(CorruptFileError, match="Failed to parse string: 'x' as a scalar of type int32"):
        read(ParquetColumnarRowInputFormat(Types.ROW_NAMED(["id"], [Types.INT()])), path)
    TestAvroSource().write(path)
    with pytest.raises(CorruptFileError, match="No default value for field size in Item"):
        read(AvroFormat(OTHER), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptFileError, match="is not an Avro file"):
        read(AvroFormat(RECORD), path)


def test_lines_that_are_not_json_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"id": 1, "name": null}\nno json\n\n[1]\n{"id": 2}\n')
    found = read(JsonLinesFormat.for_type(ITEM, ignore_parse_errors=True), path)
    assert found == [Row(id=1, name=None, price=None, sold=None), Row(id=2, name=None, price=None, sold=None)]


MIXED = AvroSchema.parse_string(
    """{"type": "record", "name": "Mixed", "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "number", "type": "int"},
        {"name": "either", "type": ["int", "double", "null"]},
        {"name": "listed", "type": {"type": "array", "items": ["string", "long"]}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "Inner", "fields": [
            {"name": "none", "type": "null"}, {"name": "mapped", "type": {"type": "map", "values": ["boolean", "string"]}}]}]}
    ]}"""
)


def test_parquet_files_of_avro_records_hold_nulls_and_unions_as_flink_writes_them(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"nothing": None, "number": 1, "either": 1, "listed": ["a", 5], "inner": None},
        {"nothing": None, "number": 2, "either": 2.5, "listed": [], "inner": {"none": None, "mapped": {"k": True}}},
        {"nothing": None, "number": 3, "either": None, "listed": ["b"], "inner": {"none": None, "mapped": {"k": "t"}}},
    ]
    factory = AvroParquetWriters.for_generic_record(MIXED)
    with (tmp_path / "file").open("wb") as target:
        factory.write(iter([factory.pack(rows)]), target)
    written = pyarrow.parquet.read_table(tmp_path / "file")
    assert written.schema.names == ["number", "either", "listed", "inner"]
    assert str(written.schema.field("either").type) == "struct<member0: int32, member1: double>"
    found = read(AvroParquetReaders.for_generic_record(MIXED), tmp_path / "file")
    assert list(map(repr, found)) == list(map(repr, rows))


def test_avro_record_that_fits_no_type_of_a_union_is_named() -> None:
    wrong: dict[str, Any] = {"nothing": None, "number": 1, "either": "text", "listed": [], "inner": None}
    with pytest.raises(UserCodeError, match="A record does not fit the Avro schema"):
        AvroParquetWriters.for_generic_record(MIXED).pack([wrong])
