"""An executor for ``execution.target``: whole programs through the API on the simulated engine. A test tool."""

from __future__ import annotations

from tests.simulation.engine import SimulatedEngine
from tidegate.graph.transformation import Program
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import Listener


class SimulatedExecutor:
    """``seed``: of the schedule. Register it in ``tidegate.datastream.executor`` under a name of the test's."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed

    def execute_async(self, program: Program) -> StartedJob:
        listeners: list[Listener] = []
        return StartedJob(JobMaster(program, SimulatedEngine(seed=self._seed), listeners=listeners), listeners)
