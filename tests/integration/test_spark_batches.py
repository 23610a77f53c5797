"""Functions over batches and built-in aggregations on Spark: from Parquet files to windows, with checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tidegate.common import Configuration, Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
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
