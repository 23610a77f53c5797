"""Programs on files give the same with functions evaluated on columns and with functions called for each record: results, their
types and order, late records, errors."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import TidegateError
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.formats import json_schemas
from tidegate.datastream import (
    Aggregates,
    KeyedBatchProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
)
from tidegate.datastream.connectors.file_system import FileSource
from tidegate.datastream.formats.json import JsonLinesFormat
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.operators.flow.outputs import EdgeOutput

NAMES = ["text", "number", "real", "flag", "time", "short"]
ROW = Types.ROW_NAMED(
    NAMES, [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.BOOLEAN(), Types.LONG(), Types.SHORT()]
)
LATE = OutputTag("late", ROW)
FILTERS: list[Callable[[Any], Any] | None] = [
    None,
    lambda r: r["number"] > 10**9,  # a few records, or none of a batch
    lambda r: not r["flag"],
    lambda r: r["number"] % 2 == 0 and r["real"] >= 0.0,
    lambda r: r.number != r["short"],
    lambda r: -r["number"] < r["time"],
]
KEYS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda r: r["text"], Types.STRING()),
    (lambda r: r["number"], Types.LONG()),
    (lambda r: r["number"] % 3, Types.LONG()),
    (lambda r: r["real"], Types.DOUBLE()),
    (lambda r: r["real"], None),
    (lambda r: r["flag"], Types.BOOLEAN()),
    (lambda r: r["flag"], Types.LONG()),
    (lambda r: f"k-{r['number'] % 5}", Types.STRING()),
]
FAILING: list[Any] = [lambda r: 100 // r["number"] > 0, (lambda r: r["time"] * 1000, Types.SHORT())]
"""A filter, and a key that is not of its declared type."""
WINDOWS: list[Callable[[], Any]] = [
    lambda: TumblingEventTimeWindows.of(Time.milliseconds(200)),
    lambda: SlidingEventTimeWindows.of(Time.milliseconds(300), Time.milliseconds(100)),
    lambda: EventTimeSessionWindows.with_gap(Time.milliseconds(50)),
]
ODD_REALS = [1e308, -1e308, 5e-324, -0.0, 0.0, 1e16, 0.1, 1e-5]
NO_JSON = [math.nan, math.inf, -math.inf]


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["time"]
        return time


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (found,) = elements
        yield key, context.window().start, *found


class Seen(KeyedProcessFunction):
    """Emit the record, its time, its key and what the state holds."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        seen = [*(self.seen.value() or []), value]
        self.seen.update(seen)
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 50)
        yield "record", ctx.get_current_key(), value, ctx.timestamp(), len(seen)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        seen = self.seen.value()
        yield "timer", ctx.get_current_key(), timestamp, len(seen), seen[-1]


class Same(KeyedBatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        return batch, list(range(len(batch)))


def changed(row: Any) -> str:
    """Change the record in place."""
    row["number"] = [row["number"]]
    row["text"] = (row.text or "") + "x"
    return repr(row)


def records(chance: random.Random, count: int, reals: list[float]) -> list[dict[str, Any]]:
    odd, missing, made = chance.choice([0.0, 0.05, 0.9]), chance.choice([0.0, 0.0, 0.002]), []
    for n in range(count):
        late = chance.randrange(1000) if chance.random() < 0.1 else chance.randrange(-80, 80)
        wide = chance.choice([2**53 + 1, 2**63 - 1, -(2**63), 2**62])
        record = {
            "text": chance.choice(["a", "b", "猫", "", "𝄞"]),
            "number": wide if chance.random() < odd * 0.03 else chance.randrange(-4, 8),
            "real": chance.choice(reals) if chance.random() < odd else chance.gauss(0, 3),
            "flag": chance.random() < 0.5,
            "time": n - late,
            "short": chance.randrange(-3, 3),
        }
        if chance.random() < missing:
            record[chance.choice(["text", "number", "real", "flag", "short"])] = None
        made.append(record)
    return made


def source(path: Path, kind: str, chance: random.Random) -> Any:
    count = chance.choice([63, 65, 300, 1200, 1200])
    if kind == "json":
        lines = [json.dumps(record) + "\n" for record in records(chance, count, ODD_REALS)]
        (path / "a.json").write_text("".join(lines))
        return FileSource.for_record_stream_format(JsonLinesFormat.for_type(ROW), str(path)).build()
    text = chance.choice([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
    types = [text, pa.int64(), pa.float64(), pa.bool_(), pa.int64(), pa.int16()]
    schema = pa.schema(list(zip(NAMES, types, strict=True)))
    table = pa.Table.from_pylist(records(chance, count, ODD_REALS + NO_JSON), schema=schema)
    pyarrow.parquet.write_table(table, path / "a.parquet", row_group_size=150)
    return FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(ROW), str(path)).build()


def aggregates(chance: random.Random) -> list[Any]:
    field = chance.choice(["number", "real", "flag", "short", "text"])
    every = [Aggregates.count(), Aggregates.count(field), Aggregates.first(field), Aggregates.last(field)]
    every += [Aggregates.min(field), Aggregates.max(field), Aggregates.count_distinct(field), Aggregates.top(3, field)]
    if field != "text":
        every += [Aggregates.sum(field), Aggregates.avg(field)]
    if field in ("number", "short"):
        every.append(Aggregates.percentile(50, field))
    return chance.sample(every, 4)


def program(stream: Any, chance: random.Random) -> Any:
    """Add steps to the stream. Return the texts of its results."""
    fails = chance.choice(FAILING) if chance.random() < 0.15 else None
    keep = fails if callable(fails) else chance.choice(FILTERS)
    if keep is not None:
        stream = stream.filter(keep).set_parallelism(1)
    selector, key_type = fails if isinstance(fails, tuple) else chance.choice(KEYS)
    keyed = stream.key_by(selector, key_type) if key_type is not None else stream.key_by(selector)
    step = chance.choice(["aggregate", "aggregate", "aggregate", "process", "map", "batches"])
    if step == "process":
        return keyed.process(Seen()).map(repr, Types.STRING())
    if step == "map":
        return keyed.map(changed, Types.STRING())
    if step == "batches":
        return keyed.process_batches(Same()).map(repr, Types.STRING())
    window = keyed.window(chance.choice(WINDOWS)()).allowed_lateness(chance.choice([0, 100]))
    found = window.side_output_late_data(LATE).aggregate(Aggregates.of(*aggregates(chance)), WithWindow())
    late = found.get_side_output(LATE).map(lambda row: f"late {row!r}", Types.STRING())
    return found.map(repr, Types.STRING()).union(late)


def outcome(simulated: Simulated, path: Path, kind: str, seed: int, *, inline: bool) -> tuple[list[str], str]:
    """Return the results and the error of a program."""
    chance = random.Random(seed)
    path.mkdir(exist_ok=True)
    files = source(path, kind, chance)
    keys: dict[str, Any] = {
        "parallelism.default": chance.choice([1, 2]),
        "execution.runtime-mode": chance.choice(["STREAMING", "STREAMING", "BATCH"]),
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": 500 if kind == "parquet" else 40_000,
        "tidegate.chunk.records": 1,  # a chunk for each batch: event time is the same then
        "tidegate.functions.inline": inline,
    }
    env = simulated(seed=3, **keys)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(chance.choice([0, 50, 2000])))
    stream = env.from_source(files, strategy.with_timestamp_assigner(ByTime()), "records").set_parallelism(1)
    try:
        with program(stream, chance).execute_and_collect() as found:
            return sorted(found), ""
    except TidegateError as error:
        return [], str(error).partition("\n")[2]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("seed", range(12))
def test_columns_give_what_records_give(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    monkeypatch.setattr(json_schemas, "_PIECE", 9000)  # several batches of more than 64 records
    on_columns = outcome(simulated, tmp_path / "in", kind, seed, inline=True)
    assert on_columns == outcome(simulated, tmp_path / "in", kind, seed, inline=False)


def test_the_programs_send_columns_and_have_late_records(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    extend = EdgeOutput.extend

    def noted(self: EdgeOutput, batch: Any, keys: Any) -> None:
        sent.append(len(batch))
        extend(self, batch, keys)

    monkeypatch.setattr(EdgeOutput, "extend", noted)
    found = [outcome(simulated, tmp_path / f"{n}", "parquet", n, inline=True)[0] for n in (0, 5, 11)]
    assert sum(sent) > 2000
    assert any(text.startswith("late") for texts in found for text in texts)
