"""Jobs of the API on the simulated engine, whose time passes only where a function says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.engine import Chances, SimulatedEngine
from tests.simulation.executor import simulated_environment
from tests.simulation.lanes import SimulatedLanes
from tidegate.base.clock import ManualClock, Stopwatch
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.executor import instead_of_all
from tidegate.graph.transformation import Program
from tidegate.runtime.master import JobMaster
from tidegate.runtime.view import JobView

_clock = ManualClock()


def takes(ms: float) -> None:
    """Called by a function of a job: the call takes so long."""
    _clock.advance(ms)


class TimedEngine(SimulatedEngine):
    """Report how long tasks took, by the clock of the test. One worker: tasks run one after the other."""

    timeless = False


class TimedJob:
    """``build`` makes the program. ``views``: the view after every accepted round. Everything runs in one thread."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        build: Callable[[StreamExecutionEnvironment], Any],
        *,
        chances: Chances | None = None,
        **keys: Any,
    ) -> None:
        global _clock
        self.clock = _clock = ManualClock()
        monkeypatch.setattr(Stopwatch, "now", _clock.monotonic)
        env = simulated_environment(
            directory, **{"execution.checkpointing.interval": "1 h", "parallelism.default": 1, **keys}
        )
        build(env)
        programs: list[Program] = []
        with instead_of_all(lambda: _Taking(programs)), pytest.raises(_TakenError):
            env.execute("timed")
        self.views: list[JobView] = []
        engine = TimedEngine(1, chances)
        self.master = JobMaster(
            programs[0],
            engine,
            clock=_clock,
            local_root=f"{directory}/local",
            listeners=[lambda _: self.views.append(self.master.view())],
            lanes=lambda inbox, _: SimulatedLanes(inbox, 1),
        )

    def run(self) -> JobView:
        self.master.run()
        return self.master.view()


class _TakenError(Exception):
    """The program is taken and does not run here."""


class _Taking:
    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs

    def execute_async(self, program: Program) -> Any:
        self._programs.append(program)
        raise _TakenError
