"""The round lane: one round at a time, watched while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.base.clock import Clock
from tidegate.base.errors import RoundError
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.runtime.engine import Engine, RoundPlan
from tidegate.runtime.inbox import Lane, Lanes, RoundEnded, Work
from tidegate.runtime.savepoints import PendingSavepoint
from tidegate.runtime.watchdog import Watchdog


@dataclass(frozen=True)
class RunningRound:
    """``savepoint``: that it carries. ``patience_ms`` None: nothing bounds it. ``only_tells``: nobody takes its results."""

    plan: RoundPlan
    pending: PendingCheckpoint | None
    savepoint: PendingSavepoint | None
    patience_ms: float | None
    only_tells: bool
    watchdog: Watchdog

    @property
    def number(self) -> int:
        return self.plan.context.round


class RoundLane:
    """The job's thread starts a round and hears of its end as ``RoundEnded``."""

    def __init__(self, lanes: Lanes, engine: Engine, clock: Clock) -> None:
        self._lanes, self._engine, self._clock = lanes, engine, clock
        self._running: RunningRound | None = None
        self._dropping = False

    @property
    def at_rest(self) -> bool:
        return self._running is None

    def start(
        self,
        plan: RoundPlan,
        pending: PendingCheckpoint | None,
        savepoint: PendingSavepoint | None,
        patience_ms: float | None,
        *,
        only_tells: bool = False,
    ) -> None:
        """Step 3. A round that takes longer than ``patience_ms`` is cut off."""
        watchdog = Watchdog(self._engine, self._clock, self._lanes.aside)
        self._lanes.submit(Lane.ROUNDS, self._run(plan))
        self._running = RunningRound(
            plan, pending, savepoint, patience_ms, only_tells, watchdog
        )  # the end of an attempt waits for it
        if patience_ms is not None:
            watchdog.watch(patience_ms / 1000)

    def cut(self) -> None:
        """The running round, if there is one, is cancelled until it ends."""
        if self._running is not None:
            self._running.watchdog.cut()

    def drop(self) -> None:
        """As ``cut``, also of a round that has not begun yet."""
        self._dropping = True
        self.cut()

    def ended(self) -> tuple[RunningRound, bool]:
        """Behind ``RoundEnded``: the round, and whether it was cut off."""
        running, self._running = self._running, None
        assert running is not None
        return running, running.watchdog.end()

    def _run(self, plan: RoundPlan) -> Work:
        number, started = plan.context.round, self._clock.monotonic()
        if self._dropping:
            yield RoundEnded(number, 0.0, error=RoundError("The attempt ends: no more rounds"))
            return
        try:
            acks = self._engine.run(plan)
        except Exception as error:
            yield RoundEnded(number, self._clock.monotonic() - started, error=error)
            return
        yield RoundEnded(number, self._clock.monotonic() - started, acks)
