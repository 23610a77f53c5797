"""Eight jobs with something wrong, and one that is well. ``python programs.py NAME DIRECTORY [KEY=VALUE ...]`` runs one for ever.

What is wrong is real: a function that waits, a key that has most records, a database that refuses. Nothing tells the page.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tests.incidents.arrivals import ArrivalSource, AwaySink
from tests.sinks import LedgerSink
from tidegate.common import Configuration, Duration, Types, WatermarkStrategy
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.functions import KeyedProcessFunction, MapFunction, RuntimeContext
from tidegate.datastream.state import ValueStateDescriptor

Program = Callable[[StreamExecutionEnvironment, str], Any]
PROGRAMS: dict[str, Program] = {}
KEYS: dict[str, dict[str, Any]] = {}
HOOKS = {"slow-storage": "tests.incidents.storage:slow"}
"""Faults of the surroundings, for ``TIDEGATE_FAULT_HOOK``."""


def incident(name: str, **keys: Any) -> Callable[[Program], Program]:
    def known(program: Program) -> Program:
        PROGRAMS[name], KEYS[name] = program, {key.replace("__", "."): value for key, value in keys.items()}
        return program

    return known


def arriving(env: StreamExecutionEnvironment, *rates: float, **more: Any) -> DataStream:
    marks = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
    return env.from_source(ArrivalSource(*rates, **more), marks, "orders").uid("orders")


def burn(seconds: float) -> None:
    """Use the processor, as a function that computes."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def counted(env: StreamExecutionEnvironment, directory: str, stream: DataStream, key: Callable[[Any], Any]) -> None:
    totals = stream.key_by(key, key_type=Types.STRING()).map(_one).name("totals").uid("totals")
    totals.sink_to(LedgerSink(f"{directory}/out")).name("ledger").uid("ledger")


def _one(record: Any) -> list[Any]:
    return list(record)


@incident("healthy")
def healthy(env: StreamExecutionEnvironment, directory: str) -> None:
    counted(env, directory, arriving(env, 200, 200), lambda record: f"customer {record[1] % 100}")


class Charge(KeyedProcessFunction):
    """Takes some time for each record."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def process_element(self, value: Any, ctx: Any) -> Any:
        burn(self._seconds)
        yield list(value)


@incident("hot-key", parallelism__default=4)
def hot_key(env: StreamExecutionEnvironment, directory: str) -> None:
    """Nine of ten orders are of one customer, and keep one subtask busy for two thirds of the time."""
    orders = arriving(env, 500, 500, most=3000)
    by_customer = orders.key_by(
        lambda record: f"customer {record[1]}" if record[1] % 10 == 0 else "customer 4711", key_type=Types.STRING()
    )
    charged = by_customer.process(Charge(0.0007)).name("charge").uid("charge")
    charged.sink_to(LedgerSink(f"{directory}/out")).name("ledger").uid("ledger")


class Look(MapFunction):
    """Asks a slow service for each record."""

    def map(self, value: Any) -> Any:
        time.sleep(0.01)
        return list(value)


@incident("slow-function")
def slow_function(env: StreamExecutionEnvironment, directory: str) -> None:
    looked = arriving(env, 1000, 1000, most=200).map(Look()).name("look up").uid("look-up")
    looked.sink_to(LedgerSink(f"{directory}/out")).name("ledger").uid("ledger")


@incident("slow-storage")
def slow_storage(env: StreamExecutionEnvironment, directory: str) -> None:
    """As ``healthy``; the hook makes storage slow."""
    healthy(env, directory)


@incident("stuck-watermark")
def stuck_watermark(env: StreamExecutionEnvironment, directory: str) -> None:
    """The second partition never gets a record."""
    counted(env, directory, arriving(env, 200, 0), lambda record: f"customer {record[1] % 100}")


@incident("lagging-partition")
def lagging_partition(env: StreamExecutionEnvironment, directory: str) -> None:
    """The second partition gets far more than is read of it."""
    counted(env, directory, arriving(env, 20, 50_000, most=200), lambda record: f"customer {record[1] % 100}")


class Remember(KeyedProcessFunction):
    """Keeps a text for every key, for ever."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self._seen.update(f"{value[1]:0400}")
        yield list(value)


@incident("growing-state")
def growing_state(env: StreamExecutionEnvironment, directory: str) -> None:
    """Every order is a key of its own."""
    orders = arriving(env, 1500, 1500)
    seen = orders.key_by(lambda record: f"order {record[0]} {record[1]}", key_type=Types.STRING())
    remembered = seen.process(Remember()).name("remember").uid("remember")
    remembered.sink_to(LedgerSink(f"{directory}/out")).name("ledger").uid("ledger")


class Unreliable(KeyedProcessFunction):
    """Its service goes away a second after each start."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._started = time.monotonic()

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[1] % 100 == 42 and time.monotonic() - self._started > 1:
            raise ConnectionError("the price service closed the connection")
        yield list(value)


@incident("restart-loop", restart_strategy__type="fixed-delay")
def restart_loop(env: StreamExecutionEnvironment, directory: str) -> None:
    orders = arriving(env, 200, 200).key_by(lambda record: f"customer {record[1] % 100}", key_type=Types.STRING())
    priced = orders.process(Unreliable()).name("prices").uid("prices")
    priced.sink_to(LedgerSink(f"{directory}/out")).name("ledger").uid("ledger")


@incident("commit-retried", tidegate__commit__backoff="200 ms")
def commit_retried(env: StreamExecutionEnvironment, directory: str) -> None:
    orders = arriving(env, 200, 200).map(_one).name("orders as rows")
    orders.sink_to(AwaySink(f"{directory}/out")).name("orders-db").uid("orders-db")


def run(name: str, directory: str, given: dict[str, Any]) -> None:
    keys: dict[str, Any] = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "parallelism.default": 2,
        "tidegate.job-id": name,
        "tidegate.round.target-time": "300 ms",
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{directory}/savepoints",
        "execution.checkpointing.num-retained": 3,
        "tidegate.state.local-dir": f"{directory}/local",
        "tidegate.commit.max-attempts": 1000,
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    keys |= {key.replace("restart_strategy", "restart-strategy"): value for key, value in KEYS[name].items()} | given
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys))
    PROGRAMS[name](env, directory)
    env.execute(name)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], dict(argument.split("=", 1) for argument in sys.argv[3:]))
