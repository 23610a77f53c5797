"""Functions over batches and built-in aggregations on Spark: from Parquet files to windows, with checkpoints."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from tidegate.common import Configuration, Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates, KeyedBatchProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, FileSource
from tidegate.datastream.formats.csv import CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

BID = Types.ROW_NAMED(["auction", "price", "time"], [Types.LONG(), Types.LONG(), Types.LONG()])
COUNT = 20_000


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[2])


def test_parquet_columns_pass_batches_and_windows(spark: Any, tmp_path: Path) -> None:
    table = pa.table(
        {"auction": [n % 10 for n in range(COUNT)], "price": list(range(COUNT)), "time": list(range(COUNT))}
    )
    pyarrow.parquet.write_table(table, tmp_path / "bids.parquet", row_group_size=2_000)
    configuration = Configuration().set_string("execution.checkpointing.dir", str(tmp_path / "checkpoints"))
    configuration.set_string("execution.checkpointing.interval", "200 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    file_format = ParquetColumnarRowInputFormat(BID, as_tuples=True)
    source = FileSource.for_bulk_file_format(file_format, str(tmp_path / "bids.parquet")).build()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(COUNT))
    bids = env.from_source(source, strategy.with_timestamp_assigner(ByTime()), "bids")
    euros = bids.map_batches(lambda b: b.set_column(1, "f1", pc.multiply(b["f1"], 2)))
    even = euros.filter_batches(lambda b: pc.equal(pc.bit_wise_and(b["f0"], 1), 0))
    windows = even.key_by(lambda bid: bid[0], Types.LONG()).window(TumblingEventTimeWindows.of(Time.seconds(5)))
    totals = windows.aggregate(Aggregates.first(0), Aggregates.count(), Aggregates.sum(1), Aggregates.max(1))
    with totals.execute_and_collect() as found:  # type: ignore[union-attr]
        results = sorted(found)
    wanted = []
    for auction in range(0, 10, 2):
        for start in range(0, COUNT, 5_000):
            mine = [2 * n for n in range(start, start + 5_000) if n % 10 == auction]
            wanted.append((auction, len(mine), sum(mine), max(mine)))
    assert results == sorted(wanted)


ORDER = Types.ROW_NAMED(["user", "price", "time"], [Types.STRING(), Types.LONG(), Types.LONG()])
TOTAL = Types.ROW_NAMED(["user", "total", "last"], [Types.STRING(), Types.LONG(), Types.BOOLEAN()])


class ByName(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["time"]
        return time


def orders() -> list[dict[str, Any]]:
    """Return records with texts beyond ASCII, missing values and times before 1970."""
    users = ["ann", "bób", "猫", "𝄞", "eve"]
    return [{"user": users[n % 5], "price": None if n % 7 == 0 else n, "time": n - COUNT // 2} for n in range(COUNT)]


def order_files(kind: str, path: Path) -> Any:
    path.mkdir()
    for part in range(4):
        records = orders()[part * COUNT // 4 : (part + 1) * COUNT // 4]
        if kind == "parquet":
            pyarrow.parquet.write_table(pa.Table.from_pylist(records), path / f"{part}.parquet", row_group_size=1_000)
        elif kind == "json":
            (path / f"{part}.json").write_text("".join(json.dumps(record) + "\n" for record in records))
        else:
            lines = (",".join("-" if v is None else str(v) for v in record.values()) + "\n" for record in records)
            (path / f"{part}.csv").write_text("".join(lines), encoding="utf-8")
    if kind == "parquet":
        return FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(ORDER), str(path)).build()
    if kind == "json":
        return FileSource.for_record_stream_format(JsonLinesFormat.for_type(ORDER), str(path)).build()
    schema = CsvSchema.builder().add_string_column("user").add_number_column("price").add_number_column("time")
    return FileSource.for_record_stream_format(
        CsvReaderFormat.for_schema(schema.set_null_value("-").build()), str(path)
    ).build()


def environment(path: Path) -> StreamExecutionEnvironment:
    configuration = Configuration().set_string("execution.checkpointing.dir", str(path / "checkpoints"))
    configuration.set_string("execution.checkpointing.interval", "200 ms")
    return StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_columns_of_files_pass_keys_and_windows_to_files(spark: Any, tmp_path: Path, kind: str) -> None:
    env = environment(tmp_path)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(2 * COUNT))
    timed = env.from_source(order_files(kind, tmp_path / "in"), strategy.with_timestamp_assigner(ByName()), "orders")
    windows = timed.key_by(lambda order: order["user"], Types.STRING()).window(
        TumblingEventTimeWindows.of(Time.seconds(5))
    )
    totals = windows.aggregate(
        Aggregates.first("user"),
        Aggregates.count(),
        Aggregates.sum("price"),
        Aggregates.count_distinct("price"),
        Aggregates.top(2, "price"),
        Aggregates.percentile(50, "price"),
    )
    with totals.execute_and_collect() as found:  # type: ignore[union-attr]
        results = sorted(found)
    wanted = []
    for user in {order["user"] for order in orders()}:
        for start in range(-COUNT // 2, COUNT // 2, 5_000):
            mine = [o for o in orders() if o["user"] == user and start <= o["time"] < start + 5_000]
            prices = [o["price"] for o in mine if o["price"] is not None]
            greatest = sorted(prices, reverse=True)[:2]
            wanted.append((user, len(mine), sum(prices), len(set(prices)), greatest, statistics.median_low(prices)))
    exact, sketched = [row[:5] for row in results], [row[5] for row in results]
    assert exact == [row[:5] for row in sorted(wanted)]
    assert sketched == [pytest.approx(row[5], rel=0.02) for row in sorted(wanted)]


class Totals(KeyedBatchProcessFunction):
    """Emit the total of each key at the end."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + (pc.sum(batch["price"]).as_py() or 0))
        ctx.timer_service().register_event_time_timer(10 * COUNT)

    def on_timer(self, timestamp: int, ctx: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"user": [ctx.get_current_key()], "total": [self.total.value()], "last": [True]}
        )


def test_process_batches_keeps_state_and_writes_columns(spark: Any, tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.configure(Configuration().set_string("tidegate.round.max-records", "100000"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(2 * COUNT))
    timed = env.from_source(order_files("json", tmp_path / "in"), strategy.with_timestamp_assigner(ByName()), "orders")
    totals = timed.key_by(lambda order: order["user"], Types.STRING()).process_batches(Totals(), TOTAL)
    kept = totals.filter_batches(lambda b: pc.greater(b["total"], 0))
    kept.sink_to(FileSink.for_bulk_format(str(tmp_path / "out"), ParquetBulkWriters.for_row_type(TOTAL)).build())
    env.execute("totals")
    parts = [part for part in (tmp_path / "out").rglob("*") if part.is_file() and not part.name.startswith(".")]
    found = {row["user"]: row["total"] for part in parts for row in pyarrow.parquet.read_table(part).to_pylist()}
    wanted: dict[str, int] = defaultdict(int)
    for order in orders():
        wanted[order["user"]] += order["price"] or 0
    assert found == wanted
