"""Programs with windows on the simulated engine: cut into rounds of any size, restarted, with another parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.common import Configuration, Duration, WatermarkStrategy
from tidegate.common.clock import ManualClock
from tidegate.common.errors import JobFailedError, TidegateError
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.graph.transformation import Program
from tidegate.runtime.master import JobMaster
from tidegate.testing.observer import ledger_pages
from tidegate.testing.simulated_engine import Chances, SimulatedEngine
from tidegate.testing.sinks import LedgerSink
from tidegate.testing.sources import At, Fail, ScriptedSource

SETTINGS: dict[str, Any] = {
    "execution.checkpointing.interval": 10,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 50,
    "restart-strategy.fixed-delay.delay": 0,
    "tidegate.state.map-size": 1 << 22,
    "tidegate.chunk.records": 4,
    "tidegate.job-id": "windows",
    "pipeline.max-parallelism": 16,
}
Build = Callable[[DataStream], DataStream]


def strategy(disorder_ms: int = 0) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(disorder_ms))


class WindowJob:
    """One job in a directory. ``build``: from the stream of all records to the one whose records are the result."""

    def __init__(
        self, place: Path, build: Build, *scripts: Sequence[Any], disorder_ms: int = 0, limit: int = 7, seed: int = 7
    ) -> None:
        self.place, self._build, self._scripts, self._disorder_ms = place, build, scripts, disorder_ms
        self._limit, self._seed = limit, seed

    def program(self, parallelism: int, **settings: Any) -> Program:
        where = {"execution.checkpointing.dir": f"{self.place}/checkpoints", "parallelism.default": parallelism}
        env = StreamExecutionEnvironment(Configuration.from_dict({**SETTINGS, **where, **settings}))
        source = ScriptedSource(*map(list, self._scripts))
        source.initial_limit = source.maximum_limit = self._limit
        stream = env.from_source(source, strategy(self._disorder_ms), "records")
        self._build(stream).sink_to(LedgerSink(f"{self.place}/ledger"))
        return env._program("windows")

    def run(self, parallelism: int = 2, chances: Chances | None = None, **settings: Any) -> list[Any]:
        program = self.program(parallelism, **settings)
        engine = SimulatedEngine(self._seed, chances or Chances())
        JobMaster(program, engine, clock=ManualClock(), local_root=f"{self.place}/local").run()
        return self.results()

    def results(self) -> list[Any]:
        return [value for page in ledger_pages(f"{self.place}/ledger").values() for value in page]


def timed(records: Sequence[tuple[Any, int, Any]]) -> list[At]:
    """(key, time, number) as steps of a source."""
    return [At(record[1], record) for record in records]


def cut(steps: Sequence[Any], place: Path, *positions: int) -> list[Any]:
    """The same with a failure, once, before each of the positions."""
    found = list(steps)
    for position in sorted(positions, reverse=True):
        found.insert(position, Fail(f"{place}/failures", name=f"at-{position}"))
    return found


def lives(job: WindowJob, parallelisms: Sequence[int], **settings: Any) -> list[Any]:
    """Lives of a job that end with the next failure of its source, each with another parallelism; the last one goes to the end."""
    for parallelism in parallelisms[:-1]:
        with suppress(JobFailedError, TidegateError):
            job.run(parallelism, **{"restart-strategy.type": "none", **settings})
    return job.run(parallelisms[-1], **settings)
