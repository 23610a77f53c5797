"""A small job on the simulated engine, for tests of the job master: numbers in, a ledger out. And an engine with slow rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource, Step
from tidegate.base.clock import ManualClock
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.specs import MapSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.testing.simulation.engine import SimulatedEngine

SETTINGS: dict[str, Any] = {
    "execution.checkpointing.interval": 10,
    "restart-strategy.type": "none",
    "tidegate.state.map-size": 1 << 20,
    "tidegate.job-id": "small",
    "parallelism.default": 1,
}


def unchanged(value: Any) -> Any:
    return value


class FailsOnce:
    """Fail at the number 7, once in all attempts: the simulated workers are this process. A test begins with ``failures`` 0."""

    failures = 0

    def __call__(self, value: Any) -> Any:
        if value == 7 and not FailsOnce.failures:
            FailsOnce.failures += 1
            raise ValueError("seven")
        return value


class SlowRounds(SimulatedEngine):
    """Every round takes ``round_ms`` of the clock."""

    def __init__(self, clock: ManualClock, round_ms: float) -> None:
        super().__init__(1)
        self._clock, self._round_ms = clock, round_ms

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._clock.advance(self._round_ms)
        return super().run(plan)


class SmallJob:
    """``steps`` are read three at a time; ``settings`` come on top of a checkpoint every 10 ms and no restarts."""

    def __init__(self, directory: Path, *steps: Step, function: Any = unchanged, sink: Sink | None = None) -> None:
        self.directory, self._function = directory, function
        self.source = ScriptedSource(list(steps or range(10)))
        self.source.initial_limit = self.source.maximum_limit = 3
        self._sink = sink or LedgerSink(f"{directory}/ledger")

    @property
    def local(self) -> str:
        return f"{self.directory}/local"

    def program(self, **settings: Any) -> Program:
        source = Transformation(1, "numbers", SourceSpec(self.source))
        mapped = Transformation(2, "mapped", MapSpec(self._function), (Input(1),))
        sink = Transformation(3, "ledger", SinkSpec(self._sink), (Input(2),))
        where = {"execution.checkpointing.dir": f"{self.directory}/checkpoints"}
        return Program("small", (source, mapped, sink), {**SETTINGS, **where, **settings})

    def committed(self) -> list[Any]:
        return [value for page in ledger_pages(f"{self.directory}/ledger").values() for value in page]
