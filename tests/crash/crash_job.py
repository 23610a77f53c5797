"""The program that crash tests kill: run as a script, started again until it ends. Its whole output is known beforehand.

Numbers in two splits; every number becomes an ``Order`` (a class of this script), is counted per key with state and a timer, and
goes to a file sink; the bare numbers go to a two-phase-commit sink. A key belongs to one split, so the order of its records is
promised.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidegate.checkpoint import owner
from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment, TwoPhaseCommitSinkFunction
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor

RECORDS, ROUND, KEYS_PER_SPLIT = 2_400, 200, 5
END_OF_TIME = (1 << 63) - 1


@dataclass
class Order:
    number: int

    @property
    def key(self) -> str:
        return key_of(self.number)


def key_of(number: int) -> str:
    return f"{'low' if number < RECORDS // 2 else 'high'}-{number % KEYS_PER_SPLIT}"


class Counter(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seconds = float(os.environ.get("CRASH_JOB_SLOW_MS", "0")) / 1000
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Order, ctx: KeyedProcessFunction.Context) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.total.update((self.total.value() or 0) + value.number)
        ctx.timer_service().register_event_time_timer(END_OF_TIME)
        yield json.dumps({"key": value.key, "count": count, "number": value.number})

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield json.dumps({"key": ctx.get_current_key(), "count": self.count.value(), "total": self.total.value()})


class RenamedFiles(TwoPhaseCommitSinkFunction):
    """A transaction is a file below ``open``, committed by moving it to ``committed``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin_transaction(self) -> str:
        (self.directory / "open").mkdir(parents=True, exist_ok=True)
        return uuid.uuid4().hex

    def invoke(self, transaction: str, value: Any, context: Any) -> None:
        with open(self.directory / "open" / transaction, "a") as file:
            file.write(f"{value}\n")

    def pre_commit(self, transaction: str) -> None:
        with open(self.directory / "open" / transaction) as file:
            os.fsync(file.fileno())

    def commit(self, transaction: str) -> None:
        (self.directory / "committed").mkdir(exist_ok=True)
        source = self.directory / "open" / transaction
        if source.exists():
            source.rename(self.directory / "committed" / transaction)
        elif not (self.directory / "committed" / transaction).exists():
            raise LookupError(f"transaction {transaction} is gone")

    def abort(self, transaction: str) -> None:
        (self.directory / "open" / transaction).unlink(missing_ok=True)


def main(directory: Path) -> None:
    keys = {
        "tidegate.job-id": "crash",
        "execution.checkpointing.dir": str(directory / "checkpoints"),
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": ROUND,
        "tidegate.state.local-dir": str(directory / "local"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 10,
        "restart-strategy.fixed-delay.delay": "10 ms",
        **json.loads(os.environ.get("CRASH_JOB_KEYS", "{}")),
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys))
    env.set_parallelism(int(os.environ.get("CRASH_JOB_PARALLELISM", "2")))
    numbers = env.from_source(NumberSequenceSource(0, RECORDS - 1), WatermarkStrategy.no_watermarks(), "numbers")
    counted = numbers.uid("numbers").map(Order).key_by(lambda order: order.key, Types.STRING()).process(Counter())
    sink = FileSink.for_row_format(str(directory / "files"), Encoder.simple_string_encoder())
    sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    counted.uid("counted").sink_to(sink.build()).uid("files")
    numbers.add_sink(RenamedFiles(directory / "transactions")).uid("transactions")
    command = os.environ.get("CRASH_JOB_COMMAND")
    if command:
        run_and_tell(env, command, str(directory / "savepoints"))
    else:
        env.execute("crash test")


def run_and_tell(env: StreamExecutionEnvironment, command: str, target: str) -> None:
    """Somebody asks for a savepoint, or to stop with one, when some rounds are over."""
    client = env.execute_async("crash test")
    asked: list[Any] = []

    def ask(statistics: Any) -> None:
        if statistics.round >= 4 and not asked:
            asked.append(
                client.stop_with_savepoint(False, target) if command == "stop" else client.trigger_savepoint(target)
            )

    client.add_round_listener(ask)
    client.get_job_execution_result().result()
    for answer in asked:
        print("savepoint:", answer.result())


if __name__ == "__main__":
    if "CRASH_JOB_HOST" in os.environ:  # as another machine would see it
        vars(owner)["socket"] = SimpleNamespace(gethostname=lambda: os.environ["CRASH_JOB_HOST"])
        vars(owner)["_boot"] = lambda: "another-boot"
    main(Path(sys.argv[1]))
