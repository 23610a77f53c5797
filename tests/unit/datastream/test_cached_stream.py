"""Cached streams: computed once, read by later jobs, gone when they are invalidated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError, ProgramError
from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.datastream import KeyedProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.functions import MapFunction

STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, before: value)


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(**{"execution.runtime-mode": "BATCH", "parallelism.default": 2})


class Calls(MapFunction):
    """Leaves a mark for every record it is called for."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def map(self, value: int) -> int:
        with open(self.log, "a") as log:
            log.write("x")
        return value * 10


def calls(log: Path) -> int:
    return len(log.read_text()) if log.exists() else 0


def test_it_is_computed_once(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    log = tmp_path / "log"
    numbers = env.from_source(NumberSequenceSource(0, 49), STAMPED, "numbers", Types.LONG())
    cached = numbers.map(Calls(log), Types.LONG()).cache()
    expected = [n * 10 for n in range(50)]
    assert sorted(cached.execute_and_collect()) == expected
    assert calls(log) == 50
    assert sorted(cached.map(lambda v: v + 1).execute_and_collect()) == [v + 1 for v in expected]
    assert sorted(cached.filter(lambda v: v % 20 == 0).execute_and_collect()) == expected[::2]
    assert calls(log) == 50, "later jobs read the cache"
    nodes = env.get_execution_plan() if env._pending else ""
    assert "numbers" not in nodes
    cached.invalidate()
    assert sorted(cached.execute_and_collect()) == expected
    assert calls(log) == 100, "once more, when it was invalidated"
    env.close()
    assert not list((tmp_path / "checkpoints").rglob("cache-*/*"))


class Times(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


def test_records_keep_their_times(env: StreamExecutionEnvironment) -> None:
    cached = env.from_source(NumberSequenceSource(0, 9), STAMPED, "numbers", Types.LONG()).map(lambda v: v).cache()
    for _ in range(2):
        assert sorted(cached.key_by(lambda v: v % 2).process(Times()).execute_and_collect()) == [
            (n, n) for n in range(10)
        ]


def test_a_job_that_fails_leaves_no_cache(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    log = tmp_path / "log"
    cached = env.from_collection([1, 2, 3]).map(Calls(log)).cache()
    with pytest.raises(JobFailedError):
        list(cached.map(lambda v: 1 // 0).execute_and_collect())
    before = calls(log)
    assert sorted(cached.execute_and_collect()) == [10, 20, 30]
    assert calls(log) == before + 3


def test_streams_that_cannot_be_cached(env: StreamExecutionEnvironment) -> None:
    stream = env.from_collection([1])
    with pytest.raises(ProgramError, match="cache"):
        stream.key_by(lambda v: v).cache()
    with pytest.raises(ProgramError, match="is not an operator"):
        stream.union(env.from_collection([2])).cache()
    with pytest.raises(ProgramError, match="set_parallelism"):
        stream.cache().set_parallelism(3)
    stream.cache().print()
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    with pytest.raises(ProgramError, match=r"needs BATCH mode[\s\S]*STREAMING"):
        env.execute()
