"""The keyed count as PySpark transformWithState (rows): RocksDB state, changelog checkpoints, one per micro-batch."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

COUNT = StructType([StructField("n", LongType())])
OUTPUT = StructType([StructField("k", LongType()), StructField("n", LongType())])
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Count(StatefulProcessor):
    """State is read and written once per key and micro-batch, the way one writes it for Spark; a row goes out for every row in."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", COUNT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen = self.count.get()
        n = seen[0] if seen is not None else 0
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self.count.update((n,))

    def close(self) -> None:
        pass


def session(parallelism: int) -> SparkSession:
    # Without it Spark starts `python3` from the PATH, which need not be this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{parallelism}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", parallelism)
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def numbers(spark: SparkSession, directory: Path, records: int, batch: int, parallelism: int) -> DataFrame:
    """The sequence as a stream of micro-batches: one Parquet file per task and batch, written before the timed part."""
    files = -(-records // batch) * parallelism
    spark.range(0, records, 1, files).withColumnRenamed("id", "x").write.parquet(str(directory))
    return spark.readStream.schema("x long").option("maxFilesPerTrigger", parallelism).parquet(str(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--batch", type=int, default=250_000, help="records a micro-batch, hence a checkpoint, takes")
    parser.add_argument("--dir", required=True)
    args = parser.parse_args()
    directory = Path(args.dir)
    shutil.rmtree(directory, ignore_errors=True)

    spark = session(args.parallelism)
    stream = numbers(spark, directory / "input", args.records, args.batch, args.parallelism)
    counts = (
        stream.select(((F.col("x") * 2654435761) % args.keys).alias("k"), "x")
        .groupBy("k")
        .transformWithState(Count(), OUTPUT, "Update", "None")
    )
    writer = counts.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    start = time.perf_counter()
    query = writer.option("checkpointLocation", str(directory / "checkpoints")).start()
    query.awaitTermination()
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "engine": "pyspark-tws",
                "records": args.records,
                "keys": args.keys,
                "seconds": round(seconds, 3),
                "records_per_second": int(args.records / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
