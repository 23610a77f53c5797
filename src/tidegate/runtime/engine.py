"""The engine's protocol: what the job master needs from whatever runs rounds (Spark, or the simulated engine in tests)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack, RoundContext, TaskPlan


@dataclass(frozen=True)
class RoundPlan:
    """``tasks``: per level and partition."""

    context: RoundContext
    tasks: list[list[TaskPlan]]


@dataclass(frozen=True)
class RoundResult:
    """The result of a round."""

    round: int
    seconds: float
    acks: list[Ack]


class Engine(Protocol):
    @property
    def one_host(self) -> bool:
        """Whether all tasks run on the driver's host, and see its files."""
        ...

    def start(self, spec: JobSpec) -> None:
        """Ship the program for a new attempt of the job. Called again after every restart."""
        ...

    def run(self, plan: RoundPlan) -> list[Ack]:
        """Run one round to its end, and return the acks of the task attempts whose output was used. RoundError: nothing of the
        round may be accepted."""
        ...

    def cancel(self) -> None:
        """Make a running round fail soon. Called from another thread."""
        ...

    def stop(self) -> None:
        """Release what ``start`` shipped, and the local state of the job on all hosts: the job has ended."""
        ...
