"""Nexmark's q1, q2, a q7 and a keyed sum as columns and as records: processor time of the tasks, by program.

Prints one JSON line for each program: nanoseconds an event, the median of the runs, which take turns. Every program reads the
generator's JSON lines, or a Parquet file with the same bids, and writes files of JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import tidegate_jobs
from tasks import InProcess, InProcessExecutor

sys.path.append(str(Path(__file__).resolve().parent / "nexmark"))

import generate

from tidegate.common import Configuration, Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates
from tidegate.datastream.connectors.file_system import FileSink, FileSource
from tidegate.datastream.executor import register_executor
from tidegate.datastream.formats.json import JsonBulkWriters, JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tidegate.datastream.window import TumblingEventTimeWindows

LONG, TEXT = Types.LONG(), Types.STRING()
BID = Types.ROW_NAMED(["auction", "bidder", "price", "dateTime", "extra"], [LONG, LONG, LONG, LONG, TEXT])
FEW = Types.ROW_NAMED(["auction", "price"], [LONG, LONG])
TIMED = Types.ROW_NAMED(["auction", "price", "dateTime"], [LONG, LONG, LONG])
CONVERTED = Types.ROW_NAMED(BID.get_field_names(), [LONG, LONG, Types.DOUBLE(), LONG, TEXT])
TOTAL = Types.TUPLE([LONG, LONG, LONG])


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["dateTime"]
        return time


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    found = batch.filter(pc.equal(batch["event_type"], 2))["bid"]
    return pa.RecordBatch.from_arrays(found.flatten(), names=[field.name for field in found.type])


def bids(env: Any, source: str, path: str, row_type: Any) -> Any:
    """Return the bids as columns, with the fields that the query uses."""
    if source == "parquet":
        found = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(row_type), f"{path}/bids.parquet").build()
        return env.from_source(found, WatermarkStrategy.no_watermarks(), "bids")
    event = Types.ROW_NAMED(["event_type", "bid"], [Types.INT(), row_type])
    lines = FileSource.for_record_stream_format(JsonLinesFormat.for_type(event), f"{path}/json").build()
    return env.from_source(lines, WatermarkStrategy.no_watermarks(), "events").flat_map_batches(flat, row_type)


def q1(env: Any, source: str, path: str) -> Any:
    def euros(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(2, "price", pc.multiply(pc.cast(batch["price"], pa.float64()), 0.908))

    return bids(env, source, path, BID).map_batches(euros, CONVERTED), CONVERTED


def q2(env: Any, source: str, path: str) -> Any:
    wanted = bids(env, source, path, FEW)
    return wanted.filter_batches(lambda b: b["auction"] % 123 == 0, batch_format="numpy"), FEW


def windowed(env: Any, source: str, path: str) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(4)).with_timestamp_assigner(ByTime())
    timed = bids(env, source, path, TIMED).assign_timestamps_and_watermarks(strategy)
    return timed.key_by(lambda bid: bid["auction"], LONG).window(TumblingEventTimeWindows.of(Time.seconds(10)))


def q7(env: Any, source: str, path: str) -> Any:
    """Return the greatest price of each auction in ten seconds."""
    return windowed(env, source, path).aggregate(
        Aggregates.first("auction"), Aggregates.max("price"), Aggregates.last("dateTime")
    ), TOTAL


def keyed_sum(env: Any, source: str, path: str) -> Any:
    return windowed(env, source, path).aggregate(
        Aggregates.first("auction"), Aggregates.sum("price"), Aggregates.count()
    ), TOTAL


PROGRAMS: dict[str, Callable[[Any, str, str], Any]] = {"q1": q1, "q2": q2, "q7": q7, "keyed sum": keyed_sum}


def write_input(path: str, events: int) -> None:
    os.makedirs(f"{path}/json")
    generate.write_files(Path(f"{path}/json"), events, 2, 1)
    Path(f"{path}/json/side.csv").unlink(missing_ok=True)
    rows = []
    for part in sorted(Path(f"{path}/json").glob("*.jsonl")):
        with part.open() as lines:
            rows += [event["bid"] for event in map(json.loads, lines) if event["event_type"] == 2]
    columns = {name: [row[name] for row in rows] for name in BID.get_field_names()}
    pyarrow.parquet.write_table(pa.table(columns), f"{path}/bids.parquet", row_group_size=1 << 17)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="programs whose name contains this text")
    parser.add_argument("--source", choices=["json", "parquet"], action="append")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-columns-") as directory:
        write_input(directory, args.events)
        found: dict[tuple[str, str], list[list[float]]] = {}
        for run in range(args.runs):
            for source in args.source or ["json", "parquet"]:
                for name, add in PROGRAMS.items():
                    if args.only in name:
                        used = _run(f"{directory}/{source}-{name}-{run}", add, source, directory)
                        found.setdefault((name, source), []).append([seconds / args.events * 1e9 for seconds in used])
    for (name, source), runs in found.items():
        levels = [round(statistics.median(level)) for level in zip(*runs, strict=True)]
        total = round(statistics.median(map(sum, runs)))
        load = round(os.getloadavg()[0], 1)
        print(json.dumps({"program": name, "source": source, "ns_an_event": total, "by_level": levels, "load": load}))


def _run(directory: str, add: Callable[[Any, str, str], Any], source: str, path: str) -> list[float]:
    engine = InProcess(fresh=False)
    register_executor("in-process", lambda: InProcessExecutor(engine))
    settings = Configuration()
    settings.set_string("execution.target", "in-process")
    settings.set_string("tidegate.round.max-records", "16000000")
    settings.set_string("tidegate.round.target-time", "1 h")
    env = tidegate_jobs.environment(2, 3_600_000, directory, [])
    env.configure(settings)
    stream, row_type = add(env, source, path)
    if row_type is TOTAL:
        names = Types.ROW_NAMED(["auction", "value", "more"], [LONG, LONG, LONG])
        stream, row_type = stream.map_batches(lambda b: b.rename_columns(names.get_field_names()), names), names
    stream.sink_to(FileSink.for_bulk_format(f"{directory}/out", JsonBulkWriters.for_type(row_type)).build())
    env.execute("columns")
    return engine.used


if __name__ == "__main__":
    main()
