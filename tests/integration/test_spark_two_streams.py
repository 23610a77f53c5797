"""Two streams and state of operators on Spark: one function, two inputs, workers that change, a failure in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.job_tools import FailOnce
from tests.sources import ScriptedSource
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import (
    CheckpointedFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

END = (1 << 63) - 1
RULES = MapStateDescriptor("rules", Types.LONG(), Types.LONG())
NO_TIME = WatermarkStrategy.no_watermarks()
RESTARTS = {
    "execution.checkpointing.interval": "50 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "10 ms",
}


def in_rounds(env: StreamExecutionEnvironment, values: list[Any], name: str, limit: int = 10) -> Any:
    scripted = ScriptedSource(values)
    scripted.initial_limit = scripted.maximum_limit = limit
    return env.from_source(scripted, NO_TIME, name)


class Judges(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> None:
        self.total.update((self.total.value() or 0) + value)
        ctx.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, value: int, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value % 3, (rules.get(value % 3) or 0) + value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), self.total.value(), sorted(ctx.get_broadcast_state(RULES).items())


def test_broadcast_and_keyed_state_after_a_failure(make_env: Any, tmp_path: Path) -> None:
    env = make_env(RESTARTS)
    numbers = in_rounds(env, list(range(100)), "numbers").map(FailOnce(tmp_path / "failed", 55))
    rules = in_rounds(env, list(range(30)), "rules", limit=3).broadcast(RULES)
    found = list(numbers.key_by(lambda n: n % 7).connect(rules).process(Judges()).execute_and_collect())
    told = [(rule, sum(range(rule, 30, 3))) for rule in range(3)]
    assert sorted(found) == [(key, sum(range(key, 100, 7)), told) for key in range(7)]
    assert list((tmp_path / "failed").iterdir())


class Waits(FlatMapFunction, CheckpointedFunction):
    """Lets records go four at a time, in the order in which they came; what waits is a field, and list state."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        self.waiting += self.state.get()

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.waiting)

    def flat_map(self, value: int) -> Iterator[int]:
        self.waiting.append(value)
        if len(self.waiting) == 4:
            yield from self.waiting
            self.waiting = []


def test_list_state_after_a_failure(make_env: Any, tmp_path: Path) -> None:
    env = make_env(RESTARTS)
    numbers = in_rounds(env, list(range(60)), "numbers", limit=7).map(FailOnce(tmp_path / "failed", 31))
    found = list(numbers.global_().flat_map(Waits()).set_parallelism(1).execute_and_collect())
    assert found == list(range(60))
    assert list((tmp_path / "failed").iterdir())
