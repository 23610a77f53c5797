"""One execution attempt of a job: rounds, which carry checkpoints, until the end of input, a failure or a stop.

The job's thread takes events from the inbox, one after the other, and is the only one that changes anything here. Rounds run
in one lane; steps 7 to 9 in another (``steps.py`` says why that is safe).
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.base import faults
from tidegate.base.clock import FOREVER, Clock, Timer
from tidegate.base.errors import CheckpointError, FencedError, JobCancelledError, RoundError
from tidegate.checkpoint.checkpoint import Checkpoint, Committed, Failed, Stored, Subsumed, Target
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.checkpoint.savepoint import Ending
from tidegate.graph.transformation import Role
from tidegate.operators.contracts.functions import is_notified
from tidegate.operators.contracts.source import SourcePlan
from tidegate.operators.contracts.specs import sinks_of
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.checkpoints import Look
from tidegate.runtime.commands import STOPPED, SavepointCommand, Stop, StopCommand, TriggerCheckpoint
from tidegate.runtime.engine import Engine, RoundPlan, RoundResult, Watchdog
from tidegate.runtime.inbox import (
    Broke,
    Dropped,
    Event,
    Inbox,
    Lane,
    LaneBroken,
    LaneName,
    Lanes,
    LeaseLost,
    Woken,
    WorkEnded,
)
from tidegate.runtime.life_cycle import Restored
from tidegate.runtime.phase import (
    LastCut,
    Notifying,
    Over,
    Phase,
    Resting,
    Running,
    Stopping,
    WindingUp,
    at_heart,
    last_of,
    moved,
)
from tidegate.runtime.planner import MergePolicy, Merging
from tidegate.runtime.progress import rounds_behind, written_paths
from tidegate.runtime.savepoints import CLOSED
from tidegate.runtime.statistics import Listener, RoundStatistics, busy_seconds, statistics_of, tell
from tidegate.runtime.steps import Done, Reached, SavepointCopied
from tidegate.runtime.stored_view import ViewKeeper
from tidegate.runtime.view import JobRecorder

log = logging.getLogger(__name__)

_KEPT_STATISTICS = 5_000
VALIDATE = False
"""Whether to check the invariants after every event, for tests."""


class InvariantError(BaseException):
    """An invariant of the driver is broken. No strategy restarts the job: only tests look (``VALIDATE``)."""


@dataclass(frozen=True)
class Round:
    """The running round. ``carried``: its checkpoint or savepoint. ``patience_ms`` None: the round has no time limit."""

    plan: RoundPlan
    carried: Checkpoint | None
    patience_ms: float | None
    watchdog: Watchdog

    @property
    def number(self) -> int:
        return self.plan.context.round


class Attempt:
    """Runs from the ``restored`` state. Returns at the end of input; else raises the cause, after all lanes are at rest."""

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
        keeper: ViewKeeper | None = None,
    ) -> None:
        self._token, self._engine, self._inbox, self._lanes = token, engine, inbox, lanes
        self.progress, self._planner = restored.progress, restored.planner
        self._lease, self._committers = restored.claimed.lease.token, restored.committers
        self._clock, self._stop, self._poll_ms = clock, stop, poll_ms
        self._merging = Merging(merges, clock.now_ms())
        self._recorder, self._listeners, self._keeper = recorder, listeners, keeper
        self.round = first_round
        self.statistics: deque[RoundStatistics] = deque(maxlen=_KEPT_STATISTICS)
        self._planner.rounds_behind = 1.0 if self.progress.in_flight_records else 0.0
        self.phase: Phase = Running()
        self.checkpoints, self._steps = restored.checkpoints, restored.checkpoints.steps
        self._rounds = Lane(lanes, LaneName.ROUNDS, clock)
        self._running: Round | None = None
        self._sources: dict[int, SourcePlan] | None = None  # planned, and not yet run
        self._timer: Timer | None = None
        self._began = 0.0  # the last round
        self._accepting = 0.0  # since when
        self._spent: dict[str, float] = defaultdict(float)  # by the driver since the last statistics (ROUND_PARTS)
        self.failed_round: tuple[RoundPlan, list[Ack]] | None = None
        """The round that ended the attempt, if one did."""
        self._stray: dict[int, list[Any]] = {}  # prepared in a round that did not count

    # -- the loop --------------------------------------------------------------------------------------------------------

    @property
    def ended_with(self) -> Ending | None:
        """The savepoint that the job has ended with, if a command asked for it: published, and its output committed."""
        last = last_of(self.phase)
        return last.ending if isinstance(last, Checkpoint) and last.is_committed else None

    def run(self) -> None:
        """Handle events until all sources have ended, or reading has stopped, and everything is committed."""
        try:
            self._proceed()
            while not isinstance(self.phase, Over):
                self._handle(self._inbox.take(self._lanes))
                self._proceed()
                if VALIDATE:
                    self.validate()
        except (Exception, SystemExit) as error:  # the second: of a user's enumerator or committer
            instead = self._wind_up(error)
            if instead is error:
                raise
            raise instead from error
        finally:
            self._be_woken(None)
            self.checkpoints.close(self._stop.error().rule if self._stop.asked.is_set() else "the attempt has ended")
            self._give_up_last()
        if self.ended_with is not None and self.ended_with.cancels:
            raise JobCancelledError("The job was cancelled", where=f"its savepoint: {self.ended_with.address}")

    def _handle(self, event: Event) -> None:
        match event:
            case WorkEnded(lane=lane) if lane is self._rounds:
                self._round_ended(event)
            case WorkEnded(result=result):
                self._steps.ended(event)
                match result:
                    case Reached():
                        self._reached(result, event.seconds)
                    case Done.DISCARDED:
                        self._rest(self._poll_ms)
                    case Done.PUBLISHED:
                        self._spent["commit"] += event.seconds
                    case Broke():
                        raise result.error
            case Reached():
                self._reached(event, 0.0)
            case SavepointCopied():
                self.checkpoints.copied(event.checkpoint, event.copied)
            case SavepointCommand():
                self._ask_for_savepoint(event)
            case Woken():
                if isinstance(self.phase, Resting):
                    self.phase = self.phase.then
            case TriggerCheckpoint():
                self.checkpoints.ask(event)
            case StopCommand():  # a round that ends well all the same counts, with its checkpoint
                if self._running is not None:
                    self._running.watchdog.cut()
            case LaneBroken():
                raise event.error
            case LeaseLost() if event.lease == self._lease:  # else it was that of an earlier attempt
                raise event.error

    def _reached(self, event: Reached, seconds: float) -> None:
        """Handle the next stage of a checkpoint or savepoint, which a lane has reached."""
        checkpoint, is_last = event.checkpoint, event.checkpoint.ending is not None
        match event.stage:
            case Stored() as stage:
                self.checkpoints.stored(checkpoint, stage)
                self._spent["store"] += checkpoint.steps_ms.get("complete", 0.0) / 1000
            case Committed() as stage:
                self.progress = self.checkpoints.committed(checkpoint, stage, self.progress, seconds)
                self._spent["commit"] += checkpoint.steps_ms.get("commit", 0.0) / 1000
                if checkpoint.kind == CHECKPOINT:
                    self._planner.checkpoint_complete({o.uid_hash: o.source for o in stage.cut.metadata.operators})
                if is_last:
                    self.checkpoints.ends(checkpoint)
            case Subsumed() as stage:
                self.checkpoints.subsumed(checkpoint, stage, seconds)
            case Failed(error=error) as stage:
                self.checkpoints.failed(checkpoint, stage, seconds)
                if is_last:
                    self._last_failed(checkpoint, error or CheckpointError(stage.message))

    def _move(self, to: Phase) -> None:
        self.phase = moved(self.phase, to)

    def _rest(self, delay_ms: float) -> None:
        heart = at_heart(self.phase)
        if isinstance(heart, Running | Stopping):
            self._move(Resting(heart))
        self._be_woken(delay_ms)

    # -- when ------------------------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Start what can start now: the next round or the end. Else set the timer for the next look."""
        if not isinstance(self.phase, Over):
            self.checkpoints.record()
            if self._keeper is not None and self._keeper.take_due():
                self._steps.checkpoints.submit(self._keeper.write, may_drop=True)
        if self._running is not None or isinstance(self.phase, Over):
            return
        self._stop.check()
        if self._steps.holds_rounds:
            return
        match self.phase:
            case Running() if self._has_ended and not self.checkpoints.savepoint_waits:
                self._finish(None)
            case LastCut(checkpoint=checkpoint) if checkpoint.is_committed:
                self._finish(checkpoint)
            case Running() | Stopping():
                self._next_round()
            case Resting() | LastCut():
                pass  # the timer, or the lane, is waited for

    def _next_round(self) -> None:
        rest_ms = self._rest_ms()
        if rest_ms > 0:
            return self._be_woken(rest_ms)
        now = self._clock.now_ms()
        room_ms, began = self.checkpoints.aligned_ms(), self._clock.monotonic()
        sources = self._sources = self._sources or self._planner.plan(now, self.progress.snapshots, room_ms)
        self._spent["plan"] += self._clock.monotonic() - began
        look = self._look(sources)
        hold_ms = self.checkpoints.hold_ms(look)
        if hold_ms > 0:
            return self._be_woken(hold_ms)
        carried = self._trigger(look)
        if self._sources is None:
            return self._be_woken(0)  # the stop was refused: the sources are planned again
        if carried is not None or self._has_work(sources, now):
            return self._start_round(sources, carried, now)
        self._sources = None
        if look.ending:  # storage gave no id for the last checkpoint: it is asked again, after a pause
            self._rest(self._pause_ms(sources, now))
        else:
            self._be_woken(self._pause_ms(sources, now))

    @property
    def _has_ended(self) -> bool:
        """Whether all sources have ended, all their records are processed, and a checkpoint covers them."""
        return self._planner.finished and self.checkpoints.all_saved and not self.progress.in_flight_records

    def _rest_ms(self) -> float:
        """Return how long the next round waits, because its output would not be visible yet. If all output becomes visible with
        checkpoints, rounds between checkpoints only spread the work. With little work, such a round costs more (a Spark job, and a
        transaction or file for every sink) than it saves in the round of the checkpoint."""
        if self._sources is not None or not (self._planner.rest_ms and self._committers.all_wait):
            return 0.0
        stopping = isinstance(self.phase, Stopping)
        if self.checkpoints.savepoint_waits or stopping or self.progress.in_flight_records:
            return 0.0
        rest_ms = self._planner.rest_ms - (self._clock.monotonic() - self._began) * 1000
        wake_up = self.progress.next_wake_up_ms
        if wake_up is not None:
            rest_ms = min(rest_ms, wake_up - self._clock.now_ms())
        rest_ms = self.checkpoints.rest_ms(rest_ms)
        return rest_ms if rest_ms >= 1 else 0.0

    def _trigger(self, look: Look) -> Checkpoint | None:
        """Do step 1 for the round that begins. A savepoint goes first; only the last savepoint is a checkpoint too."""
        checkpoints = self.checkpoints
        if checkpoints.closed:
            checkpoints.refuse_waiting_savepoints(CLOSED)
        if checkpoints.savepoint_waits and not isinstance(self.phase, Stopping):
            return checkpoints.begin_savepoint()
        carried = checkpoints.trigger_if_due(self._subtasks(), look)
        if not isinstance(self.phase, Stopping):
            return carried
        target = self.phase.target
        if carried is not None:
            carried.target = target
        elif not checkpoints.enabled and (carried := checkpoints.begin_savepoint(target)) is None:
            self.phase = Running()
            self._planner.discard()  # a drained plan would end the job, though its stop was refused
            self._planner.resume()
            self._sources = None
        return carried

    def _ask_for_savepoint(self, command: SavepointCommand) -> None:
        last = last_of(self.phase)
        target = self.checkpoints.ask_for_savepoint(command, last.target if isinstance(last, Checkpoint) else last)
        if target is None or target.ending is None:
            return None
        if isinstance(at_heart(self.phase), Notifying | Over):  # too late for one more round
            return self.checkpoints.give_up_target(target, "the attempt has ended")
        if self._sources is not None:  # planned, and not begun: it is planned again
            self._planner.discard()
            self._sources = None
        self._planner.stop(drain=target.ending.drained)
        stopping = Stopping(target)
        self._move(Resting(stopping) if isinstance(self.phase, Resting) else stopping)

    def _last_failed(self, checkpoint: Checkpoint, error: Exception) -> None:
        """Continue the job, because its last savepoint has failed. Raise if event time has already ended."""
        drained = (
            isinstance(at_heart(self.phase), LastCut) and checkpoint.ending is not None and checkpoint.ending.drained
        )
        self._give_up_carried(checkpoint, str(error))
        if drained:
            raise CheckpointError(
                "The job cannot continue after the end of event time: it restarts from its latest checkpoint.",
                found=f"the job's last savepoint could not be stored: {error}",
                cure="make the directory of the savepoint writable, and stop the job again",
            ) from error
        self._planner.resume()

    def _give_up_carried(self, carried: Checkpoint | None, why: str) -> None:
        """Abort a savepoint that could not be taken, before anything was decided, and answer its command. Skip a checkpoint."""
        if carried is not None and carried.target is not None:
            if carried.ending is not None:
                self._move(Running())
            self.checkpoints.give_up_savepoint(carried, why)

    def _look(self, sources: dict[int, SourcePlan]) -> Look:
        stopping = isinstance(self.phase, Stopping)
        unsaved = self.checkpoints.note_sources(stopping=stopping, some_ended=self._planner.some_finished)
        waiting = bool(self.progress.in_flight_records)
        news = unsaved or waiting or any(plan.intervals for plan in sources.values())
        ended = all(plan.finished for plan in sources.values()) and not waiting
        return Look(
            wanted=news or self.progress.keeps_writers,  # which may want to roll their parts though nothing new came
            ending=stopping or ended,
            half_round_ms=self.statistics[-1].seconds * 500 if self.statistics else 0.0,
        )

    def _subtasks(self) -> set[tuple[str, int]]:
        return {(o.uid_hash, s) for o in self.progress.graph.operators for s in range(o.parallelism)}

    def _has_work(self, sources: dict[int, SourcePlan], now: int) -> bool:
        wake_up = self.progress.next_wake_up_ms
        return (
            self.progress.in_flight_records > 0
            or any(plan.intervals for plan in sources.values())
            or (all(plan.finished for plan in sources.values()) and not self._planner.finished)
            or (wake_up is not None and wake_up <= now)
        )

    def _pause_ms(self, sources: dict[int, SourcePlan], now: int) -> float:
        """Return the time until the next look at the sources."""
        moments = [plan.wake_up_ms for plan in sources.values() if plan.wake_up_ms is not None]
        moments += [m for m in (self.progress.next_wake_up_ms,) if m is not None]
        return min([self._poll_ms, *(max(1, moment - now) for moment in moments)])

    def _be_woken(self, delay_ms: float | None) -> None:
        """Set the timer to ``delay_ms``, and not earlier; None, or ``FOREVER``: no timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if delay_ms is not None and delay_ms < FOREVER:
            moment = self._clock.monotonic() + delay_ms / 1000
            self._timer = self._clock.call_at(moment, lambda: self._inbox.post(Woken()))

    def _finish(self, last: Checkpoint | None) -> None:
        """Finish: all sources have ended, or the job has ended with a savepoint (``last``). Output that waits without checkpoints
        is published. Then only notifications are left."""
        waiting = {sink: items for sink, items in self.progress.committables.items() if items}
        if waiting and not self.checkpoints.enabled:
            self._steps.publish(waiting)
            self.progress = self.progress.without_pending(waiting)
        if not (self._steps.at_rest and self._steps.savepoints.at_rest):
            return None
        if self.checkpoints.closed:
            self._say_what_is_dropped()
        notified = (is_notified(o.spec.user_function) for o in self.progress.graph.operators)
        if self.checkpoints.completed and any(notified):
            # The next round carries notifications, and there is no round after the last checkpoint: functions that ask for
            # notifications get a round of their own.
            self.phase = Notifying(last)
            now = self._clock.now_ms()
            return self._start_round(self._planner.plan(now, self.progress.snapshots), None, now)
        self.phase = Over(last)

    def _say_what_is_dropped(self) -> None:
        """Log the output that is lost. Without a final checkpoint nobody commits the output after the last checkpoint: the end
        of the job aborts it."""
        dropped = {
            sink for sink, items in self.progress.committables.items() if items
        } | self.progress.writer_states().keys()
        if dropped:
            names = ", ".join(o.label for o in sinks_of(self.progress.graph) if o.id in dropped)
            log.warning("%s: output of %s since the last checkpoint is not committed but aborted", CLOSED, names)

    # -- steps 2 to 6 ----------------------------------------------------------------------------------------------------

    def _start_round(self, sources: dict[int, SourcePlan], carried: Checkpoint | None, now: int) -> None:
        """Do steps 2 and 3. A round that takes longer than its patience is cancelled."""
        self._sources, self._began = None, self._clock.monotonic()
        plan = self._plan(sources, carried, now)
        self._spent["plan"] += self._clock.monotonic() - self._began
        patience_ms = self.checkpoints.round_begins(_checkpoint(carried))
        faults.point("C2.cut", round=self.round, checkpoint_id=plan.context.checkpoint_id)
        watchdog = Watchdog(self._engine, self._clock, self._lanes.aside)
        self._rounds.submit(functools.partial(self._run, plan), may_drop=True)
        self._running = Round(plan, carried, patience_ms, watchdog)
        self._recorder.note("round", self.round, "begun", "" if carried is None else str(carried.checkpoint_id))
        if patience_ms is not None:
            watchdog.watch(patience_ms / 1000)

    def _run(self, plan: RoundPlan) -> list[Ack] | Exception:
        """Run the round, in the lane."""
        try:
            return self._engine.run(plan)
        except Exception as error:
            return error

    def _plan(self, sources: dict[int, SourcePlan], carried: Checkpoint | None, now: int) -> RoundPlan:
        self.round += 1
        context = RoundContext(
            round=self.round,
            version=f"{self._token}-{self.round}",
            checkpoint_id=carried.checkpoint_id if carried is not None else None,
            now_ms=now,
            completed=self.checkpoints.completed,
            aborted=self.checkpoints.aborted,
            statuses=self.progress.statuses(),
            savepoint=carried is not None and carried.target is not None,
            deadline_ms=self._round_deadline(carried),
        )
        merge = self._merging.of_round(now, checkpoint=_checkpoint(carried) is not None)
        return self.progress.plan(context, sources, merge)

    def _round_deadline(self, carried: Checkpoint | None) -> int | None:
        """Return the limit for aligned input. A savepoint is always aligned: the user may restore it anywhere, and a job that ends
        with a savepoint leaves nothing in flight."""
        is_savepoint = carried is not None and carried.target is not None
        aligned_ms = None if is_savepoint else self.checkpoints.aligned_ms(carried)
        return None if aligned_ms is None else self._clock.now_ms() + int(aligned_ms)

    def _round_ended(self, event: WorkEnded) -> None:
        self._rounds.ended(event)
        self._accepting = self._clock.monotonic()
        running, self._running = self._running, None
        assert running is not None
        cut_off, carried = running.watchdog.end(), running.carried
        acks: list[Ack] = event.result if isinstance(event.result, list) else []
        result, error = RoundResult(running.number, event.seconds, acks), _error_of(event.result)
        note = functools.partial(self._recorder.note, "round", running.number)
        if isinstance(at_heart(self.phase), Notifying):
            note("notified")
            return self._notified(error, acks)
        if isinstance(self.phase, WindingUp):
            note("dropped")
            self._stray = _prepared_by(acks)
            return self._give_up_carried(carried, "the attempt has ended")
        try:
            if error is not None:
                self._fail_round(error, running, cut_off)
            faults.point("C3.acks-in", round=running.number, checkpoint_id=running.plan.context.checkpoint_id)
            self.progress.check(acks)
            _raise_first_error(acks)
        except Exception as failed:
            note("failed", str(failed))
            self._stray, self.failed_round = _prepared_by(acks), (running.plan, acks)
            if (checkpoint := _checkpoint(carried)) is not None:
                self.checkpoints.round_failed(checkpoint, failed)
            self._give_up_carried(carried, str(failed))
            self._stop.check()
            raise
        declined = next((ack for ack in acks if ack.declined is not None), None)
        if declined is not None:
            note("declined", declined.declined or "")
            return self._discard(acks, declined.declined or "", carried)
        note("accepted")
        self._accept(result, running)

    def _fail_round(self, error: Exception | SystemExit, running: Round, cut_off: bool) -> None:
        """Fail the attempt because of a round. A round that hangs must obey the rules for failed checkpoints. First it was
        cancelled, so that none of its tasks runs during the restart. Now its checkpoint has expired, which fails the attempt: its
        tasks may hang in user code or in another system, and a restart is known to be safe."""
        self._stop.check()
        if cut_off and getattr(error, "restart_helps", True):
            message = f"round {running.number} had not ended after {running.patience_ms:.0f} ms"
            self.checkpoints.round_hung(_checkpoint(running.carried), message)
        raise error

    def _discard(self, acks: list[Ack], reason: str, carried: Checkpoint | None) -> None:
        """Discard a declined round, and plan it again. The checkpoint that it carried has failed."""
        self._give_up_carried(carried, reason)
        if not isinstance(self.phase, Stopping):
            self._planner.resume()
        log.warning("round %d declined: %s", self.round, reason)
        self._planner.discard()
        self._steps.discard(_prepared_by(acks), self.progress.committables, self.progress.writer_states())
        self.checkpoints.round_declined(_checkpoint(carried), reason, written_paths(acks))

    def _accept(self, result: RoundResult, running: Round) -> None:
        before, acks = self.progress, result.acks
        accepted, prepared = before.accept(acks)
        self._planner.accept(busy_seconds(acks, accepted.graph), rounds_behind(acks))
        self.checkpoints.round_accepted(running.plan.context, before, accepted)
        waits = functools.partial(self._committers.waits_for_checkpoint, checkpointing=self.checkpoints.enabled)
        later = {sink: items for sink, items in prepared.items() if waits(sink)}
        at_once = {sink: items for sink, items in prepared.items() if items and sink not in later}
        self.progress = accepted.with_pending(later)
        if at_once:
            self._steps.publish(at_once)
        if any(ack.run.attempt > 0 and self._has_sink(ack) for ack in acks):
            log.info("round %d: tasks were retried; the remains of their failed tries are swept", result.round)
            self._steps.sweep(self.progress.committables, self.progress.writer_states())
        if running.carried is not None:
            self._cut(running.carried, result)
        self._spent["accept"] += self._clock.monotonic() - self._accepting
        in_lanes, graph, context = self._steps.take_seconds(), self.progress.graph, running.plan.context
        statistics = statistics_of(context, result.seconds, acks, graph, in_lanes, self._spent)
        self._spent.clear()
        self.statistics.append(statistics)
        self._recorder.round(statistics, acks, self._planner.lags())
        tell(self._listeners, statistics)

    def _has_sink(self, ack: Ack) -> bool:
        return any(operator.spec.role is Role.SINK for operator in self.progress.graph.chains[ack.chain].operators)

    def _cut(self, carried: Checkpoint, result: RoundResult) -> None:
        """Submit the checkpoint or savepoint that the round carried to the lanes."""
        if carried.ending is not None:
            self._move(LastCut(carried))
        stored = self.checkpoints.cut(carried, result, self.progress, self._planner)
        if carried.ending is not None and not stored:
            self._last_failed(carried, RoundError("the round of the last checkpoint took longer than its timeout"))

    def _notified(self, error: Exception | SystemExit | None, acks: list[Ack]) -> None:
        """Finish the round of notifications. All output is committed, so a failure of this round is only logged."""
        if isinstance(self.phase, Notifying):
            self.phase = Over(self.phase.last)
        try:
            if error is not None:
                raise error
            _raise_first_error(acks)
        except Exception as failed:
            text = "checkpoint %d is complete, but not all functions could be notified: %s"
            log.warning(text, self.checkpoints.completed[-1], failed)

    # -- the end of an attempt -------------------------------------------------------------------------------------------

    def _wind_up(self, error: Exception | SystemExit) -> Exception | SystemExit:
        """Bring all lanes to rest before any attempt claims a new lease, and return the error to raise. The running round is
        cancelled and does not count. Work that the checkpoint lane has begun finishes (also waiting work, if the job stops)."""
        stopped = isinstance(error, STOPPED)
        if not stopped:
            self._steps.drop()
        self._steps.savepoints.drop()
        self._rounds.drop()
        self.phase = WindingUp(error, self.phase)
        if self._running is not None:
            self._running.watchdog.cut()
        later: list[Exception | SystemExit] = []
        while not (self._rounds.at_rest and self._steps.at_rest and self._steps.savepoints.at_rest):
            _collect(later, lambda: self._handle(self._inbox.take(self._lanes)))
        _collect(later, lambda: self._committers.abort(self._stray))
        _collect(later, self.checkpoints.write_history)
        fenced = next((worse for worse in later if isinstance(worse, FencedError)), None)
        if fenced is not None and not stopped:
            return fenced
        # A checkpoint is stored but not committed: a cancelled job might delete it, and lose the output that it has promised.
        return later[0] if isinstance(error, JobCancelledError) and self._committers.owes and later else error

    def _give_up_last(self) -> None:
        """Abort the job's last savepoint, if nothing is decided. Else the answer is not known yet: the command is returned, and the
        end of the job answers it."""
        match last_of(self.phase):
            case Target() as target:
                self.checkpoints.give_up_target(target, "the attempt has ended")
            case Checkpoint(target=Target(asked=asked)) as last:
                if last.is_decided:
                    assert isinstance(asked, SavepointCommand)
                    self._inbox.post(asked)
                else:
                    self.checkpoints.give_up_savepoint(last, "the attempt has ended")

    def validate(self) -> None:
        """Check the invariants between two events; raise ``InvariantError`` if one is broken."""
        try:
            running, carried = self._running, self._running.carried if self._running is not None else None
            assert (running is None) == self._rounds.at_rest, "a round runs if and only if the lane has work"
            self.checkpoints.validate(carried)
            match self.phase:
                case Notifying():
                    assert running is not None and carried is None, "a round that only notifies carries nothing"
                case Over():
                    assert running is None and self._steps.at_rest and self._steps.savepoints.at_rest, "lanes at rest"
                case LastCut(checkpoint=last):
                    assert running is None and not isinstance(last.stage, Failed), (
                        f"no round after the last cut: {last}"
                    )
                case Stopping(target=target):
                    assert target.ending is not None
        except AssertionError as error:
            raise InvariantError(f"{error} (phase {self.phase})") from error


def _checkpoint(carried: Checkpoint | None) -> Checkpoint | None:
    """Return the checkpoint that a round carries; None for a savepoint of a job that continues."""
    return carried if carried is not None and carried.kind == CHECKPOINT else None


def _error_of(result: object) -> Exception | SystemExit | None:
    """Return the error of a round without acks."""
    match result:
        case Dropped():
            return RoundError("The attempt ends: no more rounds")
        case Broke(error=error):
            return error
        case Exception():
            return result
    return None


def _collect(errors: list[Exception | SystemExit], act: Callable[[], object]) -> None:
    try:
        act()
    except (Exception, SystemExit) as error:
        log.warning("while an attempt ends: %s", error)
        errors.append(error)


def _raise_first_error(acks: list[Ack]) -> None:
    """Raise the first error, upstream first: errors downstream are consequences."""
    for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
        if ack.error is not None:
            raise ack.error


def _prepared_by(acks: list[Ack]) -> dict[int, list[Any]]:
    """Return the output that the sinks of a round have prepared."""
    prepared: dict[int, list[Any]] = {}
    for ack in acks:
        for sink, items in ack.committables.items():
            prepared.setdefault(sink, []).extend(items)
    return prepared
