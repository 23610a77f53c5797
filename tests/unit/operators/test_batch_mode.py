"""Batch mode: one round, the records of a key together and sorted by time, timers at the end of the key, final results only."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import SimulatedExecutor, simulated_environment
from tests.sources import At, ScriptedSource
from tidegate.base.errors import ProgramError
from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.data_generator import DataGeneratorSource, RateLimiterStrategy
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.operators.flow import feeds
from tidegate.testing.simulation.engine import Chances

MIN, MAX = -(1 << 63), (1 << 63) - 1
NONE = WatermarkStrategy.no_watermarks()


FAULTY = Chances(die=0.1, zombie=0.1, rerun=0.05, lose_store=0.1)


def environment(directory: Path, **options: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.runtime-mode": "BATCH",
        "tidegate.round.max-records": 10,
        "tidegate.chunk.records": 7,
        "parallelism.default": 1,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "1 ms",
        **options,
    }
    return simulated_environment(directory, seed=3, **keys)


def records(n: int = 200) -> list[Any]:
    """Key, time (some of them equal), number."""
    draw = random.Random(5)
    return [(f"k{draw.randrange(7)}", draw.randrange(60), number) for number in range(n)]


def stamped(env: StreamExecutionEnvironment, values: list[Any], scripts: int = 1) -> DataStream:
    source = ScriptedSource(*[[At(v[1], v) for v in values[n::scripts]] for n in range(scripts)])
    return env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "records")


class Traces(KeyedProcessFunction):
    """Everything a function can see, in order. ``last`` is a field: it shows whether keys come one after the other."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.left: set[Any] = set()
        self.last: Any = None

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, timers = ctx.get_current_key(), ctx.timer_service()
        if key != self.last:
            self.left.add(self.last)
            self.last = key
        assert key not in self.left, "the records of a key do not come together"
        self.count.update((self.count.value() or 0) + 1)
        timers.register_event_time_timer(value[1] // 10 * 10 + 100)
        timers.register_processing_time_timer(timers.current_processing_time() + 10**9)
        yield key, "record", value[1], value[2], timers.current_watermark() == MIN

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_event_time_timer(timestamp + 1)  # ignored: for this key time has ended
        assert ctx.get_current_key() == self.last and timers.current_watermark() == MAX
        domain = str(ctx.time_domain())
        yield ctx.get_current_key(), "timer", timestamp if "EVENT" in domain else 0, domain, self.count.value()


@pytest.mark.parametrize("chances", [None, FAULTY], ids=["simulated", "faulty"])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("most", [1_000_000, 30])
def test_the_records_of_a_key_come_together_and_sorted(
    tmp_path: Path, chances: Chances | None, parallelism: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they do not fit into memory."""
    monkeypatch.setattr(feeds, "MOST_RECORDS", most)
    env = environment(tmp_path, **{"chances": chances, "parallelism.default": parallelism})
    stream = stamped(env, records()).set_parallelism(1)
    found = list(stream.key_by(lambda v: v[0]).process(Traces()).execute_and_collect())
    for key in {value[0] for value in records()}:
        own = sorted((v for v in records() if v[0] == key), key=lambda v: v[1])  # stable: equal times as they came
        seen = [row for row in found if row[0] == key]
        assert seen[: len(own)] == [(key, "record", v[1], v[2], True) for v in own]
        timers = [row for row in seen[len(own) :] if "EVENT" in row[3]]
        moments = sorted({v[1] // 10 * 10 + 100 for v in own})
        assert timers == [(key, "timer", moment, timers[0][3], len(own)) for moment in moments]
        assert len(seen) > len(own) + len(timers), "timers of the clock fire at the end of the key, too"
    if chances is None:
        assert len(SimulatedExecutor.last.view().rounds) == 1, "all in one round"


def test_several_sources_of_a_key_are_merged(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"parallelism.default": 2})
    first, second = records(100), [(key, moment, n + 1000) for key, moment, n in records(150)]
    united = stamped(env, first, 3).union(stamped(env, second, 2))
    found = list(united.key_by(lambda v: v[0]).process(Traces()).execute_and_collect())
    for key in {value[0] for value in first}:
        moments = [row[2] for row in found if row[0] == key and row[1] == "record"]
        assert moments == sorted(v[1] for v in first + second if v[0] == key)


def test_only_the_last_result_of_a_reduction(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"parallelism.default": 2})
    stream = env.from_source(NumberSequenceSource(0, 99), NONE, "numbers", Types.LONG())
    reduced = stream.map(lambda v: (v % 3, v)).key_by(lambda v: v[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert sorted(reduced.execute_and_collect()) == [(k, sum(range(k, 100, 3))) for k in range(3)]


def test_records_without_time_keep_their_order(tmp_path: Path) -> None:
    env = environment(tmp_path)
    stream = env.from_collection([(n % 2, n) for n in range(50)]).key_by(lambda v: v[0])

    class Passes(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value[1]

    found = list(stream.process(Passes()).execute_and_collect())
    assert sorted([found[:25], found[25:]]) == [list(range(0, 50, 2)), list(range(1, 50, 2))]


def test_nothing_and_one_record(tmp_path: Path) -> None:
    for values in ([], [("a", 1, 0)]):
        stream = stamped(environment(tmp_path), values).key_by(lambda v: v[0])
        found = [row for row in stream.process(Traces()).execute_and_collect() if row[1] == "record"]
        assert found == [(v[0], "record", v[1], v[2], True) for v in values]


def test_a_source_that_takes_its_time_is_awaited(tmp_path: Path) -> None:
    """What it has to give becomes one round, when it has told its end."""
    env = environment(tmp_path)
    source = DataGeneratorSource(
        lambda n: (n % 2, n), 20, RateLimiterStrategy.per_second(2_000), Types.PICKLED_BYTE_ARRAY()
    )
    stream = env.from_source(source, NONE, "slow").key_by(lambda v: v[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert sorted(stream.execute_and_collect()) == [(0, 90), (1, 100)]
    assert len(SimulatedExecutor.last.view().rounds) == 1


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.AUTOMATIC])
def test_checkpoints_are_for_streams(tmp_path: Path, mode: RuntimeExecutionMode) -> None:
    """As in Flink: a batch job takes none, whatever its configuration says."""
    keys = {"execution.checkpointing.dir": str(tmp_path / "c"), "execution.checkpointing.interval": "10 ms"}
    env = environment(tmp_path, **keys)
    env.set_runtime_mode(mode)
    assert len(list(env.from_source(NumberSequenceSource(0, 99), NONE, "n").execute_and_collect())) == 100
    assert SimulatedExecutor.last.view().checkpoints == ()


def test_an_unbounded_source_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.from_source(ScriptedSource([1], ends=False), NONE, "endless").print()
    with pytest.raises(
        ProgramError, match="BATCH mode needs bounded sources\n  where: source 'endless'\n  found: it is"
    ):
        env.execute()
