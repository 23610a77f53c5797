"""One execution attempt of a job: rounds, and checkpoints riding on them, until the end of input, a failure or a stop."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.failures import CheckpointFailureReason
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.common import faults
from tidegate.common.clock import Clock, SystemClock
from tidegate.common.errors import JobCancelledError, RoundError
from tidegate.operators.rows import Ack, RoundContext
from tidegate.operators.source import SourcePlan
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.engine import Engine, RoundPlan
from tidegate.runtime.notifications import is_notified
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress, written_paths
from tidegate.runtime.watchdog import cut_off

log = logging.getLogger(__name__)

_KEPT_STATISTICS = 5_000


@dataclass(frozen=True)
class RoundStatistics:
    """What a round did, for listeners and the benchmark."""

    round: int
    checkpoint_id: int | None
    started_ms: int
    seconds: float
    records_in: int
    """Records the sources read."""
    records_out: int
    """Records that crossed an edge."""
    commit_seconds: float


Listener = Callable[[RoundStatistics], None]


class Attempt:
    """Runs from a restored (or empty) ``progress``. Raises what ended it; returns at the end of input."""

    def __init__(
        self,
        *,
        token: str,
        progress: Progress,
        planner: SourcePlanner,
        engine: Engine,
        committers: SinkCommitters,
        coordinator: CheckpointCoordinator | None,
        clock: Clock,
        stop: threading.Event,
        first_round: int,
        poll_ms: int,
        listeners: list[Listener],
    ) -> None:
        self._token, self.progress, self._planner, self._engine = token, progress, planner, engine
        self._committers, self._coordinator = committers, coordinator
        self._clock, self._stop, self._poll_ms = clock, stop, poll_ms
        self._listeners = listeners
        self.round = first_round
        self.statistics: deque[RoundStatistics] = deque(maxlen=_KEPT_STATISTICS)
        self._unsaved = True  # something since the last checkpoint; the first one after a start is always wanted
        self._released: set[str] = set()
        """State files that were needed since step 9 last looked, and maybe are no more."""
        self._completed: list[int] = []
        self._aborted: list[int] = []

    def run(self) -> None:
        """Rounds until all sources have ended and everything is committed."""
        while True:
            self.check_stopped()
            now = self._clock.now_ms()
            sources = self._planner.plan(now)
            ending = all(plan.finished for plan in sources.values())
            pending = self._trigger(sources, ending)
            works = self._has_work(sources, pending, now)
            if works:
                self._run_round(sources, pending, now)
            if self._planner.finished and not self._unsaved:
                return self._notify_last()
            if self._planner.finished and self._coordinator is None:
                return self._commit_at_end()
            if not works:  # also at the end, when storage gave no id for the last checkpoint
                self._wait(sources, now)

    def check_stopped(self) -> None:
        if self._stop.is_set():
            raise JobCancelledError("The job was cancelled")

    # -- when ----------------------------------------------------------------------------------------------------------

    def _trigger(self, sources: dict[int, SourcePlan], ending: bool) -> PendingCheckpoint | None:
        """Step 1. The last round always carries a barrier: it commits the last output."""
        if self._coordinator is None:
            return None
        wanted = self._unsaved or self._keeps_writers or any(plan.intervals for plan in sources.values())
        # Rounds are the grid checkpoints lie on: the one nearest to the beat carries it, be it a little early.
        early_ms = self.statistics[-1].seconds * 500 if self.statistics else 0.0
        if (ending and self._unsaved) or (wanted and self._coordinator.due(early_ms)):
            return self._coordinator.trigger(self._subtasks())
        return None

    @property
    def _keeps_writers(self) -> bool:
        """Sinks with open parts may want to roll them at a checkpoint even when nothing new came."""
        return self.progress.keeps_writers

    def _subtasks(self) -> set[tuple[str, int]]:
        return {(o.uid_hash, s) for o in self.progress.graph.operators for s in range(o.parallelism)}

    def _has_work(self, sources: dict[int, SourcePlan], pending: PendingCheckpoint | None, now: int) -> bool:
        wake_up = self.progress.next_wake_up_ms
        return (
            pending is not None
            or any(plan.intervals for plan in sources.values())
            or (all(plan.finished for plan in sources.values()) and not self._planner.finished)
            or (wake_up is not None and wake_up <= now)
        )

    def _wait(self, sources: dict[int, SourcePlan], now: int) -> None:
        moments = [plan.wake_up_ms for plan in sources.values() if plan.wake_up_ms is not None]
        moments += [m for m in (self.progress.next_wake_up_ms,) if m is not None]
        delay = min([self._poll_ms, *(max(1, moment - now) for moment in moments)])
        self._clock.wait(self._stop, delay / 1000)

    # -- steps 3 to 6 ----------------------------------------------------------------------------------------------------

    def _run_round(self, sources: dict[int, SourcePlan], pending: PendingCheckpoint | None, now: int) -> None:
        plan = self._plan(sources, pending, now)
        started = self._clock.monotonic()
        faults.point("C2.cut", round=self.round, checkpoint_id=plan.context.checkpoint_id)
        try:
            acks = self._run_bounded(plan, pending)
            faults.point("C3.acks-in", round=self.round, checkpoint_id=plan.context.checkpoint_id)
            self.progress.check(acks)
            self._raise_first_error(acks)
        except Exception as error:
            if pending is not None and self._coordinator is not None:
                self._coordinator.abort(pending, CheckpointFailureReason.ROUND_FAILED, str(error))
            self.check_stopped()
            raise
        seconds = self._clock.monotonic() - started
        declined = next((ack for ack in acks if ack.declined is not None), None)
        if declined is not None:
            return self._discard(acks, declined, pending)
        self._accept(acks, plan, seconds, pending)

    def _run_bounded(self, plan: RoundPlan, pending: PendingCheckpoint | None) -> list[Ack]:
        """A round that hangs must not outlive the rules of failed checkpoints. First it is cancelled, so that none of its
        tasks goes on below the restart; then its checkpoint has expired, which fails the attempt: its tasks may have hung
        in user code or outside, and a restart is the way known to be safe."""
        if self._coordinator is None or not isinstance(
            self._clock, SystemClock
        ):  # simulated time passes between rounds
            return self._engine.run(plan)
        patience = self._coordinator.patience_ms(pending)
        with cut_off(self._engine, patience / 1000) as cut:
            try:
                return self._engine.run(plan)
            except RoundError as error:
                failed = error
        self.check_stopped()
        if cut.is_set() and failed.restart_helps:
            self._coordinator.expire(pending, f"round {self.round} had not ended after {patience:.0f} ms")
        raise failed

    def _plan(self, sources: dict[int, SourcePlan], pending: PendingCheckpoint | None, now: int) -> RoundPlan:
        self.round += 1
        context = RoundContext(
            round=self.round,
            version=f"{self._token}-{self.round}",
            checkpoint_id=pending.checkpoint_id if pending is not None else None,
            now_ms=now,
            completed=tuple(self._completed),
            aborted=tuple(self._aborted),
            statuses=self.progress.statuses(),
        )
        return self.progress.plan(context, sources)

    @staticmethod
    def _raise_first_error(acks: list[Ack]) -> None:
        """Upstream first: what follows below is a consequence."""
        for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
            if ack.error is not None:
                raise ack.error

    def _discard(self, acks: list[Ack], ack: Ack, pending: PendingCheckpoint | None) -> None:
        """Nothing of the round happened; it is planned again. A checkpoint it carried has failed."""
        reason = ack.declined or ""
        log.warning("round %d declined: %s", self.round, reason)
        self._planner.discard()
        self._released |= written_paths(acks)
        # Other subtasks may have prepared; whatever neither the pending committables nor the writers' states name goes.
        self._committers.abort_lingering(self.progress.committables, self.progress.writer_states())
        if self._coordinator is None:
            raise RoundError(
                "A round could not store its results, and without checkpoints it cannot go on", found=reason
            )
        # A round without a barrier that could not be stored counts too: otherwise it would be tried for ever.
        failed = pending or self._coordinator.trigger(())
        if failed is not None:
            self._aborted.append(failed.checkpoint_id)
            self._coordinator.abort(failed, CheckpointFailureReason.DECLINED, reason)
        self._clock.wait(self._stop, self._poll_ms / 1000)

    def _accept(self, acks: list[Ack], plan: RoundPlan, seconds: float, pending: PendingCheckpoint | None) -> None:
        before = self.progress.paths()
        self.progress, prepared = self.progress.accept(acks)
        self._released |= before - self.progress.paths()
        self._planner.accept(self._busy_seconds(acks))
        self._unsaved = True
        self._completed.clear()
        self._aborted.clear()
        waiting = self._coordinator is not None
        later = {o: items for o, items in prepared.items() if self._committers.waits_for_checkpoint(o, waiting)}
        at_once = {o: items for o, items in prepared.items() if o not in later}
        self.progress = self.progress.with_pending(later)
        committing = self._clock.monotonic()
        self._committers.commit(at_once)
        if pending is not None:
            self._complete(pending, acks)
        self._report(acks, plan, seconds, self._clock.monotonic() - committing)

    def _busy_seconds(self, acks: list[Ack]) -> float:
        """The round's time that grows with its records: the slowest subtask of each level. Starting workers does not count."""
        slowest: dict[int, float] = {}
        for ack in acks:
            level = self.progress.graph.chains[ack.chain].level
            slowest[level] = max(slowest.get(level, 0.0), ack.seconds)
        return sum(slowest.values())

    # -- steps 7 to 9 ----------------------------------------------------------------------------------------------------

    def _complete(self, pending: PendingCheckpoint, acks: list[Ack]) -> None:
        assert self._coordinator is not None
        for ack in acks:
            for operator in self.progress.graph.chains[ack.chain].operators:
                pending.acknowledge(operator.uid_hash, ack.subtask, duration_ms=ack.snapshot_seconds * 1000)
        if self._coordinator.is_expired(pending):
            # The round itself is fine: its state stays, and what its sinks prepared goes into the next checkpoint.
            self._coordinator.abort(pending, CheckpointFailureReason.EXPIRED, f"round {self.round}")
            self._aborted.append(pending.checkpoint_id)
            return
        operators = self.progress.operator_states(self._planner.snapshots())
        finished = self._planner.finished
        completed = self._coordinator.complete(pending, operators, round=self.round, finished=finished)
        if completed is None:
            self._aborted.append(pending.checkpoint_id)
            return
        # Step 8 only behind step 7: from here on a restore would commit the same again, so a crash in between loses nothing.
        self._committers.commit(self.progress.committables)
        faults.point("C6.all-committed", checkpoint_id=pending.checkpoint_id)
        self.progress = self.progress.without_pending(self.progress.committables)
        self._unsaved = False
        self._completed.append(pending.checkpoint_id)
        needed = self.progress.paths()
        self._coordinator.subsume(needed, self._released - needed)
        self._released.clear()

    def _commit_at_end(self) -> None:
        self._committers.commit(self.progress.committables)
        self.progress = self.progress.without_pending(self.progress.committables)

    def _report(self, acks: list[Ack], plan: RoundPlan, seconds: float, commit_seconds: float) -> None:
        sources = {self.progress.graph.chain_of[o.id] for o in self.progress.graph.sources}
        statistics = RoundStatistics(
            round=self.round,
            checkpoint_id=plan.context.checkpoint_id,
            started_ms=plan.context.now_ms,
            seconds=seconds,
            records_in=sum(ack.records_in for ack in acks if ack.chain in sources),
            records_out=sum(ack.records_out for ack in acks),
            commit_seconds=commit_seconds,
        )
        self.statistics.append(statistics)
        for listener in list(self._listeners):
            try:
                listener(statistics)
            except Exception as error:  # it looks on: what it cannot cope with is no failure of the job
                log.warning("round %d: listener %r failed: %r", self.round, listener, error)

    def _notify_last(self) -> None:
        """Notifications ride on the next round, and behind the last checkpoint there is none: functions that ask for them
        get a round of their own. Nobody takes its results. All output is committed, so what fails in it is only logged."""
        if not self._completed or not any(is_notified(o.spec) for o in self.progress.graph.operators):
            return
        now = self._clock.now_ms()
        try:
            acks = self._run_bounded(self._plan(self._planner.plan(now), None, now), None)
            self._raise_first_error(acks)
        except Exception as error:
            log.warning(
                "checkpoint %d is complete, and not all functions could be told: %s", self._completed[-1], error
            )
