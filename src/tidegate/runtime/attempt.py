"""One execution attempt of a job: rounds, and checkpoints riding on them, until the end of input, a failure or a stop.

The job's thread takes events from the inbox, one after the other, and is the only one that changes anything here. Rounds run
in one lane; steps 7 to 9 in the other (``checkpoint_lane.py`` says why that is safe).
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from typing import Any

from tidegate.base import faults
from tidegate.base.clock import FOREVER, Clock, Timer
from tidegate.base.errors import CheckpointError, FencedError, JobCancelledError, RefusedError, RoundError
from tidegate.checkpoint.completed import OutcomeUnknownError
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.checkpoint.savepoint import Ending
from tidegate.graph.transformation import Role
from tidegate.operators.contracts.functions import is_notified
from tidegate.operators.contracts.source import SourcePlan
from tidegate.operators.contracts.specs import sinks_of
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.attempt_checkpoints import CLOSED, AttemptCheckpoints
from tidegate.runtime.checkpoint_lane import (
    CheckpointLane,
    Committed,
    Discarded,
    Failed,
    LastCommitted,
    NotCopied,
    NotStored,
    Stored,
    Through,
    WorkEnded,
)
from tidegate.runtime.commands import SavepointCommand, Stopping, TriggerCheckpoint
from tidegate.runtime.engine import Engine, RoundPlan
from tidegate.runtime.inbox import Event, Inbox, LaneBroken, Lanes, LeaseLost, RoundEnded, Woken
from tidegate.runtime.life_cycle import Restored
from tidegate.runtime.merging import MergePolicy, Merging
from tidegate.runtime.progress import rounds_behind, written_paths
from tidegate.runtime.round_lane import RoundLane, RunningRound
from tidegate.runtime.savepoint_lane import SavepointCopied, SavepointEnded, SavepointLane
from tidegate.runtime.savepoints import AttemptSavepoints, PendingSavepoint
from tidegate.runtime.statistics import Listener, RoundStatistics, busy_seconds, statistics_of, tell
from tidegate.runtime.stop import STOPPED, Stop
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
        stop: Stop,
        first_round: int,
        poll_ms: int,
        merges: MergePolicy,
        recorder: JobRecorder,
        listeners: list[Listener],
    ) -> None:
        self._token, self._inbox, self._lanes = token, inbox, lanes
        self.progress, self._planner = restored.progress, restored.planner
        lease = restored.claimed.lease
        self._lease, self._committers = lease.token, restored.committers
        self._clock, self._stop, self._poll_ms = clock, stop, poll_ms
        self._merging = Merging(merges, clock.now_ms())
        self._recorder, self._listeners = recorder, listeners
        self.round = first_round
        self.statistics: deque[RoundStatistics] = deque(maxlen=_KEPT_STATISTICS)
        self._planner.rounds_behind = 1.0 if self.progress.in_flight_records else 0.0
        self._rounds = RoundLane(lanes, engine, clock)
        threads = restored.place.threads
        self._lane = CheckpointLane(lanes, restored.committers, restored.coordinator, clock, threads)
        copies = SavepointLane(lanes, clock, lease.check, threads)
        self._checkpoints = AttemptCheckpoints(restored.coordinator, self._lane, copies, lease, recorder, clock)
        self._copies = copies
        self._savepoints = AttemptSavepoints(
            restored.place,
            restored.graph,
            lease,
            copies,
            None if restored.coordinator is None else restored.coordinator.history,
            recorder,
            clock,
            stop,
        )
        self._sources: dict[int, SourcePlan] | None = None  # planned, and not yet run
        self._timer: Timer | None = None
        self._began = 0.0  # the last round
        self._resting = self._ending = self._over = False
        self.failed_round: tuple[RoundPlan, list[Ack]] | None = None
        """The round that ended the attempt, if one did."""
        self._stray: dict[int, list[Any]] = {}  # prepared in a round that did not count

    # -- the loop --------------------------------------------------------------------------------------------------------

    @property
    def ended_with(self) -> Ending | None:
        """The savepoint the job has ended with, if it was told to."""
        return self._savepoints.ended_with

    def run(self) -> None:
        """Events until all sources have ended, or nothing more is to be read, and everything is committed."""
        try:
            self._go_on()
            while not self._over:
                self._handle(self._inbox.take(self._lanes))
                self._go_on()
        except (Exception, SystemExit) as error:  # the second: of a user's enumerator or committer
            instead = self._wind_up(error)
            if instead is error:
                raise
            raise instead from error
        finally:
            self._be_woken(None)
            self._checkpoints.close(self._stop.error().rule if self._stop.asked.is_set() else "the attempt has ended")
            unanswered = self._savepoints.close()
            if unanswered is not None:
                self._inbox.post(unanswered)
        if self.ended_with is not None and self.ended_with.cancels:
            raise JobCancelledError("The job was cancelled", where=f"its savepoint: {self.ended_with.address}")

    def _handle(self, event: Event) -> None:
        if isinstance(event, WorkEnded):
            self._lane.ended(event)
        match event:
            case RoundEnded():
                self._round_ended(event)
            case Stored():
                self._checkpoints.stored(event)
                if event.cut.savepoint is not None:
                    self._savepoints.decided()
            case NotStored():
                self._not_stored(event)
            case NotCopied():
                self._checkpoints.not_copied(event)
                self._last_failed(event.error)
            case Committed():
                self.progress = self._checkpoints.committed(event, self.progress)
                self._planner.checkpoint_complete({o.uid_hash: o.source for o in event.cut.metadata.operators})
                if event.cut.savepoint is not None:
                    self._savepoints.completed()
            case LastCommitted():
                self.progress = self.progress.without_pending(event.committables)
                self._savepoints.completed()
            case SavepointCopied():
                self._recorder.copied(event.checkpoint_id, event.copied)
            case SavepointEnded():
                self._copies.ended(event)
                self._savepoints.ended(event)
            case SavepointCommand():
                self._ask_for_savepoint(event)
            case Through():
                self._checkpoints.through(event)
            case Discarded():
                self._resting = True
                self._be_woken(self._poll_ms)
            case Woken():
                self._resting = False
            case TriggerCheckpoint():
                self._checkpoints.ask(event)
            case Stopping():  # a round that ends well all the same counts, with its checkpoint
                self._rounds.cut()
            case Failed() | LaneBroken():
                raise event.error
            case LeaseLost() if event.lease == self._lease:  # else it was that of an earlier attempt
                raise event.error

    # -- when ------------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin what can begin now: the next round, the end; else be woken when it is time to look again."""
        if not self._over:
            self._checkpoints.record()
        if self._over or not self._rounds.at_rest:
            return
        self._stop.check()
        if self._lane.holds_rounds or self._resting:
            return
        savepoints = self._savepoints
        if savepoints.ended_with is not None:
            return self._finish()
        if savepoints.last_is_cut:
            return
        if self._has_ended and not (savepoints.stopping or savepoints.waiting):
            return self._finish()
        rest_ms = self._rest_ms()
        if rest_ms > 0:
            return self._be_woken(rest_ms)
        now = self._clock.now_ms()
        room_ms = self._checkpoints.aligned_ms()
        sources = self._sources = self._sources or self._planner.plan(now, self.progress.snapshots, room_ms)
        state = self._state(sources)
        hold_ms = self._checkpoints.hold_ms(**state)
        if hold_ms > 0:
            return self._be_woken(hold_ms)
        pending, savepoint = self._trigger(state)
        if self._has_work(sources, pending, now) or savepoint is not None:
            self._start_round(sources, pending, now, savepoint=savepoint)
        else:
            self._sources = None
            self._resting = state[
                "ending"
            ]  # storage gave no id for the last checkpoint: it is asked again, after a pause
            self._wait(sources, now)

    @property
    def _has_ended(self) -> bool:
        """All sources have told their end, all they gave is processed, and a checkpoint has it."""
        return self._planner.finished and self._checkpoints.all_saved and not self.progress.in_flight_records

    def _rest_ms(self) -> float:
        """How long the next round waits, because nobody could see what it does. Where all output becomes visible with checkpoints,
        rounds between them only share out the work. If there is little of it, each costs more (a Spark job, and of every sink a
        transaction or a file) than it takes off the round of the checkpoint, and that one is quicker alone."""
        if self._sources is not None or not (self._planner.rest_ms and self._committers.all_wait):
            return 0.0
        if self._savepoints.waiting or self._savepoints.stopping or self.progress.in_flight_records:
            return 0.0
        rest_ms = self._planner.rest_ms - (self._clock.monotonic() - self._began) * 1000
        wake_up = self.progress.next_wake_up_ms
        if wake_up is not None:
            rest_ms = min(rest_ms, wake_up - self._clock.now_ms())
        rest_ms = self._checkpoints.rest_ms(rest_ms)
        return rest_ms if rest_ms >= 1 else 0.0

    def _trigger(self, state: dict[str, Any]) -> tuple[PendingCheckpoint | None, PendingSavepoint | None]:
        """Step 1, for the round that begins. A savepoint goes first; only the last one is a checkpoint too."""
        savepoints, checkpoints = self._savepoints, self._checkpoints
        if checkpoints.closed:
            savepoints.refuse_waiting(CLOSED)
        if savepoints.waiting and not savepoints.stopping:
            return None, savepoints.begin(None, checkpoints.take_id)
        pending = checkpoints.trigger(self._subtasks(), **state)
        if not savepoints.stopping or (checkpoints.enabled and pending is None):
            return pending, None
        return pending, savepoints.begin(pending, checkpoints.take_id)

    def _ask_for_savepoint(self, command: SavepointCommand) -> None:
        if self._checkpoints.closed:
            rule, cure = "A savepoint that was asked for could not be taken.", "set it to true"
            return command.fail(RefusedError(rule, found=CLOSED, cure=cure))
        if self._savepoints.ask(command):
            if self._sources is not None:  # planned, and not begun: as good as not planned
                self._planner.discard()
                self._sources = None
            self._planner.stop(drain=command.drains)  # type: ignore[attr-defined]

    def _not_stored(self, event: NotStored) -> None:
        last = event.cut.savepoint is not None
        if last and isinstance(event.error, OutcomeUnknownError):
            self._savepoints.decided()
            raise event.error  # storage will say to the next attempt whether the job was to end
        self._checkpoints.not_stored(event)
        if last:
            self._last_failed(event.error)

    def _last_failed(self, error: Exception) -> None:
        """The job does not end with a savepoint after all."""
        if self._savepoints.last_failed(str(error)):
            raise CheckpointError(
                "Behind the end of event time a job cannot go on: it restarts from its latest checkpoint.",
                found=f"the savepoint it was to end with could not be stored: {error}",
                cure="see that the directory of the savepoint can be written, and stop the job again",
            ) from error
        self._planner.go_on()

    def _state(self, sources: dict[int, SourcePlan]) -> dict[str, Any]:
        """What decides whether the next round should carry a checkpoint. The last one does, though nothing may be new."""
        self._checkpoints.unsaved |= self._savepoints.stopping
        self._checkpoints.source_has_ended = self._planner.some_finished
        waiting = bool(self.progress.in_flight_records)
        news = self._checkpoints.unsaved or waiting or any(plan.intervals for plan in sources.values())
        ended = all(plan.finished for plan in sources.values()) and not waiting
        return {
            "wanted": news or self.progress.keeps_writers,  # which may want to roll their parts though nothing new came
            "ending": self._savepoints.stopping or ended,
            "half_round_ms": self.statistics[-1].seconds * 500 if self.statistics else 0.0,
        }

    def _subtasks(self) -> set[tuple[str, int]]:
        return {(o.uid_hash, s) for o in self.progress.graph.operators for s in range(o.parallelism)}

    def _has_work(self, sources: dict[int, SourcePlan], pending: PendingCheckpoint | None, now: int) -> bool:
        wake_up = self.progress.next_wake_up_ms
        return (
            pending is not None
            or self.progress.in_flight_records > 0
            or any(plan.intervals for plan in sources.values())
            or (all(plan.finished for plan in sources.values()) and not self._planner.finished)
            or (wake_up is not None and wake_up <= now)
        )

    def _wait(self, sources: dict[int, SourcePlan], now: int) -> None:
        moments = [plan.wake_up_ms for plan in sources.values() if plan.wake_up_ms is not None]
        moments += [m for m in (self.progress.next_wake_up_ms,) if m is not None]
        self._be_woken(min([self._poll_ms, *(max(1, moment - now) for moment in moments)]))

    def _be_woken(self, delay_ms: float | None) -> None:
        """After so long, and not earlier; None, or ``FOREVER``: not at all."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if delay_ms is not None and delay_ms < FOREVER:
            moment = self._clock.monotonic() + delay_ms / 1000
            self._timer = self._clock.call_at(moment, lambda: self._inbox.post(Woken()))

    def _finish(self) -> None:
        """All sources have ended. What waits without checkpoints is published, then nothing is left to do but to tell."""
        waiting = {sink: items for sink, items in self.progress.committables.items() if items}
        if waiting and not self._checkpoints.enabled:
            self._lane.publish(waiting)
            self.progress = self.progress.without_pending(waiting)
        if not (self._lane.at_rest and self._copies.at_rest):
            return
        if self._checkpoints.closed:
            self._say_what_is_dropped()
        if self._checkpoints.completed and any(
            is_notified(o.spec.user_function) for o in self.progress.graph.operators
        ):
            # Notifications ride on the next round, and behind the last checkpoint there is none: functions that ask for them
            # get a round of their own.
            now = self._clock.now_ms()
            return self._start_round(self._planner.plan(now, self.progress.snapshots), None, now, only_tells=True)
        self._over = True

    def _say_what_is_dropped(self) -> None:
        """Without a final checkpoint nobody commits what came behind the last one: the end of the job aborts it."""
        dropped = {
            sink for sink, items in self.progress.committables.items() if items
        } | self.progress.writer_states().keys()
        if dropped:
            names = ", ".join(o.label for o in sinks_of(self.progress.graph) if o.id in dropped)
            log.warning(
                "%s: what %s has written since the last checkpoint is not committed, and aborted", CLOSED, names
            )

    # -- steps 2 to 6 ----------------------------------------------------------------------------------------------------

    def _start_round(
        self,
        sources: dict[int, SourcePlan],
        pending: PendingCheckpoint | None,
        now: int,
        *,
        savepoint: PendingSavepoint | None = None,
        only_tells: bool = False,
    ) -> None:
        self._sources, self._began = None, self._clock.monotonic()
        plan = self._plan(sources, pending, savepoint, now)
        patience_ms = self._checkpoints.round_begins(pending)
        faults.point("C2.cut", round=self.round, checkpoint_id=plan.context.checkpoint_id)
        self._rounds.start(plan, pending, savepoint, patience_ms, only_tells=only_tells)

    def _plan(
        self,
        sources: dict[int, SourcePlan],
        pending: PendingCheckpoint | None,
        savepoint: PendingSavepoint | None,
        now: int,
    ) -> RoundPlan:
        self.round += 1
        carried = pending or savepoint
        context = RoundContext(
            round=self.round,
            version=f"{self._token}-{self.round}",
            checkpoint_id=carried.checkpoint_id if carried is not None else None,
            now_ms=now,
            completed=tuple(self._checkpoints.completed),
            aborted=tuple(self._checkpoints.aborted),
            statuses=self.progress.statuses(),
            savepoint=savepoint is not None,
            deadline_ms=self._round_deadline(pending, savepoint),
        )
        merge = self._merging.of_round(now, checkpoint=pending is not None)
        return self.progress.plan(context, sources, merge)

    def _round_deadline(self, pending: PendingCheckpoint | None, savepoint: PendingSavepoint | None) -> int | None:
        """A savepoint is aligned: the user may restore it anywhere, and a job that ends with one leaves nothing behind."""
        aligned_ms = self._checkpoints.aligned_ms(pending) if savepoint is None else None
        return None if aligned_ms is None else self._clock.now_ms() + int(aligned_ms)

    def _round_ended(self, event: RoundEnded) -> None:
        running, cut_off = self._rounds.ended()
        if running.only_tells:
            return self._told(event)
        if self._ending:
            self._stray = _prepared_by(event.acks)
            return self._savepoints.round_failed(running.savepoint, "the attempt has ended")
        try:
            if event.error is not None:
                self._fail_round(event.error, running, cut_off)
            faults.point("C3.acks-in", round=running.number, checkpoint_id=running.plan.context.checkpoint_id)
            self.progress.check(event.acks)
            _raise_first_error(event.acks)
        except Exception as error:
            self._stray, self.failed_round = _prepared_by(event.acks), (running.plan, event.acks)
            self._checkpoints.round_failed(running.pending, error)
            self._savepoints.round_failed(running.savepoint, str(error))
            self._stop.check()
            raise
        declined = next((ack for ack in event.acks if ack.declined is not None), None)
        if declined is not None:
            self._savepoints.round_failed(running.savepoint, declined.declined or "")
            if not self._savepoints.stopping:
                self._planner.go_on()
            return self._discard(event.acks, declined, running.pending)
        self._accept(event, running)

    def _fail_round(self, error: Exception, running: RunningRound, cut_off: bool) -> None:
        """A round that hangs must not outlive the rules of failed checkpoints. First it was cancelled, so that none of its
        tasks goes on below the restart; now its checkpoint has expired, which fails the attempt: its tasks may have hung
        in user code or outside, and a restart is the way known to be safe."""
        self._stop.check()
        if cut_off and getattr(error, "restart_helps", True):
            message = f"round {running.number} had not ended after {running.patience_ms:.0f} ms"
            self._checkpoints.round_hung(running.pending, message)
        raise error

    def _discard(self, acks: list[Ack], ack: Ack, pending: PendingCheckpoint | None) -> None:
        """Nothing of the round happened; it is planned again. A checkpoint it carried has failed."""
        reason = ack.declined or ""
        log.warning("round %d declined: %s", self.round, reason)
        self._planner.discard()
        self._checkpoints.released |= written_paths(acks)
        self._lane.discard(_prepared_by(acks), self.progress.committables, self.progress.writer_states())
        if not self._checkpoints.enabled:
            raise RoundError(
                "A round could not store its results, and without checkpoints it cannot go on", found=reason
            )
        self._checkpoints.round_declined(pending, reason)

    def _accept(self, event: RoundEnded, running: RunningRound) -> None:
        before, context = self.progress, running.plan.context
        accepted, prepared = before.accept(event.acks)
        self._planner.accept(busy_seconds(event.acks, accepted.graph), rounds_behind(event.acks))
        self._checkpoints.round_accepted(context, before, accepted)
        waits = functools.partial(self._committers.waits_for_checkpoint, checkpointing=self._checkpoints.enabled)
        later = {sink: items for sink, items in prepared.items() if waits(sink)}
        at_once = {sink: items for sink, items in prepared.items() if items and sink not in later}
        self.progress = accepted.with_pending(later)
        if at_once:
            self._lane.publish(at_once)
        if any(ack.run.attempt > 0 and self._has_sink(ack) for ack in event.acks):
            log.info("round %d: tasks were tried again; what their first tries left is looked for", context.round)
            self._lane.sweep(self.progress.committables, self.progress.writer_states())
        self._cut(event, running)
        self._report(event, context)

    def _has_sink(self, ack: Ack) -> bool:
        return any(operator.spec.role is Role.SINK for operator in self.progress.graph.chains[ack.chain].operators)

    def _cut(self, event: RoundEnded, running: RunningRound) -> None:
        """What the round carried goes into the lanes."""
        pending, carried, number = running.pending, running.savepoint, running.number
        ending = carried.ending if carried is not None else None
        self._savepoints.last_is_cut = ending is not None
        if pending is not None:
            stored = self._checkpoints.cut(pending, event, self.progress, self._planner, number, ending)
            if ending is not None and not stored:
                self._last_failed(RoundError("the round of the last checkpoint took longer than its timeout"))
        elif carried is not None:
            savepoint = self._savepoints.cut(carried, self._lane.with_unpublished(self.progress), self._planner, number)
            if ending is not None:
                self._lane.end_with(savepoint, self.progress.committables)

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
            log.warning(text, self._checkpoints.completed[-1], error)

    # -- the end of an attempt -------------------------------------------------------------------------------------------

    def _wind_up(self, error: Exception | SystemExit) -> Exception | SystemExit:
        """Bring both lanes to rest before anybody claims a new lease: the running round is cut off and counts for nothing, what
        the checkpoint lane has begun comes to its end (if the job is to stop, also what waits in it). Gives what to raise."""
        self._ending = True
        stopped = isinstance(error, STOPPED)
        if not stopped:
            self._lane.drop()
        self._copies.drop()
        self._rounds.drop()
        later: list[Exception | SystemExit] = []
        while not (self._rounds.at_rest and self._lane.at_rest and self._copies.at_rest):
            _collect(later, lambda: self._handle(self._inbox.take(self._lanes)))
        _collect(later, lambda: self._committers.abort(self._stray))
        _collect(later, self._checkpoints.write_history)
        fenced = next((worse for worse in later if isinstance(worse, FencedError)), None)
        if fenced is not None and not stopped:
            return fenced
        # A checkpoint that is stored and could not be committed: cancelled, the job might delete it and lose what it has promised.
        return later[0] if isinstance(error, JobCancelledError) and self._committers.owes and later else error


def _collect(errors: list[Exception | SystemExit], act: Any) -> None:
    try:
        act()
    except (Exception, SystemExit) as error:
        log.warning("while an attempt ends: %s", error)
        errors.append(error)


def _raise_first_error(acks: list[Ack]) -> None:
    """Upstream first: what follows below is a consequence."""
    for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
        if ack.error is not None:
            raise ack.error


def _prepared_by(acks: list[Ack]) -> dict[int, list[Any]]:
    """What the sinks of a round have prepared."""
    prepared: dict[int, list[Any]] = {}
    for ack in acks:
        for sink, items in ack.committables.items():
            prepared.setdefault(sink, []).extend(items)
    return prepared
