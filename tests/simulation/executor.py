"""Whole programs through the API on the simulated engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.executor import register_executor
from tidegate.graph.transformation import Program
from tidegate.runtime.handle import StartedJob
from tidegate.testing.executor import InProcessExecutor
from tidegate.testing.simulation.engine import Chances, SimulatedEngine

TARGET = "simulated"
"""The ``execution.target`` of this executor, in every process that imports this module."""

Simulated = Callable[..., StreamExecutionEnvironment]
"""The fixture of the same name: ``simulated_environment`` in the test's own directory."""


class SimulatedExecutor(InProcessExecutor):
    """Run programs on the simulated engine. The schedule depends on ``seed``, injected faults on ``chances``."""

    last: ClassVar[StartedJob]
    """The latest job of this process."""

    def __init__(self, seed: int = 1, chances: Chances | None = None, workers: int = 3) -> None:
        self.engine = partial(SimulatedEngine, seed, chances, workers)

    def execute_async(self, program: Program) -> StartedJob:
        SimulatedExecutor.last = super().execute_async(program)
        return SimulatedExecutor.last


register_executor(TARGET, SimulatedExecutor)


def simulated_environment(
    directory: Path | str, *, seed: int = 1, chances: Chances | None = None, workers: int = 3, **keys: Any
) -> StreamExecutionEnvironment:
    """Return an environment whose programs run on the simulated engine, with all files below ``directory``.

    A job fails with its first error unless the keys name a restart strategy. A key that is None keeps its default.
    """
    target = re.sub(r"\W+", "-", f"{TARGET} seed {seed} workers {workers} {chances or ''}")
    register_executor(target, partial(SimulatedExecutor, seed, chances, workers))
    settings = {
        "execution.target": target,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "tidegate.state.local-dir": f"{directory}/local",
        "restart-strategy.type": "none",
        **keys,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    return StreamExecutionEnvironment(Configuration.from_dict(given))
