"""Functions over the batches of each key: state, timers, timestamps, faults, rescale."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.simulation.executor import Simulated, simulated_environment
from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import At, ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import TidegateError
from tidegate.checkpoint.locate import locate
from tidegate.common import Duration, Row, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates, KeyedBatchProcessFunction, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing.simulation.engine import Chances

ORDER = Types.ROW_NAMED(["item", "price"], [Types.STRING(), Types.LONG()])
SUM = Types.ROW_NAMED(["item", "total", "records"], [Types.STRING(), Types.LONG(), Types.LONG()])
PANDAS = pytest.param(
    "pandas",
    marks=pytest.mark.skipif(
        find_spec("pandas") is None, reason="pyspark imports an installed pandas at each start, which takes a second"
    ),
)
FAULTS = Chances(die=0.1, zombie=0.1, late=0.1, rerun=0.05, rerun_whole=0.05, lose_store=0.2)
PATH = "execution.state-recovery.path"
RESTARTS: dict[str, Any] = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1000,
    "restart-strategy.fixed-delay.delay": "1 ms",
}


class Totals(KeyedBatchProcessFunction):
    """Emit the total of the key after each batch."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        assert set(batch["item"].to_pylist()) == {ctx.get_current_key()}
        total = (self.total.value() or 0) + (pc.sum(batch["price"]).as_py() or 0)
        self.total.update(total)
        return pa.RecordBatch.from_pydict(
            {"item": [ctx.get_current_key()], "total": [total], "records": [batch.num_rows]}
        )


class AtTheEnd(Totals):
    """Emit one total for each key, by a timer after the last record."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        super().process_batch(batch, ctx)
        ctx.timer_service().register_event_time_timer(10**9)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert timestamp == ctx.timestamp() == 10**9
        return pa.RecordBatch.from_pydict(
            {"item": [ctx.get_current_key()], "total": [self.total.value()], "records": [0]}
        )


class ByPrice(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value["price"])


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp()


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as found:
        return list(found)


def orders(env: StreamExecutionEnvironment, count: int, *, columns: bool = True) -> Any:
    """Return a keyed stream of orders, as columns or as rows."""
    numbers = env.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    if columns:
        made = numbers.map_batches(
            lambda b: pa.RecordBatch.from_pydict(
                {
                    "item": pc.binary_join_element_wise("i", pc.cast(_rest(b["value"]), "string"), ""),
                    "price": b["value"],
                }
            ),
            ORDER,
        )
    else:
        made = numbers.map(lambda n: Row(f"i{n % 5}", n), ORDER)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(count))
    timed = made.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ByPrice()))
    return timed.key_by(lambda order: order["item"], Types.STRING())


def _rest(values: Any) -> Any:
    return pc.subtract(values, pc.multiply(pc.divide(values, 5), 5))


def totals(count: int) -> list[tuple[str, int]]:
    return [(f"i{key}", sum(range(key, count, 5))) for key in range(5)]


@pytest.mark.parametrize("columns", [True, False])
def test_state_of_a_key_lasts_from_batch_to_batch(simulated: Simulated, columns: bool) -> None:
    env = simulated(seed=3, **{"execution.checkpointing.interval": "10 ms", "parallelism.default": 2})
    found = collected(orders(env, 1000, columns=columns).process_batches(Totals(), SUM))
    records = Counter[str]()
    greatest: dict[str, int] = {}
    for row in found:
        records[row.item] += row.records
        greatest[row.item] = max(row.total, greatest.get(row.item, 0))
    assert sorted(greatest.items()) == totals(1000)
    assert set(records.values()) == {200}


@pytest.mark.parametrize(
    "mode", [{}, {"execution.checkpointing.unaligned.enabled": True}, {"state.backend.type": "rocksdb"}]
)
@pytest.mark.parametrize("columns", [True, False])
def test_faults_lose_and_double_nothing(simulated: Simulated, columns: bool, mode: dict[str, Any]) -> None:
    settings = {"execution.checkpointing.interval": "10 ms", "parallelism.default": 2, **RESTARTS, **mode}
    env = simulated(seed=5, chances=FAULTS, **settings, **{"tidegate.round.max-records": 400})
    found = collected(orders(env, 2000, columns=columns).process_batches(AtTheEnd(), SUM))
    assert sorted((row.item, row.total) for row in found) == totals(2000)


def test_batch_mode_gives_the_same_totals(simulated: Simulated) -> None:
    env = simulated(seed=5, **{"execution.runtime-mode": "BATCH", "parallelism.default": 2})
    found = collected(orders(env, 500).process_batches(AtTheEnd(), SUM))
    assert sorted((row.item, row.total) for row in found) == totals(500)


def resumable(directory: Path, parallelism: int, steps: list[Any], kind: str, **more: Any) -> Any:
    """Return a running job with the totals of five keys: by ``process_batches``, or by built-in aggregations of a window."""
    keys: dict[str, Any] = {
        "execution.checkpointing.interval": "10 ms",
        "parallelism.default": parallelism,
        "pipeline.max-parallelism": 16,
    }
    env = simulated_environment(directory, **keys, **RESTARTS, **more)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))
    numbers = env.from_source(ScriptedSource(steps, ends=more.get(PATH) is not None), strategy, "numbers").uid(
        "numbers"
    )
    pairs = numbers.map(lambda n: Row(f"i{n % 5}", n), ORDER).uid("pairs")
    made = pairs.map_batches(lambda b: b).uid("columns").key_by(lambda order: order["item"], Types.STRING())
    if kind == "batches":
        totals = made.process_batches(AtTheEnd(), SUM)
    else:
        window = made.window(TumblingEventTimeWindows.of(Time.hours(1)))
        totals = window.aggregate(Aggregates.first("item"), Aggregates.sum("price"), Aggregates.count_distinct("price"))
    listed = totals.uid("totals").map(lambda row: [row[0], row[1], row[2]]).uid("lists")
    listed.sink_to(LedgerSink(f"{directory}/ledger")).uid("sink")
    return env.execute_async()


@pytest.mark.parametrize("kind", ["batches", "aggregates"])
@pytest.mark.parametrize("widths", [(1, 3), (3, 2)])
def test_state_is_redistributed_by_a_rescale(tmp_path: Path, widths: tuple[int, int], kind: str) -> None:
    steps = [At(n, n) for n in range(400)]
    job = resumable(tmp_path, widths[0], steps, kind)
    eventually(lambda: job.get_job_status().result().name == "RUNNING")
    path = job.stop_with_savepoint(False, str(tmp_path / "sp")).result()
    assert locate(path).metadata.operators[0].source[0]
    more = [*steps, *(At(n, n) for n in range(400, 700))]
    resumable(tmp_path, widths[1], more, kind, **{PATH: path}).get_job_execution_result().result()
    found = sorted(value for page in ledger_pages(f"{tmp_path}/ledger").values() for value in page)
    distinct = 0 if kind == "batches" else 140
    assert found == [[item, total, distinct] for item, total in totals(700)]


def test_results_get_the_time_of_their_record_if_the_function_says_so(simulated: Simulated) -> None:
    class Greatest(KeyedBatchProcessFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
            last = pc.index(batch["price"], pc.max(batch["price"])).as_py()
            return batch.slice(last, 1), [last]

    env = simulated(seed=3, **{"parallelism.default": 1})
    found = collected(orders(env, 1000).process_batches(Greatest()).process(WithTime()))
    assert found
    assert all(row.price == time for row, time in found)


def test_results_stay_columns_for_the_next_function(simulated: Simulated) -> None:
    env = simulated(seed=3, **{"parallelism.default": 1})
    seen = orders(env, 1000).process_batches(AtTheEnd(), SUM).filter_batches(lambda b: pc.equal(b["item"], "i3"))
    assert [(row.item, row.total) for row in collected(seen)] == [totals(1000)[3]]


@pytest.mark.parametrize("batch_format", ["numpy", PANDAS, "polars"])
def test_other_formats_go_in_and_out(simulated: Simulated, batch_format: str) -> None:
    class Cheap(KeyedBatchProcessFunction):
        def process_batch(self, batch: Any, ctx: Any) -> Any:
            if batch_format == "numpy":
                return {name: column[batch["price"] < 10] for name, column in batch.items()}
            return batch.filter(batch["price"] < 10) if batch_format == "polars" else batch[batch["price"] < 10]

    env = simulated(seed=3, **{"parallelism.default": 1})
    found = collected(orders(env, 100).process_batches(Cheap(), batch_format=batch_format))
    assert sorted(row.price for row in found) == list(range(10))


def test_error_names_operator_key_line_and_size(simulated: Simulated) -> None:
    class Fails(KeyedBatchProcessFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
            if ctx.get_current_key() == "i3":
                raise KeyError("no such price")

    env = simulated(seed=3, **{"parallelism.default": 1})
    with pytest.raises(TidegateError) as error:
        collected(orders(env, 100).process_batches(Fails()))
    for part in ("process_batches", "no such price", "i3", "test_process_batches.py", "batch of 20 records"):
        assert part in str(error.value)


def test_plain_function_is_refused(simulated: Simulated) -> None:
    env = simulated(seed=3)
    with pytest.raises(TidegateError, match="process_batches takes a KeyedBatchProcessFunction object"):
        orders(env, 10).process_batches(lambda batch: batch)
