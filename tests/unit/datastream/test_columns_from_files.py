"""Columns from files through timestamps, keys and windows to files: the same results as records, without rows."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from tests.programs import program_of
from tests.simulation.executor import Simulated
from tidegate.base.errors import TidegateError
from tidegate.common import Duration, Row, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.formats import json_rows
from tidegate.connectors.formats.columns import ROWS
from tidegate.datastream import (
    Aggregates,
    KeyedBatchProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors.file_system import FileSink, FileSource
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.json import JsonBulkWriters, JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.graph.plan import build
from tidegate.operators.contracts import arrow_batch
from tidegate.operators.kinds import sliced_window
from tidegate.operators.loop.rewrites.explain import explain_functions
from tidegate.table.types import DataTypes
from tidegate.testing.simulation.engine import Chances

FAULTS = Chances(die=0.1, zombie=0.1, late=0.1, rerun=0.05, rerun_whole=0.05, lose_store=0.2)
BID = Types.ROW_NAMED(
    ["user", "price", "rate", "flag", "time"],
    [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.BOOLEAN(), Types.LONG()],
)
COUNT = 3000
BEFORE_1970 = -1_000_000


def bids(missing: bool) -> list[dict[str, Any]]:
    """Return records with texts beyond ASCII, times before 1970 and, if asked, missing values."""
    return [
        {
            "user": ["ann", "bób", "猫", "𝄞"][n % 4],
            "price": None if missing and n % 7 == 0 else n * 3 % 1000 - 500,
            "rate": None if missing and n % 11 == 0 else n / 8,
            "flag": None if missing and n % 5 == 0 else n % 2 == 0,
            "time": BEFORE_1970 + n,
        }
        for n in range(COUNT)
    ]


def json_files(path: Path, records: list[dict[str, Any]]) -> Any:
    (path / "a.json").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return FileSource.for_record_stream_format(JsonLinesFormat.for_type(BID), str(path)).build()


def parquet_files(path: Path, records: list[dict[str, Any]]) -> Any:
    pyarrow.parquet.write_table(pa.Table.from_pylist(records), path / "a.parquet", row_group_size=700)
    return FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(BID), str(path)).build()


def csv_schema() -> CsvSchema:
    builder = CsvSchema.builder().add_string_column("user").add_number_column("price")
    builder = builder.add_number_column("rate", DataTypes.DOUBLE()).add_boolean_column("flag").add_number_column("time")
    return builder.set_null_value("-").build()


def csv_files(path: Path, records: list[dict[str, Any]]) -> Any:
    lines = (",".join("-" if v is None else str(v) for v in record.values()) + "\n" for record in records)
    (path / "a.csv").write_text("".join(lines), encoding="utf-8")
    return FileSource.for_record_stream_format(CsvReaderFormat.for_schema(csv_schema()), str(path)).build()


FILES = {"json": json_files, "parquet": parquet_files, "csv": csv_files}


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["time"]
        return time


class ByTimeCalled(TimestampAssigner):
    """The same, in a form that is no arithmetic: the function is called for each record."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return dict(time=value[4])["time"]  # noqa: C408


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (results,) = elements
        yield key, context.window().start, *results


EVERY = (
    Aggregates.count(),
    Aggregates.count("price"),
    Aggregates.sum("price"),
    Aggregates.min("rate"),
    Aggregates.max("rate"),
    Aggregates.avg("price"),
    Aggregates.count_distinct("flag"),
    Aggregates.top(3, "price"),
    Aggregates.percentile(50, "price"),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=3, **{"execution.checkpointing.interval": "10 ms", "parallelism.default": 2})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of records that became rows."""
    found: list[int] = []
    rows, decoded = arrow_batch.Layout.rows, json_rows._Objects.rows
    parsed = arrow_batch.ParsedColumns.rows
    monkeypatch.setattr(arrow_batch.Layout, "rows", lambda s, b: found.append(b.num_rows) or rows(s, b))
    monkeypatch.setattr(json_rows._Objects, "rows", lambda s: found.append(len(s)) or decoded(s))
    monkeypatch.setattr(arrow_batch.ParsedColumns, "rows", lambda s: found.append(len(s)) or parsed(s))
    return found


def windowed(env: StreamExecutionEnvironment, source: Any, assigner: Any, key: Any) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(COUNT))
    stream = env.from_source(source, strategy.with_timestamp_assigner(assigner), "bids")
    keyed = stream.filter_batches(lambda b: pc.not_equal(b["user"], "𝄞")).key_by(key, Types.STRING())
    window = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(500)))
    return window.aggregate(Aggregates.of(*EVERY), WithWindow())


def results(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as found:
        return sorted(found)


def wanted(records: list[dict[str, Any]]) -> list[Any]:
    contents: dict[Any, list[Any]] = defaultdict(list)
    for record in records:
        if record["user"] != "𝄞":
            contents[record["user"], record["time"] // 500 * 500].append(record)
    function = Aggregates.of(*EVERY).typed(BID)
    found = []
    for key, rows in contents.items():
        accumulator = function.create_accumulator()
        for record in rows:
            accumulator = function.add(Row(*record.values()), accumulator)
        found.append((*key, *function.get_result(accumulator)))
    return sorted(found)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_records_of_files_stay_columns_up_to_the_windows(
    env: StreamExecutionEnvironment, directory: Path, kind: str, missing: bool, made: list[int], folds: list[int]
) -> None:
    records = bids(missing)
    found = results(windowed(env, FILES[kind](directory, records), ByTime(), lambda bid: bid["user"]))
    assert found == wanted(records)
    assert sum(folds) > COUNT / 2
    assert sum(made) < 64 * 20, made  # only batches that are too small for columns


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("key", [lambda bid: bid.user, lambda bid: bid[0], lambda bid: str({"u": bid["user"]}["u"])])
def test_functions_that_are_called_for_each_record_give_the_same(
    env: StreamExecutionEnvironment, directory: Path, kind: str, key: Any
) -> None:
    records = bids(missing=True)
    assert results(windowed(env, FILES[kind](directory, records), ByTimeCalled(), key)) == wanted(records)


def test_rows_reach_functions_of_a_record_as_before(env: StreamExecutionEnvironment, directory: Path) -> None:
    records = bids(missing=True)
    stream = env.from_source(json_files(directory, records), WatermarkStrategy.no_watermarks(), "bids")
    keyed = stream.key_by(lambda bid: bid["user"], Types.STRING()).map(lambda bid: (bid.user, bid["price"], bid[4]))
    assert results(keyed.map(repr)) == sorted(repr((r["user"], r["price"], r["time"])) for r in records)


WRITERS = {
    "json": (JsonBulkWriters.for_type(BID), json_files),
    "csv": (CsvBulkWriters.for_schema(csv_schema()), csv_files),
    "parquet": (ParquetBulkWriters.for_row_type(BID), parquet_files),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", FILES)
def test_columns_are_written_as_records_are(
    simulated: Simulated, directory: Path, tmp_path: Path, kind: str, writer: str, made: list[int]
) -> None:
    records = bids(missing=True)

    def written(name: str, step: Any) -> list[Any]:
        env = simulated(seed=3, **{"execution.checkpointing.interval": "10 ms", "parallelism.default": 1})
        source = FILES[kind](directory, records)
        stream = step(env.from_source(source, WatermarkStrategy.no_watermarks(), "bids"))
        stream.sink_to(FileSink.for_bulk_format(str(tmp_path / name), WRITERS[writer][0]).build())
        env.execute()
        parts = [p for p in (tmp_path / name).rglob("*") if p.is_file() and not p.name.startswith(".")]
        if writer == "parquet":
            return [row for part in parts for row in pyarrow.parquet.read_table(part).to_pylist()]
        return [line for part in parts for line in part.read_text().splitlines()]

    on_columns = written("columns", lambda s: s.filter_batches(lambda b: pc.less(b["time"], BEFORE_1970 + 2000)))
    assert not made
    by_record = written("rows", lambda s: s.filter(lambda bid: bid["time"] < BEFORE_1970 + 2000))
    assert len(on_columns) == 2000
    assert sorted(map(repr, on_columns)) == sorted(map(repr, by_record))


# -- what does not fit


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"user": "ann", "price": "many"', "many"),
        ('{"user": "ann", "price": 1e400}', "price"),
        ('{"user": "ann", "price": 9223372036854775808}', "price"),
        ("null null", "null null"),
        ('{"user": "\udcff"}', "utf-8"),
        ('{"unknown": "\udcff"}', "utf-8"),
    ],
)
def test_broken_json_line_names_file_line_and_record(
    env: StreamExecutionEnvironment, directory: Path, line: str, found: str
) -> None:
    good = [json.dumps(record) for record in bids(missing=False)]
    lines = "\n".join([*good[:2000], line, *good[2000:]]) + "\n"
    (directory / "a.json").write_text(lines, errors="surrogateescape")
    source = FileSource.for_record_stream_format(JsonLinesFormat.for_type(BID), str(directory)).build()
    with pytest.raises(TidegateError) as error:
        results(windowed(env, source, ByTime(), lambda bid: bid["user"]))
    assert "line 2001" in str(error.value)
    assert found in str(error.value)
    assert str(directory / "a.json") in str(error.value)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_line_that_is_not_utf_8_is_skipped_with_other_lines_that_do_not_fit(
    env: StreamExecutionEnvironment, directory: Path, name: str
) -> None:
    good = [json.dumps(record).encode() + b"\n" for record in bids(missing=False)]
    data = b"".join([*good[:70], b'{"user": "\xff"}\n', b'{"price": "x"}\n', *good[70:]])
    (directory / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    lines = JsonLinesFormat.for_type(BID, ignore_parse_errors=True)
    source = FileSource.for_record_stream_format(lines, str(directory)).build()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "bids")
    assert results(stream.map(lambda bid: bid["time"])) == [record["time"] for record in bids(missing=False)]


@pytest.mark.parametrize("quoted_line_breaks", [True, False])
def test_cell_that_is_too_long_names_file_and_line(
    env: StreamExecutionEnvironment, directory: Path, quoted_line_breaks: bool
) -> None:
    (directory / "a.csv").write_text("ann,1,1,true,1\n" + "x" * 140_000 + ",1,1,true,1\n")
    lines = CsvReaderFormat.for_schema(csv_schema(), quoted_line_breaks=quoted_line_breaks)
    source = FileSource.for_record_stream_format(lines, str(directory)).build()
    with pytest.raises(TidegateError) as error:
        results(env.from_source(source, WatermarkStrategy.no_watermarks(), "bids"))
    assert f"file {directory / 'a.csv'}, line {'2' if quoted_line_breaks else repr('x' * 9)[:-1]}" in str(error.value)
    assert "field larger than field limit (131072)" in str(error.value)


def test_faults_lose_and_double_nothing(
    simulated: Simulated, directory: Path, folds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_window, "_LEAST", 8)  # batches of small rounds
    records = bids(missing=True)
    env = simulated(
        seed=7,
        chances=FAULTS,
        **{
            "execution.checkpointing.interval": "10 ms",
            "parallelism.default": 2,
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 100,
            "restart-strategy.fixed-delay.delay": "1 ms",
            "tidegate.round.max-records": 20_000,
        },
    )
    found = results(windowed(env, json_files(directory, records), ByTime(), lambda bid: bid["user"]))
    assert found == wanted(records)
    assert folds


def test_nan_and_infinity_pass_columns(env: StreamExecutionEnvironment, directory: Path) -> None:
    records = [{**record, "rate": [math.nan, math.inf, -0.0][n % 3]} for n, record in enumerate(bids(missing=False))]
    found = results(windowed(env, parquet_files(directory, records), ByTime(), lambda bid: bid["user"]))
    assert repr(found) == repr(wanted(records))


def explained(env: StreamExecutionEnvironment) -> dict[str, str]:
    return {
        f"{one.operator} {one.function}": str(one)
        for one in explain_functions(build(program_of(env, "job"), 1, None, {}))
    }


def test_explain_names_the_selector_that_keeps_columns_and_the_one_that_does_not(directory: Path) -> None:
    env = StreamExecutionEnvironment()
    bids = env.from_source(json_files(directory, []), WatermarkStrategy.no_watermarks(), "bids")
    bids.filter_batches(lambda b: b["flag"]).key_by(lambda bid: bid["user"], Types.STRING()).process_batches(Same())
    found = explained(env)
    [filtered] = [text for name, text in found.items() if name.startswith("filter_batches")]
    [selector] = [text for name, text in found.items() if name.startswith("key of")]
    [processed] = [text for name, text in found.items() if name.startswith("process_batches")]
    assert filtered == "called on batches (as columns from 'bids', for each batch that the source gives as columns)"
    assert selector == "on columns"
    assert processed == (
        "called on batches (as columns from another chain, for each batch that is sent as columns: see the key selector)"
    )
    env = StreamExecutionEnvironment()
    bids = env.from_source(json_files(directory, []), WatermarkStrategy.no_watermarks(), "bids")
    bids.map(lambda bid: {"user": bid.user}).key_by(lambda bid: bid["user"], Types.STRING()).map(lambda bid: bid)
    assert not any(text.startswith("on columns") for text in explained(env).values())


class Same(KeyedBatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        return batch


def test_filter_that_no_record_of_a_batch_passes_leaves_nothing(
    env: StreamExecutionEnvironment, directory: Path
) -> None:
    stream = env.from_source(json_files(directory, bids(missing=False)), WatermarkStrategy.no_watermarks(), "bids")
    some = stream.filter(lambda bid: bid["time"] >= -1_000_000 + 2990).key_by(lambda bid: bid["price"], Types.LONG())
    assert results(some.map(lambda bid: bid["time"])) == list(range(BEFORE_1970 + 2990, BEFORE_1970 + COUNT))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("quoted_line_breaks", [True, False])
def test_lines_without_a_record_write_nothing(
    simulated: Simulated, directory: Path, tmp_path: Path, writer: str, quoted_line_breaks: bool
) -> None:
    (directory / "a.csv").write_text("\n\n\n")
    (directory / "b.csv").write_text("ann,1,1,true,1\n" * ROWS + "\n\n")
    env = simulated(seed=3, **{"parallelism.default": 1})
    lines = CsvReaderFormat.for_schema(csv_schema(), quoted_line_breaks=quoted_line_breaks)
    source = FileSource.for_record_stream_format(lines, str(directory)).build()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "bids")
    stream.sink_to(FileSink.for_bulk_format(str(tmp_path / "out"), WRITERS[writer][0]).build())
    env.execute()
    [part] = [path for path in (tmp_path / "out").rglob("part-*") if path.is_file()]
    if writer == "parquet":
        assert pyarrow.parquet.read_table(part).num_rows == ROWS
    else:
        assert len(part.read_text().splitlines()) == ROWS
        assert set(part.read_text().splitlines()).isdisjoint([""])


def test_batches_without_a_record_reach_no_function(env: StreamExecutionEnvironment, directory: Path) -> None:
    source = csv_files(directory, [])
    (directory / "a.csv").write_text("\n\n\n")
    (directory / "b.csv").write_text("ann,1,1,true,1\n\n")
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "bids")
    lengths = stream.flat_map_batches(lambda batch: pa.array([batch.num_rows]), Types.LONG())
    assert results(lengths) == [1]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("names", [["count", "key"], ["key", "count"], ["kind", "number"]])
def test_united_streams_of_other_names_have_the_names_of_the_first(
    simulated: Simulated, directory: Path, names: list[str], inline: bool
) -> None:
    env = simulated(seed=3, **{"parallelism.default": 1, "tidegate.functions.inline": inline})
    streams = []
    for part, (first, second) in enumerate((["key", "count"], names)):
        path = directory / str(part)
        path.mkdir()
        (path / "a.json").write_text("".join(json.dumps({first: n % 2, second: n}) + "\n" for n in range(200)))
        lines = JsonLinesFormat.for_type(Types.ROW_NAMED([first, second], [Types.LONG(), Types.LONG()]))
        source = FileSource.for_record_stream_format(lines, str(path)).build()
        streams.append(env.from_source(source, WatermarkStrategy.no_watermarks(), f"numbers {part}"))
    united = streams[0].union(streams[1]).key_by(lambda row: row[0], Types.LONG()).process_batches(Same())
    found = results(united.map(lambda row: (row["key"], row["count"])))
    other = [(n, n % 2) if names == ["count", "key"] else (n % 2, n) for n in range(200)]
    assert found == sorted([*((n % 2, n) for n in range(200)), *other])
