"""Reading and writing of every file format in one process, by CPU time: `python bench/formats.py [RECORDS]`.

The same rows (a long, a text, a double, a boolean) through the readers of ``FileSource`` and the writer of ``FileSink``, the text
format, and plain pyarrow, which makes columns and no rows.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from tidegate.common import Encoder, Row, Types
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.connectors.files.sink import FileSink
from tidegate.datastream.connectors.file_system import StreamFormat
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroFormat, AvroSchema
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonBulkWriters, JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from tidegate.operators.contracts.sink import WriterContext
from tidegate.table import DataTypes

ITEM = Types.ROW_NAMED(["id", "name", "price", "sold"], [Types.LONG(), Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()])
CSV = (
    CsvSchema.builder()
    .add_number_column("id")
    .add_string_column("name")
    .add_number_column("price", DataTypes.DOUBLE())
    .add_boolean_column("sold")
    .build()
)
AVRO = AvroSchema.parse_string(
    '{"type": "record", "name": "Item", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"},'
    ' {"name": "price", "type": "double"}, {"name": "sold", "type": "boolean"}]}'
)
BATCH = 4096


def items(count: int) -> list[Row]:
    return [Row(id=n, name=f"customer-{n % 1000}", price=n * 0.25, sold=n % 3 == 0) for n in range(count)]


def written(directory: Path, builder: Any, values: list[Any]) -> Path:
    """One part, as one round of a sink writes it."""
    sink = builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 0, 1, "a", 0, str(directory / "staging")), [])
    for start in range(0, len(values), BATCH):
        writer.write_batch(values[start : start + BATCH], None)
    (committable,) = writer.prepare_commit(True).committables
    return Path(committable["directory"]) / committable["hidden"]


def read(file_format: Any, path: Path) -> int:
    size = path.stat().st_size
    return sum(len(batch) for batch in file_format.read(str(path), size, 0, size))


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU time of three runs."""
    best, result = float("inf"), None
    for _ in range(3):
        started = time.process_time()
        result = action()
        best = min(best, time.process_time() - started)
    return best, result


def main(count: int) -> None:
    rows = items(count)
    dicts, texts = [row.as_dict() for row in rows], [f"{n},customer-{n % 1000}" for n in range(count)]
    columns = list(zip(*rows, strict=True))
    gc.collect()
    gc.freeze()  # the input is not what is measured
    row_formats = [
        ("CSV", CsvBulkWriters.for_schema(CSV), rows, CsvReaderFormat.for_schema(CSV)),
        ("JSON lines", JsonBulkWriters.for_type(ITEM), rows, JsonLinesFormat.for_type(ITEM)),
        ("Parquet", ParquetBulkWriters.for_row_type(ITEM), rows, ParquetColumnarRowInputFormat(ITEM)),
        ("Avro", AvroBulkWriters.for_generic_record(AVRO), dicts, AvroFormat(AVRO)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        text = FileSink.for_row_format(str(root / "text"), Encoder.simple_string_encoder())
        report(count, "text", *both(lambda: written(root, text, texts), StreamFormat.text_line_format()))
        paths: dict[str, Path] = {}
        for name, factory, values, file_format in row_formats:
            builder = FileSink.for_bulk_format(str(root / name), factory)
            write, path, seconds = both(lambda b=builder, v=values: written(root, b, v), file_format)  # type: ignore[misc]
            paths[name] = path
            report(count, name, write, path, seconds)
        tuples = ParquetColumnarRowInputFormat(ITEM, as_tuples=True)
        report(count, "Parquet as tuples", None, paths["Parquet"], timed(lambda: read(tuples, paths["Parquet"]))[0])
        plain(count, root, columns, paths)


def both(write: Callable[[], Path], file_format: Any) -> tuple[float, Path, float]:
    seconds, path = timed(write)
    return seconds, path, timed(lambda: read(file_format, path))[0]


def plain(count: int, root: Path, columns: list[Any], paths: dict[str, Path]) -> None:
    names = ITEM.get_field_names()
    pyarrow.set_cpu_count(1)
    make = lambda: pyarrow.table(dict(zip(names, map(pyarrow.array, columns), strict=True)))  # noqa: E731
    parquet, csv = root / "plain.parquet", root / "plain.csv"
    write = timed(lambda: pyarrow.parquet.write_table(make(), parquet))[0]
    report(
        count,
        "pyarrow, Parquet",
        write,
        parquet,
        timed(lambda: pyarrow.parquet.read_table(parquet, use_threads=False))[0],
    )
    write = timed(lambda: pyarrow.csv.write_csv(make(), csv))[0]
    report(count, "pyarrow, CSV", write, csv, timed(lambda: pyarrow.csv.read_csv(csv))[0])
    report(
        count, "pyarrow, JSON", None, paths["JSON lines"], timed(lambda: pyarrow.json.read_json(paths["JSON lines"]))[0]
    )


def report(count: int, name: str, write: float | None, path: Path, seconds: float) -> None:
    rate = "" if write is None else f"{count / write / 1e6:6.2f} M/s"
    print(
        f"{name:18} write {rate:>11}   read {count / seconds / 1e6:6.2f} M/s   {path.stat().st_size / count:5.1f} B/record"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
