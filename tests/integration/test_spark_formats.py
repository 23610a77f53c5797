"""Files of every format on Spark, through a failure and a restart: in what is committed nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import committed_files, hidden_files
from tests.waiting import eventually
from tidegate.common import Row, WatermarkStrategy
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, FileSource
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroFormat, AvroSchema
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonBulkWriters, JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from tidegate.table import DataTypes

FILES, RECORDS = 12, 25
PRICE = DataTypes.DECIMAL(10, 2)
COLUMNS = DataTypes.ROW(
    [
        DataTypes.FIELD("id", DataTypes.BIGINT()),
        DataTypes.FIELD("name", DataTypes.STRING()),
        DataTypes.FIELD("price", PRICE),
    ]
)
CSV = (CsvSchema.builder().add_number_column("id").add_string_column("name").add_number_column("price", PRICE)).build()
AVRO = AvroSchema.parse_string(
    '{"type": "record", "name": "Item", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"},'
    ' {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}]}'
)


def row(number: int) -> Row:
    return Row(id=number, name=f'no. {number}, "x"', price=Decimal(number) / 4)


FORMATS: dict[str, tuple[Any, Any, Any]] = {
    "parquet": (ParquetColumnarRowInputFormat(COLUMNS), ParquetBulkWriters.for_row_type(COLUMNS), row),
    "csv": (CsvReaderFormat.for_schema(CSV), CsvBulkWriters.for_schema(CSV), row),
    "json": (JsonLinesFormat.for_type(COLUMNS), JsonBulkWriters.for_type(COLUMNS), row),
    "avro": (AvroFormat(AVRO), AvroBulkWriters.for_generic_record(AVRO), lambda number: row(number).as_dict()),
}


class FailsBehindACommit(MapFunction):
    """Raises once, at the last record, when records before it are committed."""

    def __init__(self, out: Path, fired: Path) -> None:
        self.out, self.fired = out, fired

    def map(self, value: Any) -> Any:
        if value["id"] == FILES * RECORDS - 1 and not self.fired.exists():
            eventually(lambda: committed_files(self.out), "a checkpoint is committed")
            self.fired.touch()
            raise ValueError("scripted failure")
        return value


def write_input(directory: Path, factory: Any, value: Any) -> None:
    directory.mkdir()
    for n in range(FILES):
        values = [value(number) for number in range(n * RECORDS, (n + 1) * RECORDS)]
        with (directory / f"{n:02}").open("wb") as target:
            factory.write(iter([factory.pack(values)]), target)


def found_in(directory: Path, file_format: Any) -> Counter[Any]:
    """``(id, name, price)`` of the records that a reader of the directory sees."""
    found: Counter[Any] = Counter()
    for path in committed_files(directory):
        size = path.stat().st_size
        for batch in file_format.read(str(path), size, 0, size):
            found.update((value["id"], value["name"], str(value["price"])) for value in batch)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_lost_or_doubled_in_files(name: str, make_env: Any, tmp_path: Path) -> None:
    file_format, factory, value = FORMATS[name]
    source, out, fired = tmp_path / "in", tmp_path / "out", tmp_path / "fired"
    write_input(source, factory, value)
    env: StreamExecutionEnvironment = make_env(
        {
            "execution.checkpointing.interval": "50 ms",
            "tidegate.round.max-records": 2_000,  # bytes: a file or two
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "10 ms",
        }
    )
    files = FileSource.for_bulk_file_format(file_format, str(source)).build()
    records = env.from_source(files, WatermarkStrategy.no_watermarks(), "files")
    records.map(FailsBehindACommit(out, fired)).sink_to(FileSink.for_bulk_format(str(out), factory).build())
    env.execute(name)
    assert fired.exists(), "the job never failed"
    numbers = range(FILES * RECORDS)
    assert found_in(out, file_format) == Counter((n, f'no. {n}, "x"', f"{Decimal(n) / 4:.2f}") for n in numbers)
    assert len(committed_files(out)) > 2, "several checkpoints have committed"
    assert hidden_files(out) == []
