"""Functions over batches against functions of a record, in one process: processor time a record, by program.

Prints one JSON line for each program. Every program reads a Parquet file, or a sequence of numbers, and ends in a sink that
discards the few records that a filter leaves.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import tidegate_jobs
from tasks import InProcess, InProcessExecutor

from tidegate.common import Configuration, Duration, Row, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import AggregateFunction, Aggregates
from tidegate.datastream.connectors.file_system import FileSource
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.executor import register_executor
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tidegate.datastream.window import TumblingEventTimeWindows

BID = Types.ROW_NAMED(["auction", "price", "time"], [Types.LONG(), Types.LONG(), Types.LONG()])
TUPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value[2]
        return time


class SumAndCount(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def numbers(env: Any, records: int, path: str) -> Any:
    return env.from_source(
        NumberSequenceSource(0, records - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )


def bids(env: Any, path: str, *, as_tuples: bool = False, timed: bool = False) -> Any:
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(BID, as_tuples=as_tuples), path).build()
    strategy = WatermarkStrategy.no_watermarks()
    if timed:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(1)).with_timestamp_assigner(
            ByTime()
        )
    return env.from_source(source, strategy, "bids")


def tenfold(row: Any) -> Row:
    return Row(row.auction, row.price * 10, row.time)


def windowed(env: Any, path: str) -> Any:
    keyed = bids(env, path, as_tuples=True, timed=True).key_by(lambda bid: bid[0], Types.LONG())
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(100)))


PROGRAMS: dict[str, Callable[[Any, int, str], Any]] = {
    "numbers: map": lambda env, n, path: (
        numbers(env, n, path).map(lambda v: v * 3 + 1, Types.LONG()).filter(lambda v: v % 1000 == 0)
    ),
    "numbers: map_batches": lambda env, n, path: (
        numbers(env, n, path)
        .map_batches(lambda b: pc.add(pc.multiply(b["value"], 3), 1))
        .filter_batches(lambda b: b["value"] % 1000 == 0, batch_format="numpy")
    ),
    "parquet rows: map": lambda env, n, path: bids(env, path).map(tenfold, BID).filter(lambda row: row.price < 1000),
    "parquet rows: map_batches": lambda env, n, path: (
        bids(env, path)
        .map_batches(lambda b: b.set_column(1, "price", pc.multiply(b["price"], 10)))
        .filter_batches(lambda b: pc.less(b["price"], 1000))
    ),
    "parquet tuples: map": lambda env, n, path: (
        bids(env, path, as_tuples=True)
        .map(lambda bid: (bid[0], bid[1] * 10, bid[2]), TUPLE)
        .filter(lambda bid: bid[1] < 1000)
    ),
    "parquet tuples: map_batches": lambda env, n, path: (
        bids(env, path, as_tuples=True)
        .map_batches(lambda b: b.set_column(1, "f1", pc.multiply(b["f1"], 10)))
        .filter_batches(lambda b: pc.less(b["f1"], 1000))
    ),
    "window: AggregateFunction": lambda env, n, path: windowed(env, path).aggregate(SumAndCount()),
    "window: Aggregates": lambda env, n, path: windowed(env, path).aggregate(Aggregates.sum(1), Aggregates.count()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--only", default="", help="programs whose name contains this text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        path = str(Path(directory) / "bids.parquet")
        values = pa.array(range(args.records), pa.int64())
        keys = pa.array([n * 7919 % args.keys for n in range(args.records)], pa.int64())
        pyarrow.parquet.write_table(pa.table({"auction": keys, "price": values, "time": values}), path)
        for number, (name, add) in enumerate(PROGRAMS.items()):
            if args.only in name:
                print(json.dumps({"program": name, **_run(f"{directory}/{number}", add, args.records, path)}))


def _run(directory: str, add: Callable[[Any, int, str], Any], records: int, path: str) -> dict[str, Any]:
    engine = InProcess(fresh=False)
    register_executor("in-process", lambda: InProcessExecutor(engine))
    settings = Configuration()
    settings.set_string("execution.target", "in-process")
    settings.set_string("tidegate.round.max-records", "500000")
    settings.set_string("tidegate.round.target-time", "1 h")
    env = tidegate_jobs.environment(2, 3_600_000, directory, [])
    env.configure(settings)
    add(env, records, path).sink_to(DiscardingSink())
    env.execute("batches")
    per_level = [round(seconds / records * 1e9, 1) for seconds in engine.used]
    return {"ns_a_record": round(sum(per_level), 1), "by_level": per_level}


if __name__ == "__main__":
    main()
