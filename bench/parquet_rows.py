"""Rows a second into Parquet on Spark: a job of ours into a ``FileSink`` against Spark's own writer, in one session.

    python bench/parquet_rows.py [ROWS]

The same rows (a long, a text, a double), made by a Python function from a range of numbers: in the one by ``map``, in the other in
``mapPartitions`` of an RDD that becomes a DataFrame, which Spark writes. As a third: rows that the JVM makes itself, with no Python
between, which no program with a Python function can be. All of ours is in the time: start of the job, rounds, checkpoints.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
from sink_rows import Way, compare

from tidegate.common import Configuration, Row, Types, WatermarkStrategy
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.spark.session import spark_context

TYPE = Types.ROW_NAMED(["id", "name", "price"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
SCHEMA = "id long, name string, price double"


def ours(count: int, directory: Path) -> None:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(directory / "checkpoints"))
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    env.enable_checkpointing(1000)
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    rows = numbers.map(lambda n: Row(id=n, name=f"customer-{n % 1000}", price=n * 0.25), output_type=TYPE)
    sink = FileSink.for_bulk_format(str(directory / "out"), ParquetBulkWriters.for_row_type(TYPE))
    rows.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    env.execute("rows")


def made(numbers: Iterator[int]) -> Iterator[tuple[int, str, float]]:
    for n in numbers:
        yield n, f"customer-{n % 1000}", n * 0.25


def main(count: int) -> None:
    from pyspark.sql import SparkSession

    context = spark_context({"spark.master": "local[2]"})
    session: Any = SparkSession(context)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)

        def clear() -> None:
            shutil.rmtree(directory)
            directory.mkdir()

        def check() -> None:
            parts = [part for part in (directory / "out").rglob("*") if part.is_file() and part.name[0] not in "._"]
            assert sum(pyarrow.parquet.read_metadata(part).num_rows for part in parts) == count

        def by_spark() -> None:
            rows = context.parallelize(range(count), 2).mapPartitions(made)
            session.createDataFrame(rows, SCHEMA).write.parquet(str(directory / "out"))

        def by_jvm() -> None:
            columns = ["id", "concat('customer-', id % 1000) AS name", "id * 0.25D AS price"]
            session.range(0, count, 1, 2).selectExpr(*columns).write.parquet(str(directory / "out"))

        ways = {
            "Tidegate, FileSink": Way(lambda: ours(count, directory), clear, check),
            "Spark's writer, rows of Python": Way(by_spark, clear, check),
            "Spark's writer, rows of the JVM": Way(by_jvm, clear, check),
        }
        targets = {"Tidegate, FileSink": "Spark's writer, rows of Python"}
        note = "The first run of each way warms Python workers and the JVM, and is among the five."
        compare("parquet-rows", "Rows into Parquet", count, ways, targets, [note])
    context.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
