"""Bulk formats of the file sink keep its contract: whole files, with their checkpoint, nothing lost or doubled."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import fastavro
import msgspec
import pyarrow.orc
import pyarrow.parquet
import pytest

from tests.unit.connectors.format_examples import ITEM, ITEM_COLUMNS, RECORD, csv_columns, frozen, item, record
from tidegate.base.errors import ArgumentTypeError, UserCodeError
from tidegate.common import Row
from tidegate.connectors.files.bucket_assigners import RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.datastream.formats.avro import AvroBulkWriters
from tidegate.datastream.formats.csv import CsvBulkWriters
from tidegate.datastream.formats.json import JsonBulkWriters
from tidegate.datastream.formats.orc import OrcBulkWriters
from tidegate.datastream.formats.parquet import (
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)
from tidegate.operators.contracts.sink import WriterContext
from tidegate.table import DataTypes
from tidegate.testing.sink_contract import SinkContract


class BulkContract(SinkContract):
    """``factory`` and ``read_file`` by format."""

    factory: Any
    read_file: Callable[[Path], list[Any]]

    def make_sink(self, directory: Path) -> FileSink:
        return FileSink.for_bulk_format(str(directory / "out"), type(self).factory).build()

    def visible(self, directory: Path) -> list[Any]:
        files = [p for p in (directory / "out").rglob("*") if p.is_file() and not p.name.startswith(".")]
        return [value for path in files for value in type(self).read_file(path)]

    def leftovers(self, directory: Path) -> list[str]:
        return [str(path) for path in (directory / "out").rglob(".*") if path.is_file()]

    def value(self, number: int) -> Any:
        return item(number)


def rows(dicts: list[dict[str, Any]]) -> list[Row]:
    return [Row(**fields) for fields in dicts]


class TestParquetSink(BulkContract):
    factory = ParquetBulkWriters.for_row_type(ITEM_COLUMNS)

    @staticmethod
    def read_file(path: Path) -> list[Any]:
        return rows(pyarrow.parquet.read_table(path).to_pylist())


class TestCsvSink(BulkContract):
    factory = CsvBulkWriters.for_schema(csv_columns().set_use_header().build())

    @staticmethod
    def read_file(path: Path) -> list[Any]:
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
        return [Row(id=int(r["id"]), name=r["name"], price=float(r["price"]), sold=r["sold"] == "true") for r in found]


class TestJsonSink(BulkContract):
    factory = JsonBulkWriters.for_type(ITEM)

    @staticmethod
    def read_file(path: Path) -> list[Any]:
        return rows(msgspec.json.Decoder().decode_lines(path.read_bytes()))


class TestAvroSink(BulkContract):
    factory = AvroBulkWriters.for_generic_record(RECORD)

    def value(self, number: int) -> Any:
        return FrozenRecord(record(number))

    @staticmethod
    def read_file(path: Path) -> list[Any]:
        with path.open("rb") as file:
            return [FrozenRecord(cast("Any", found)) for found in fastavro.reader(file)]


class FrozenRecord(dict[str, Any]):
    """A record that a Counter can hold."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozen(dict(self)))


def test_other_writers_of_columns(tmp_path: Path) -> None:
    read_orc = lambda path: pyarrow.orc.read_table(path).to_pylist()  # noqa: E731
    read_parquet = lambda path: pyarrow.parquet.read_table(path).to_pylist()  # noqa: E731
    cases: list[tuple[Any, Any, Any]] = [
        (OrcBulkWriters.for_row_type(ITEM), [item(n) for n in range(5)], read_orc),
        (AvroParquetWriters.for_generic_record(RECORD), [record(n) for n in range(5)], read_parquet),
    ]
    for number, (factory, values, read) in enumerate(cases):
        sink = FileSink.for_bulk_format(str(tmp_path / str(number)), factory).build()
        context = WriterContext("job", "sink", 0, 1, 0, 1, "a1", 0, str(tmp_path / "staging"))
        writer = sink.create_writer(context, [])
        writer.write_batch(values, None)
        (committable,) = writer.prepare_commit(True).committables
        found = read(Path(committable["directory"]) / committable["hidden"])
        assert found == [value.as_dict() if isinstance(value, Row) else value for value in values]


@pytest.mark.parametrize(
    ("factory", "value", "rule", "where", "found"),
    [
        (
            ParquetBulkWriters.for_row_type(ITEM_COLUMNS),
            Row(1, 2, 0.5, True),
            "A record is not of its declared type: field name is declared as STRING",
            "Parquet writer",
            "int 2: a text is required",
        ),
        (
            CsvBulkWriters.for_schema(csv_columns().build()),
            Row(1 << 40, "a", 0.5, True),
            "A record is not of its declared type: field id is declared as INT",
            "CSV writer",
            "int 1099511627776: it does not fit in 32 bits",
        ),
        (
            JsonBulkWriters.for_type(ITEM),
            (1, "a"),
            "A record is not of its declared type: the record is declared as a Row, tuple, list or dict with one value for "
            "each of ['id', 'name', 'price', 'sold']",
            "JSON writer",
            "tuple (1, 'a')",
        ),
        (
            ParquetBulkWriters.for_row_type(ITEM_COLUMNS),
            None,
            "A record of a bulk writer is not a row",
            "Parquet writer",
            "1 of 1 records are None",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused(factory: Any, value: Any, rule: str, where: str, found: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        factory.pack([value])
    assert (caught.value.rule, caught.value.where, caught.value.found) == (rule, where, found)


def test_a_record_that_does_not_fit_the_avro_schema_is_refused() -> None:
    for factory, where in (
        (AvroBulkWriters.for_generic_record(RECORD), "Avro writer"),
        (AvroParquetWriters.for_generic_record(RECORD), "Parquet writer of Avro records"),
    ):
        with pytest.raises(UserCodeError, match="A record does not fit the Avro schema") as caught:
            factory.pack([{"id": "x", "name": "a", "tags": []}])
        assert caught.value.where == where
        assert "Item.id is <x> of type <class 'str'> expected int" in str(caught.value.found)


def test_invalid_arguments_of_the_builder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"FileSink.for_bulk_format takes a BulkWriterFactory"):
        FileSink.for_bulk_format(str(tmp_path), "parquet")  # type: ignore[arg-type]
    builder = FileSink.for_bulk_format(str(tmp_path), TestParquetSink.factory)
    with pytest.raises(ArgumentTypeError, match="with_rolling_policy of a bulk format takes a policy of checkpoints"):
        builder.with_rolling_policy(RollingPolicy.default_rolling_policy())
    with pytest.raises(ArgumentTypeError, match="takes a row type with at least one field"):
        ParquetBulkWriters.for_row_type(DataTypes.INT())


def test_arguments_of_parquet_and_orc_without_effect_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ParquetColumnarRowInputFormat(ITEM_COLUMNS)
            ParquetBulkWriters.for_row_type(ITEM_COLUMNS)
            OrcBulkWriters.for_row_type(ITEM_COLUMNS)
        assert caplog.text == ""
        for _ in range(2):
            ParquetColumnarRowInputFormat(ITEM_COLUMNS, object(), 100, True)
            ParquetBulkWriters.for_row_type(ITEM_COLUMNS, object(), True)
            OrcBulkWriters.for_row_type(ITEM_COLUMNS, {"orc.compress": "NONE"}, object())
    reader, writer, orc = (
        "ParquetColumnarRowInputFormat",
        "ParquetBulkWriters.for_row_type",
        "OrcBulkWriters.for_row_type",
    )
    assert [record.getMessage().partition("' is accepted and has no effect: ")[0] for record in caplog.records] == [
        *(f"'{reader}({name})" for name in ("hadoop_config", "batch_size", "is_utc_timestamp")),
        *(f"'{writer}({name})" for name in ("hadoop_config", "utc_timestamp")),
        *(f"'{orc}({name})" for name in ("writer_properties", "hadoop_config")),
    ]
