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
    """What came of a round."""

    round: int
    seconds: float
    acks: list[Ack]


class Engine(Protocol):
    @property
    def one_host(self) -> bool:
        """Whether all tasks run on the driver's host, and see its files."""
        ...

    def start(self, spec: JobSpec) -> None:
        """A new attempt of the job: ship the program. Called again after every restart."""
        ...

    def run(self, plan: RoundPlan) -> list[Ack]:
        """Run one round to its end; the acks of the attempts whose output was used. RoundError: nothing of it may be accepted."""
        ...

    def cancel(self) -> None:
        """From another thread: make a running round fail soon."""
        ...

    def stop(self) -> None:
        """The job is over: release what ``start`` shipped, and the local state of the job on all hosts."""
        ...
