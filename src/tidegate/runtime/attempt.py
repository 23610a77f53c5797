"""One execution attempt of a job: rounds, and checkpoints riding on them, until the end of input, a failure or a stop.

The job's thread takes events from the inbox, one after the other, and is the only one that changes anything here. Rounds run
in one lane; steps 7 to 9 in the other (``checkpoint_lane.py`` says why that is safe).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter, deque
from typing import Any

from tidegate.checkpoint.failures import CheckpointFailureReason
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.common import faults
from tidegate.common.clock import Clock, Timer
from tidegate.common.errors import FencedError, JobCancelledError, RoundError
from tidegate.operators.rows import Ack, RoundContext
from tidegate.operators.source import SourcePlan
from tidegate.runtime.checkpoint_lane import (
    CheckpointLane,
    Committed,
    Cut,
    Discarded,
    Failed,
    NotStored,
    Stored,
    Through,
    WorkEnded,
)
from tidegate.runtime.commands import Cancel, TriggerCheckpoint
from tidegate.runtime.engine import Engine, RoundPlan
from tidegate.runtime.inbox import Event, Inbox, LaneBroken, Lanes, LeaseLost, RoundEnded, Woken
from tidegate.runtime.life_cycle import Restored
from tidegate.runtime.notifications import is_notified
from tidegate.runtime.progress import written_paths
from tidegate.runtime.requests import CheckpointRequests
from tidegate.runtime.round_lane import RoundLane, RunningRound
from tidegate.runtime.statistics import Listener, RoundStatistics, busy_seconds, statistics_of, tell
from tidegate.runtime.view import JobRecorder

log = logging.getLogger(__name__)

_KEPT_STATISTICS = 5_000


class Attempt:
    """Runs from what was ``restored``. Raises what ended it, with both lanes at rest; returns at the end of input."""

    def __init__(
        self,
        *,
        token: str,
        restored: Restored,
        engine: Engine,
        inbox: Inbox,
        lanes: Lanes,
        clock: Clock,
        stop: threading.Event,
        first_round: int,
        poll_ms: int,
        recorder: JobRecorder,
        listeners: list[Listener],
    ) -> None:
        self._token, self._inbox, self._lanes = token, inbox, lanes
        self.progress, self._planner = restored.progress, restored.planner
        self._lease = restored.claimed.lease.token
        self._committers, self._coordinator = restored.committers, restored.coordinator
        self._clock, self._stop, self._poll_ms = clock, stop, poll_ms
        self._recorder, self._listeners = recorder, listeners
        self.round = first_round
        self.statistics: deque[RoundStatistics] = deque(maxlen=_KEPT_STATISTICS)
        self._lane = CheckpointLane(
            lanes,
            self._committers,
            self._coordinator.completed if self._coordinator else None,
            self._coordinator.write_history if self._coordinator else lambda: None,
            clock,
        )
        self._rounds = RoundLane(lanes, engine, clock)
        self._requests = CheckpointRequests()
        self._sources: dict[int, SourcePlan] | None = None  # planned, and not yet run
        self._timer: Timer | None = None
        self._held_until: float | None = None  # the next round waits so long for room for its checkpoint
        self._resting = self._ending = self._over = False
        self._unsaved = True  # something since the last checkpoint; the first one after a start is always wanted
        self._confirmed: Counter[int] = Counter()  # committables of each sink, over all checkpoints of this attempt
        self._released: set[str] = set()
        """State files that were needed since step 9 last looked, and maybe are no more."""
        self._completed: list[int] = []
        self._aborted: list[int] = []
        self._stray: dict[int, list[Any]] = {}  # prepared in a round that did not count

    # -- the loop --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Events until all sources have ended and everything is committed."""
        try:
            self._go_on()
            while not self._over:
                self._handle(self._inbox.take(self._lanes))
                self._go_on()
        except Exception as error:
            instead = self._wind_up(error)
            if instead is error:
                raise
            raise instead from error
        finally:
            self._rest_until(None)
            self._requests.refuse("the attempt has ended")

    def check_stopped(self) -> None:
        if self._stop.is_set():
            raise JobCancelledError("The job was cancelled")

    def _handle(self, event: Event) -> None:
        if isinstance(event, WorkEnded):
            self._lane.ended(event)
        act = _ACTS.get(type(event))
        if act is not None:
            act(self, event)

    def _on_cancel(self, command: Cancel) -> None:
        """The running round is cancelled; if it ends well all the same it counts, with its checkpoint."""
        self._rounds.cut()

    def _on_trigger_asked(self, command: TriggerCheckpoint) -> None:
        self._requests.add(command)
        if self._coordinator is None:
            self._requests.refuse("the job takes no checkpoints")
        self._resting = False

    def _on_woken(self, event: Woken) -> None:
        self._resting = False

    def _on_lease_lost(self, event: LeaseLost) -> None:
        if event.lease == self._lease:  # else it was that of an earlier attempt
            raise event.error

    def _on_failed(self, event: Failed | LaneBroken) -> None:
        raise event.error

    # -- when ------------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin what can begin now: the next round, the end; else be woken when it is time to look again."""
        if self._over or not self._rounds.at_rest:
            return
        self.check_stopped()
        if self._lane.holds_rounds or self._resting:
            return
        if self._planner.finished and self._is_saved():
            return self._finish()
        now = self._clock.now_ms()
        sources = self._sources = self._sources or self._planner.plan(now)
        ending = all(plan.finished for plan in sources.values())
        if self._waits_for_room(sources, ending):
            return
        pending = self._trigger(sources, ending)
        if self._has_work(sources, pending, now):
            self._start_round(sources, pending, now)
        else:  # also at the end, when storage gave no id for the last checkpoint
            self._sources = None
            self._wait(sources, now)

    def _is_saved(self) -> bool:
        return not self._unsaved if self._coordinator is not None else True

    def _finish(self) -> None:
        """All sources have ended. What waits without checkpoints is published, then nothing is left to do but to tell."""
        waiting = {sink: items for sink, items in self.progress.committables.items() if items}
        if self._coordinator is None and waiting:
            self._lane.publish(waiting)
            self.progress = self.progress.without_pending(waiting)
        if not self._lane.at_rest:
            return
        if self._completed and any(is_notified(o.spec) for o in self.progress.graph.operators):
            # Notifications ride on the next round, and behind the last checkpoint there is none: functions that ask for them
            # get a round of their own.
            now = self._clock.now_ms()
            return self._start_round(self._planner.plan(now), None, now, only_tells=True)
        self._over = True

    def _waits_for_room(self, sources: dict[int, SourcePlan], ending: bool) -> bool:
        """Whether the next round should carry a barrier and the checkpoint before is not through. The last round waits. Any other
        waits half a round at most, and only if the lane is likely to be quicker: else checkpoints would come at every second
        beat where rounds are as long as the interval, or rounds would wait for storage that is slow."""
        coordinator = self._coordinator
        if coordinator is None or not coordinator.is_full:
            return False
        if ending and self._unsaved:
            return True
        half_ms = self._half_round_ms()
        if not self._wanted(sources) or not coordinator.late(half_ms):
            return False
        now = self._clock.monotonic()
        if self._held_until is None:
            self._held_until = now + half_ms / 1000
            self._rest_until(half_ms)
        return self._lane.checkpoint_seconds * 1000 <= half_ms and now < self._held_until

    def _half_round_ms(self) -> float:
        return self.statistics[-1].seconds * 500 if self.statistics else 0.0

    def _wanted(self, sources: dict[int, SourcePlan]) -> bool:
        """Whether a checkpoint would hold anything new."""
        return self._unsaved or self.progress.keeps_writers or any(plan.intervals for plan in sources.values())

    def _trigger(self, sources: dict[int, SourcePlan], ending: bool) -> PendingCheckpoint | None:
        """Step 1. The last round always carries a barrier: it commits the last output."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.is_full:
            return None
        # Rounds are the grid checkpoints lie on: the one nearest to the beat carries it, be it a little early.
        due = (ending and self._unsaved) or (self._wanted(sources) and coordinator.due(self._half_round_ms()))
        if not due and not self._requests.waiting:
            return None
        pending = coordinator.trigger(self._subtasks())
        if pending is None:
            self._requests.refuse("checkpoint storage gave no id for it")
        else:
            self._requests.attach(pending.checkpoint_id)
            self._recorder.triggered(pending)
        return pending

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
        self._rest_until(min([self._poll_ms, *(max(1, moment - now) for moment in moments)]))

    def _rest_until(self, delay_ms: float | None) -> None:
        """Be woken after so long; None: not at all."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if delay_ms is not None:
            moment = self._clock.monotonic() + delay_ms / 1000
            self._timer = self._clock.call_at(moment, lambda: self._inbox.post(Woken()))

    # -- steps 2 to 6 ----------------------------------------------------------------------------------------------------

    def _start_round(
        self, sources: dict[int, SourcePlan], pending: PendingCheckpoint | None, now: int, *, only_tells: bool = False
    ) -> None:
        self._sources = self._held_until = None
        plan = self._plan(sources, pending, now)
        patience_ms = self._coordinator.patience_ms(pending) if self._coordinator is not None else None
        faults.point("C2.cut", round=self.round, checkpoint_id=plan.context.checkpoint_id)
        self._rounds.start(plan, pending, patience_ms, only_tells=only_tells)

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

    def _on_round_ended(self, event: RoundEnded) -> None:
        running, cut_off = self._rounds.ended()
        if running.only_tells:
            return self._told(event)
        if self._ending:
            self._stray = prepared_by(event.acks)
            return
        pending, context = running.pending, running.plan.context
        try:
            if event.error is not None:
                self._fail_round(event.error, running, cut_off)
            faults.point("C3.acks-in", round=context.round, checkpoint_id=context.checkpoint_id)
            self.progress.check(event.acks)
            _raise_first_error(event.acks)
        except Exception as error:
            self._stray = prepared_by(event.acks)
            if pending is not None and self._coordinator is not None:
                self._coordinator.abort(pending, CheckpointFailureReason.ROUND_FAILED, str(error))
            self.check_stopped()
            raise
        declined = next((ack for ack in event.acks if ack.declined is not None), None)
        if declined is not None:
            return self._discard(event.acks, declined, pending)
        self._accept(event, running)

    def _fail_round(self, error: Exception, running: RunningRound, cut_off: bool) -> None:
        """A round that hangs must not outlive the rules of failed checkpoints. First it was cancelled, so that none of its
        tasks goes on below the restart; now its checkpoint has expired, which fails the attempt: its tasks may have hung
        in user code or outside, and a restart is the way known to be safe."""
        self.check_stopped()
        if cut_off and self._coordinator is not None and getattr(error, "restart_helps", True):
            message = f"round {running.number} had not ended after {running.patience_ms:.0f} ms"
            self._coordinator.expire(running.pending, message)
        raise error

    def _discard(self, acks: list[Ack], ack: Ack, pending: PendingCheckpoint | None) -> None:
        """Nothing of the round happened; it is planned again. A checkpoint it carried has failed."""
        reason = ack.declined or ""
        log.warning("round %d declined: %s", self.round, reason)
        self._planner.discard()
        self._released |= written_paths(acks)
        self._lane.discard(prepared_by(acks), self.progress.committables, self.progress.writer_states())
        if self._coordinator is None:
            raise RoundError(
                "A round could not store its results, and without checkpoints it cannot go on", found=reason
            )
        # A round without a barrier that could not be stored counts too: otherwise it would be tried for ever.
        if pending is not None:
            self._give_up(pending.checkpoint_id, reason)
        self._coordinator.fail(pending, CheckpointFailureReason.DECLINED, reason)

    def _on_discarded(self, event: Discarded) -> None:
        self._resting = True
        self._rest_until(self._poll_ms)

    def _accept(self, event: RoundEnded, running: RunningRound) -> None:
        before, context = self.progress.paths(), running.plan.context
        self.progress, prepared = self.progress.accept(event.acks)
        self._released |= before - self.progress.paths()
        self._planner.accept(busy_seconds(event.acks, self.progress.graph))
        self._unsaved = True
        self._completed = [number for number in self._completed if number not in context.completed]
        self._aborted = [number for number in self._aborted if number not in context.aborted]
        waiting = self._coordinator is not None
        later = {o: items for o, items in prepared.items() if self._committers.waits_for_checkpoint(o, waiting)}
        at_once = {o: items for o, items in prepared.items() if o not in later and items}
        self.progress = self.progress.with_pending(later)
        if at_once:
            self._lane.publish(at_once)
        if running.pending is not None:
            self._cut(running.pending, event.acks)
        self._report(event, context)

    def _report(self, event: RoundEnded, context: RoundContext) -> None:
        statistics = statistics_of(context, event.seconds, event.acks, self.progress.graph, self._lane.seconds)
        self._lane.seconds = 0.0
        self.statistics.append(statistics)
        self._recorder.round(statistics, event.acks)
        tell(self._listeners, statistics)

    def _told(self, event: RoundEnded) -> None:
        """All output is committed, so what failed in the round that only tells is logged."""
        self._over = not self._ending
        try:
            if event.error is not None:
                raise event.error
            _raise_first_error(event.acks)
        except Exception as error:
            text = "checkpoint %d is complete, and not all functions could be told: %s"
            log.warning(text, self._completed[-1], error)

    # -- steps 7 to 9 ----------------------------------------------------------------------------------------------------

    def _cut(self, pending: PendingCheckpoint, acks: list[Ack]) -> None:
        assert self._coordinator is not None
        for ack in acks:
            for operator in self.progress.graph.chains[ack.chain].operators:
                pending.acknowledge(operator.uid_hash, ack.subtask, duration_ms=ack.snapshot_seconds * 1000)
        self._recorder.step(pending.checkpoint_id, 6)
        if self._coordinator.is_expired(pending):
            # The round itself is fine: its state stays, and what its sinks prepared goes into the next checkpoint.
            self._give_up(pending.checkpoint_id, "it took longer than execution.checkpointing.timeout")
            return self._coordinator.abort(pending, CheckpointFailureReason.EXPIRED, f"round {self.round}")
        operators = self.progress.operator_states(self._planner.snapshots())
        metadata = self._coordinator.cut(pending, operators, round=self.round, finished=self._planner.finished)
        self._lane.checkpoint(Cut(pending, metadata, self.progress.committables, Counter(self._confirmed)))
        self._unsaved = False

    def _on_stored(self, event: Stored) -> None:
        assert self._coordinator is not None
        self._recorder.step(event.cut.checkpoint_id, 7, size=event.completed.size)
        self._coordinator.stored(event.cut.pending, event.completed)

    def _on_not_stored(self, event: NotStored) -> None:
        assert self._coordinator is not None
        self._unsaved = True
        self._give_up(event.cut.checkpoint_id, str(event.error))
        self._coordinator.not_stored(event.cut.pending, event.error)

    def _on_committed(self, event: Committed) -> None:
        confirmed = event.cut.unconfirmed(self._confirmed)
        self.progress = self.progress.without_pending(confirmed)
        self._confirmed.update({sink: len(items) for sink, items in confirmed.items()})
        self._completed.append(event.cut.checkpoint_id)
        self._requests.complete(event.cut.checkpoint_id)
        self._recorder.step(event.cut.checkpoint_id, 8)
        needed = self.progress.paths() | self._lane.paths()
        self._lane.clean_up(event.cut, needed, self._released - needed)
        self._released = set()

    def _on_through(self, event: Through) -> None:
        assert self._coordinator is not None
        self._recorder.step(event.cut.checkpoint_id, 9)
        self._coordinator.through()

    def _give_up(self, checkpoint_id: int, why: str) -> None:
        self._aborted.append(checkpoint_id)
        self._requests.fail(checkpoint_id, why)
        self._recorder.failed(checkpoint_id, why)

    # -- the end of an attempt -------------------------------------------------------------------------------------------

    def _wind_up(self, error: Exception) -> Exception:
        """Bring both lanes to rest before anybody claims a new lease: the running round is cut off and counts for nothing, what
        the checkpoint lane has begun comes to its end (if the job is cancelled, also what waits in it). Gives what to raise."""
        self._ending = True
        if not isinstance(error, JobCancelledError):
            self._lane.drop()
        self._rounds.drop()
        later = []
        while not (self._rounds.at_rest and self._lane.at_rest):
            try:
                self._handle(self._inbox.take(self._lanes))
            except Exception as worse:
                log.warning("while the attempt ends: %s", worse)
                later.append(worse)
        for clean_up in (functools.partial(self._committers.abort, self._stray), self._write_history):
            try:
                clean_up()
            except Exception as worse:
                log.warning("at the end of an attempt: %s", worse)
                later.append(worse)
        fenced = next((worse for worse in later if isinstance(worse, FencedError)), None)
        if fenced is not None and not isinstance(error, JobCancelledError):
            return fenced
        # A checkpoint that is stored and could not be committed: cancelled, the job might delete it and lose what it has promised.
        owed = isinstance(error, JobCancelledError) and self._committers.owes and later
        return later[0] if owed else error

    def _write_history(self) -> None:
        if self._coordinator is not None:
            self._coordinator.write_history()


def _raise_first_error(acks: list[Ack]) -> None:
    """Upstream first: what follows below is a consequence."""
    for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
        if ack.error is not None:
            raise ack.error


def prepared_by(acks: list[Ack]) -> dict[int, list[Any]]:
    """What the sinks of a round have prepared."""
    prepared: dict[int, list[Any]] = {}
    for ack in acks:
        for sink, items in ack.committables.items():
            prepared.setdefault(sink, []).extend(items)
    return prepared


_ACTS: dict[type[Event], Any] = {
    RoundEnded: Attempt._on_round_ended,
    Woken: Attempt._on_woken,
    LeaseLost: Attempt._on_lease_lost,
    LaneBroken: Attempt._on_failed,
    Cancel: Attempt._on_cancel,
    TriggerCheckpoint: Attempt._on_trigger_asked,
    Stored: Attempt._on_stored,
    NotStored: Attempt._on_not_stored,
    Committed: Attempt._on_committed,
    Through: Attempt._on_through,
    Discarded: Attempt._on_discarded,
    Failed: Attempt._on_failed,
}
