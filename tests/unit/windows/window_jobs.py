"""Programs with windows on the simulated engine: cut into rounds of any size, restarted, with another parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.programs import program_of
from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import At, Fail, Pause, ScriptedSource
from tidegate.base.clock import ManualClock
from tidegate.base.errors import TidegateError
from tidegate.common import Configuration, Duration, WatermarkStrategy
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.graph.transformation import Program
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import Chances, SimulatedEngine

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
        self, place: Path, build: Build, *scripts: Sequence[Any], disorder_ms: int = 0, limit: int = 7
    ) -> None:
        self.place, self._build, self._scripts, self._disorder_ms = place, build, scripts, disorder_ms
        self._limit = limit
        self.workers = 3
        """With one worker, every round continues in the worker of the round before."""
        self._chances = Chances(die=0.03, zombie=0.03, late=0.02, lose_store=0.05)

    def program(self, parallelism: int, **settings: Any) -> Program:
        where = {"execution.checkpointing.dir": f"{self.place}/checkpoints", "parallelism.default": parallelism}
        env = StreamExecutionEnvironment(Configuration.from_dict({**SETTINGS, **where, **settings}))
        source = ScriptedSource(*map(list, self._scripts))
        source.initial_limit = source.maximum_limit = self._limit
        stream = env.from_source(source, strategy(self._disorder_ms), "records")
        self._build(stream).sink_to(LedgerSink(f"{self.place}/ledger"))
        return program_of(env, "windows")

    def run(self, parallelism: int = 2, **settings: Any) -> list[Any]:
        program = self.program(parallelism, **settings)
        engine = SimulatedEngine(7, self._chances, self.workers)
        self.master = JobMaster(program, engine, clock=ManualClock(), local_root=f"{self.place}/local")
        self.master.run()
        return self.results()

    def checkpoints(self) -> list[Path]:
        """Completed ones, the newest last."""
        found = Path(f"{self.place}/checkpoints/windows").glob("chk-*/_metadata")
        return sorted((path.parent for path in found), key=lambda path: int(path.name[4:]))

    def results(self) -> list[Any]:
        return [value for page in ledger_pages(f"{self.place}/ledger").values() for value in page]


def timed(records: Sequence[tuple[Any, int, Any]]) -> list[At]:
    """(key, time, number) as steps of a source."""
    return [At(record[1], record) for record in records]


def cut(steps: Sequence[Any], place: Path, *positions: int) -> list[Any]:
    """The same with a failure, once, before each of the positions. The record before comes after a pause, in a round that is a
    checkpoint: what follows is restored from it."""
    found = list(steps)
    for position in sorted(positions, reverse=True):
        found[position - 1 : position] = [Pause(30), found[position - 1], Pause(30), failure(place, f"at-{position}")]
    return found


def failure(place: Path, name: str = "once") -> Fail:
    return Fail(f"{place}/failures", name=name)


def lives(job: WindowJob, parallelisms: Sequence[int], **settings: Any) -> list[Any]:
    """Lives of a job that end with the next failure of its source, each with another parallelism; the last one goes to the end."""
    for parallelism in parallelisms[:-1]:
        with suppress(TidegateError):
            job.run(parallelism, **{"restart-strategy.type": "none", **settings})
            raise AssertionError("there is no failure left")
        assert job.checkpoints(), "nothing to restore from"
    return job.run(parallelisms[-1], **settings)
