"""A job whose checkpoint is kept in ``golden/job-<version>``, and a savepoint of it in ``golden/savepoint-<version>``: every later
version restores them and ends as if nothing had been.

``python -m tests.compat.kept_job`` writes those of this version's format, if there are none yet.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.simulation.executor import TARGET
from tidegate.base.errors import JobFailedError
from tidegate.checkpoint.metadata import VERSION
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.functions import RuntimeContext
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

GOLDEN = Path(__file__).parent / "golden"
RECORDS, FAILS_AT, STOPS_AT, NEVER = 400, 250, 8, 10**12


class Totals(KeyedProcessFunction):
    """State of every kind, and a timer that fires at the end: it tells what has become of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, runtime_context: RuntimeContext) -> None:
        self._fails = runtime_context.get_job_parameter("fails", "no") == "yes"
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.LONG(), Types.STRING()))
        self._some = runtime_context.get_list_state(ListStateDescriptor("some", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        if self._fails and value == FAILS_AT:
            raise RuntimeError("as planned")
        self._count.update((self._count.value() or 0) + 1)
        self._seen.put(value, str(value))
        if value % 40 == 0:
            self._some.add({"value": value})
        ctx.timer_service().register_event_time_timer(NEVER)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        some = sorted(kept["value"] for kept in self._some.get())
        yield self._name, repr(ctx.get_current_key()), self._count.value(), sum(map(int, self._seen.values())), some


class SameTime(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


def program(
    directory: str, *, fails: bool = False, restore: Path | None = None, parallelism: int = 2
) -> tuple[StreamExecutionEnvironment, DataStream]:
    settings = {
        "execution.target": TARGET,
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.dir": directory,
        "execution.state-recovery.path": str(restore or ""),
        "tidegate.round.max-records": "20",
        "restart-strategy.type": "none",
        "pipeline.global-job-parameters": f"fails:{'yes' if fails else 'no'}",
        "parallelism.default": str(parallelism),
    }
    configuration = Configuration()
    for key, value in settings.items():
        if value:
            configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SameTime())
    numbers = env.from_source(NumberSequenceSource(0, RECORDS - 1), strategy, "numbers", Types.LONG()).uid("numbers")
    by_text = numbers.key_by(lambda x: f"k{x % 4}", key_type=Types.STRING()).process(Totals("text")).uid("by text")
    by_other = numbers.key_by(lambda x: (x % 3) / 2).process(Totals("float")).uid("by float")
    return env, by_text.union(by_other)


def run(directory: str, *, fails: bool, restore: Path | None = None, parallelism: int = 2) -> list[Any]:
    """The job's output. ``fails``: it does so in the middle, and leaves its checkpoints in ``directory``."""
    _, stream = program(directory, fails=fails, restore=restore, parallelism=parallelism)
    results = stream.execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        return sorted(results)


def expected() -> list[Any]:
    rows = []
    for name, keys, key_of in (
        ("text", [f"k{n}" for n in range(4)], lambda x: f"k{x % 4}"),
        ("float", [0.0, 0.5, 1.0], lambda x: (x % 3) / 2),
    ):
        for key in keys:
            own = [x for x in range(RECORDS) if key_of(x) == key]
            rows.append((name, repr(key), len(own), sum(own), [x for x in own if x % 40 == 0]))
    return sorted(rows)


def stop(directory: str) -> str:
    """Stop the job in the middle; gives the savepoint."""
    env, stream = program(directory)
    stream.sink_to(DiscardingSink())
    client = env.execute_async("kept")
    asked: list[CompletableFuture[str]] = []

    def ask(statistics: Any) -> None:
        if statistics.round >= STOPS_AT and not asked:
            asked.append(client.stop_with_savepoint(False, f"{directory}/savepoints"))

    client.add_round_listener(ask)
    client.get_job_execution_result().result()
    return asked[0].result()


def main() -> None:
    keep_checkpoint(GOLDEN / f"job-{VERSION}")
    keep_savepoint(GOLDEN / f"savepoint-{VERSION}")


def keep_savepoint(target: Path) -> None:
    if not target.exists():
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(stop(directory), target)
        sys.stdout.write(f"written: {target}\n")


def keep_checkpoint(target: Path) -> None:
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as directory:
        try:
            run(directory, fails=True)
        except JobFailedError:
            [job] = Path(directory).iterdir()
            shutil.copytree(job, target)
            sys.stdout.write(f"written: {target}\n")


if __name__ == "__main__":
    main()
