"""The protocol of an engine, which runs rounds, and the watchdog that cancels a round that does not end.

The job master needs this protocol from Spark, and from the simulated engine in tests. A round is cancelled in time for
the rules of failed checkpoints.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate.base.clock import Clock, Timer
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack, RoundContext, TaskPlan


@dataclass(frozen=True)
class RoundPlan:
    """The plan of a round. ``tasks``: by level and partition."""

    context: RoundContext
    tasks: list[list[TaskPlan]]


@dataclass(frozen=True)
class RoundResult:
    """The acks of a finished round, and its duration."""

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
        """Run one round to its end, and return the acks of the task attempts whose output was used. Raise RoundError if nothing of
        the round may be accepted."""
        ...

    def cancel(self) -> None:
        """Make a running round fail soon. Called from another thread."""
        ...

    def stop(self) -> None:
        """Release the shipped program, and the local state of the job on all hosts. Called when the job has ended."""
        ...


log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Watchdog:
    """Watch one round, from ``watch`` to ``end``. ``aside`` runs a cancellation, which may block, elsewhere."""

    def __init__(self, engine: Engine, clock: Clock, aside: Callable[[Callable[[], None]], None]) -> None:
        self._engine, self._clock, self._aside = engine, clock, aside
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._over = False
        self._cut = False

    def watch(self, patience_s: float) -> None:
        """Cancel the round if it has not ended after ``patience_s`` seconds."""
        self._arm(patience_s)

    def cut(self) -> None:
        """Cancel the round now, and again until the round has ended. The engine may have been between two jobs, with nothing to
        cancel."""
        with self._lock:
            if self._over:
                return
            self._cut = True
            try:
                self._engine.cancel()
            except Exception as error:
                log.warning("the round could not be cancelled, retrying: %s", error)
        self._arm(_AGAIN_S)

    def end(self) -> bool:
        """Stop watching, because the round has ended, and return whether it was cancelled. After the return nothing is cancelled,
        because a late cancellation would hit the next round."""
        with self._lock:
            self._over = True
        if self._timer is not None:
            self._timer.cancel()
        return self._cut

    def _arm(self, seconds: float) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + seconds, lambda: self._aside(self.cut))
