"""What a simulation runs: a program, where it runs, and a model of what it must put out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from tests.simulation.observer import Output, StateProbe
from tidegate.graph.transformation import Program, Transformation

BASE_SETTINGS: dict[str, Any] = {
    "execution.checkpointing.interval": 100,
    "execution.checkpointing.tolerable-failed-checkpoints": 2,
    "execution.checkpointing.num-retained": 2,
    "execution.checkpointing.timeout": 2_000,
    "tidegate.checkpoint.lease-timeout": 900,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 30,
    "restart-strategy.fixed-delay.delay": 10,
    "pipeline.max-parallelism": 16,
    "tidegate.state.map-size": 1 << 20,
    "tidegate.chunk.records": 3,
    "tidegate.commit.backoff": 1,
    "tidegate.savepoint.transfer-threads": 1,
}


@dataclass(frozen=True)
class Place:
    """Directories of one run. ``outside``: where sinks write."""

    root: str
    job_id: str = "simulated"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}/checkpoints"

    @property
    def job(self) -> str:
        return f"{self.checkpoints}/{self.job_id}"

    @property
    def local(self) -> str:
        return f"{self.root}/local"

    def outside(self, name: str) -> str:
        return f"{self.root}/outside/{name}"


class Scenario(ABC):
    """A program with a model of what it must put out."""

    name = ""

    @abstractmethod
    def transformations(self, place: Place) -> list[Transformation]:
        """The program; the parallelism is the environment's."""

    @abstractmethod
    def outputs(self, place: Place) -> list[Output]: ...

    def probe(self) -> StateProbe | None:
        """A state to compare with the model in every retained checkpoint."""
        return None

    def program(self, place: Place, parallelism: int, settings: dict[str, Any]) -> Program:
        configuration = {**BASE_SETTINGS, **settings, "parallelism.default": parallelism}
        configuration |= {"execution.checkpointing.dir": place.checkpoints, "tidegate.job-id": place.job_id}
        return Program(self.name, tuple(self.transformations(place)), configuration)
