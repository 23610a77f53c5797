"""The checkpoints of an attempt, as the job's thread sees them: when to take one, its content, the answers of the lane.

``Checkpoints`` is for a job that takes checkpoints, ``NoCheckpoints`` for one that takes savepoints only. Both are driven in the
same order: ``trigger`` (step 1) -> a round carries the barrier (2-6) -> ``cut`` -> the lane stores, commits and cleans up, and its
answers come back as ``stored``, ``committed`` and ``subsumed``, or ``failed`` (7-9). Only the id of step 1 makes the job's thread
wait for storage.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from tidegate.base import faults
from tidegate.base.clock import FOREVER
from tidegate.base.errors import CheckpointError, RefusedError, RoundError, StorageError, TidegateError
from tidegate.base.plain_text import count
from tidegate.checkpoint.checkpoint import Checkpoint, Committed, Cut, Failed, Stored, Subsumed, SubtaskId, Triggered
from tidegate.checkpoint.checkpoint import CheckpointFailureReason as Reason
from tidegate.checkpoint.history import (
    DEFAULT_LIMIT,
    NO_ID,
    CheckpointHistory,
    CheckpointStatus,
    HistoryEntry,
    OperatorFigures,
    SubtaskFigures,
    blank_entry,
    entry_of,
)
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.metadata import CHECKPOINT, SAVEPOINT, OperatorState, decode_metadata, metadata_path
from tidegate.checkpoint.policy import CheckpointPolicy, CheckpointTrigger, FailureCounter, Retention
from tidegate.graph.plan import Operator
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.commands import TriggerCheckpoint
from tidegate.runtime.engine import RoundResult
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.savepoints import CLOSED, Around, Savepoints
from tidegate.runtime.steps import CheckpointSteps

log = logging.getLogger(__name__)

_WORTH_MS = 1.0
"""A shorter snapshot of an operator without state is not worth figures of its own."""
_NOT_TAKEN = "The requested checkpoint could not be taken."
_SLOW = (
    "checkpoint %d: its metadata is not stored after execution.checkpointing.timeout; rounds continue, "
    "but no output is committed until storage answers"
)


@dataclass(frozen=True)
class Look:
    """What decides whether the next round should carry a checkpoint. ``wanted``: something is new. ``ending``: it is the last
    round, which carries a checkpoint even if nothing is new."""

    wanted: bool
    ending: bool
    half_round_ms: float


class NoCheckpoints(Savepoints):
    """For a job without checkpoints: output waits for the end of the job. A failure ends the job, or starts it with empty state."""

    enabled = False
    all_saved = True
    completed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()

    def ask(self, command: TriggerCheckpoint) -> None:
        cure = "set execution.checkpointing.interval"
        command.fail(RefusedError(_NOT_TAKEN, found="the job takes no checkpoints", cure=cure))

    def hold_ms(self, look: Look) -> float:
        return 0.0

    def rest_ms(self, rest_ms: float) -> float:
        return 0.0

    def trigger_if_due(self, expected: set[SubtaskId], look: Look) -> Checkpoint | None:
        return None

    def note_sources(self, *, stopping: bool, some_ended: bool) -> bool:
        return stopping

    def aligned_ms(self, checkpoint: Checkpoint | None = None) -> float | None:
        return None

    def round_begins(self, checkpoint: Checkpoint | None) -> float | None:
        return None

    def round_hung(self, checkpoint: Checkpoint | None, message: str) -> None:
        """Do nothing: a round has no time limit."""

    def round_failed(self, checkpoint: Checkpoint, error: Exception) -> None:
        """Do nothing: only a checkpoint has to be aborted here, and the attempt aborts a savepoint."""

    def round_declined(self, checkpoint: Checkpoint | None, reason: str, written: set[str]) -> None:
        raise RoundError("A round could not store its results, and the job has no checkpoint to restore", found=reason)

    def round_accepted(self, context: RoundContext, before: Progress, after: Progress) -> None:
        """Do nothing: no function waits for notifications of checkpoints, and nothing is deleted before the end."""

    def cut(self, checkpoint: Checkpoint, result: RoundResult, progress: Progress, planner: SourcePlanner) -> bool:
        self._cut_savepoint(checkpoint, progress, planner, result.round)
        return True

    def stored(self, checkpoint: Checkpoint, stage: Stored) -> None:
        self._savepoint_stored(checkpoint, stage)

    def failed(self, checkpoint: Checkpoint, stage: Failed, seconds: float) -> None:
        """Handle a failed savepoint. The attempt itself aborts a savepoint that the job would have ended with."""
        if checkpoint.ending is None:
            self._savepoint_failed(checkpoint, stage)

    def committed(self, checkpoint: Checkpoint, stage: Committed, progress: Progress, seconds: float) -> Progress:
        """Handle the commit of the job's last savepoint."""
        now_ms = self._clock.now_ms()
        checkpoint.reach(Stored(stage.cut), now_ms)
        checkpoint.reach(stage, now_ms)
        self._recorder.checkpoint(checkpoint)
        return progress.without_pending(stage.cut.committables)

    def subsumed(self, checkpoint: Checkpoint, stage: Subsumed, seconds: float) -> None:
        raise checkpoint.bug("step 9 of a job without checkpoints")

    def record(self) -> None:
        """Do nothing: there is no history."""

    write_history = record

    def close(self, why: str) -> None:
        """The attempt has ended: whoever waits, waits in vain."""
        self.give_up_savepoints("the attempt has ended")

    def on_shutdown(self, status: AttemptStatus, abort_output: Callable[[], None]) -> None:
        """Abort the output: without checkpoints it can never be committed."""
        abort_output()
        self._lease.release()


class Checkpoints(Savepoints):
    """A checkpoint is triggered by the round that begins, cut when that round is accepted, and then handled by the lane."""

    enabled = True
    steps: CheckpointSteps

    def __init__(
        self, steps: CheckpointSteps, around: Around, policy: CheckpointPolicy, history: CheckpointHistory
    ) -> None:
        super().__init__(steps, around)
        self._policy, self.history = policy, history
        self._failures = FailureCounter(policy.tolerable_failures)
        self._trigger = CheckpointTrigger(policy, self._now())
        self._asked: list[TriggerCheckpoint] = []
        """Commands that wait for a checkpoint which is not triggered yet."""
        self._held_until: float | None = None
        self._lane_seconds = 0.0
        """Steps 7 to 9 of the latest checkpoint."""
        self._confirmed: Counter[int] = Counter()
        """Committables of each sink, over all checkpoints of this attempt."""
        self._unsaved = True
        """Something has happened since the last checkpoint was cut; the first one after a start is always wanted."""
        self._released: set[str] = set()
        """State files that were needed since the last step 9, and may be unneeded now."""
        self._source_has_ended = False
        self._account_for_lost()

    @property
    def closed(self) -> bool:
        return self._source_has_ended and not self._policy.after_finish

    @property
    def all_saved(self) -> bool:
        """Whether, at the end of input, nothing is left for a checkpoint."""
        return self.closed or not self._unsaved

    @property
    def completed(self) -> tuple[int, ...]:
        """Completed checkpoints to notify with the next round, as with ``aborted`` ones."""
        return tuple(number for number, one in self._checkpoints() if one.is_committed and not one.notified)

    @property
    def aborted(self) -> tuple[int, ...]:
        return tuple(
            number for number, one in self._checkpoints() if isinstance(one.stage, Failed) and not one.notified
        )

    def _checkpoints(self) -> list[tuple[int, Checkpoint]]:
        return [(number, one) for number, one in self._all.items() if one.kind == CHECKPOINT]

    # -- when ------------------------------------------------------------------------------------------------------------

    def ask(self, command: TriggerCheckpoint) -> None:
        """Note the command. Every command is answered before the attempt has ended."""
        self._asked.append(command)

    def note_sources(self, *, stopping: bool, some_ended: bool) -> bool:
        """Note the state of the sources before a round is planned, and return whether anything has happened since the last cut.
        The last checkpoint of a job that stops is taken even if nothing is new."""
        self._unsaved |= stopping
        self._source_has_ended = some_ended
        return self._unsaved

    @property
    def is_full(self) -> bool:
        """Whether as many checkpoints as allowed are under way: the next one waits until one of them has ended."""
        return self._trigger.next_due() is None

    def due(self, early_ms: float = 0.0) -> bool:
        """Whether the next round should carry a barrier. ``early_ms``: how much before its time it may."""
        return self._trigger.due(self._now(), early_ms)

    def hold_ms(self, look: Look) -> float:
        """Return how long the next round should wait until its checkpoint may start; 0: the round begins.

        The last round carries a barrier, so it waits ``FOREVER``, which ends with the checkpoint under way. Any other waits a
        quarter of a round at most, and only if the lane is likely to be quicker. Otherwise checkpoints would come at every second
        interval if rounds are as long as the interval; or rounds would wait for slow storage.
        """
        if self.closed or not self.is_full:
            return 0.0
        if look.ending and self._unsaved:
            return FOREVER
        now, patience_ms = self._now(), look.half_round_ms / 2
        if self._held_until is None:
            quick = self._likely_seconds() * 1000 <= patience_ms
            if not (look.wanted and quick and self._trigger.late(now, look.half_round_ms)):
                return 0.0
            self._held_until = now + patience_ms
        return max(0.0, self._held_until - now)

    def _likely_seconds(self) -> float:
        """Estimate how long steps 7 to 9 take: as long as the last time, or as long as they have taken by now. So two rounds never
        wait for the same slow checkpoint."""
        now = self._now()
        since = [one.handed_over for _, one in self._checkpoints() if one.handed_over is not None and not one.is_over]
        return max(self._lane_seconds, (now - min(since, default=now)) / 1000)

    def rest_ms(self, rest_ms: float) -> float:
        """Return how much of a rest the next checkpoint allows. The rest ends with the interval: the checkpoint then contains the
        records that came meanwhile."""
        if self._asked:
            return 0.0
        due = self._trigger.next_due()
        return rest_ms if due is None else min(rest_ms, max(0.0, due - self._now()))

    # -- step 1 ----------------------------------------------------------------------------------------------------------

    def trigger_if_due(self, expected: set[SubtaskId], look: Look) -> Checkpoint | None:
        """Do step 1 for the round that begins, if a checkpoint is due. The last round always carries a barrier: its checkpoint
        commits the last output."""
        if self.closed:
            self._refuse_asked(CLOSED)
        if self.closed or self.is_full:
            return None
        # A checkpoint can only start with a round: the round nearest to the due time carries it, even if that is a little early.
        due = (look.ending and self._unsaved) or (look.wanted and self.due(look.half_round_ms))
        return self.trigger(expected) if due or self._asked else None

    def trigger(self, expected: Iterable[SubtaskId]) -> Checkpoint | None:
        """Take the next id (step 1). None if storage failed: the failure counts, and one too many raises ``CheckpointError``."""
        faults.point("C1.before-trigger", job_id=self._job_id)
        trigger_ms, before = self._clock.now_ms(), self._now()
        aligned_until = self._aligned_until(at_most=before)
        self._trigger.started(before)
        try:
            most = self._policy.concurrency
            taken = self._lease.take_id(at_least=self.history.highest_id + 1, spare=most - 1)
        except StorageError as error:
            self.abort(self._new(self._lease.last_id, trigger_ms), Reason.TRIGGER_FAILED, str(error))
            self._refuse_asked("checkpoint storage failed, so it has no id")
            return None
        checkpoint = self._new(taken, trigger_ms, frozenset(expected))
        checkpoint.aligned_until = aligned_until
        checkpoint.measure_from(before)
        checkpoint.passed("trigger", self._now())
        checkpoint.asked, self._asked = list(self._asked), []  # this checkpoint answers all waiting commands
        self._all[taken] = checkpoint
        self._log(taken, "step 1 triggered, %s to acknowledge", count(len(checkpoint.expected), "subtask"))
        faults.point("C1.triggered", checkpoint_id=taken)
        self._recorder.checkpoint(checkpoint)
        return checkpoint

    def _new(self, checkpoint_id: int, trigger_ms: int, expected: frozenset[SubtaskId] = frozenset()) -> Checkpoint:
        now = self._now()
        deadline = now + self._policy.timeout_ms
        return Checkpoint(checkpoint_id, self._lease.token, trigger_ms, now, deadline, expected)

    def _take_id(self) -> int:
        return self._lease.take_id(at_least=self.history.highest_id + 1)

    def aligned_ms(self, checkpoint: Checkpoint | None = None) -> float | None:
        """Return how long subtasks of the round that begins now may take input; None: until they have all of it.

        Every round is bounded, not only that of a checkpoint: a long round may be running when the next checkpoint becomes due.
        That round is interrupted at the moment at which the checkpoint turns unaligned, and the round that carries the checkpoint
        begins at once. So a checkpoint completes soon after the timeout, counted from its due time.
        """
        if self.closed or not self._policy.unaligned:
            return None
        now = self._now()
        until = checkpoint.aligned_until if checkpoint is not None else self._aligned_until(at_least=now)
        return max(0.0, until - now)

    def _aligned_until(self, *, at_least: float = 0.0, at_most: float = float("inf")) -> float:
        """Return when the next checkpoint turns unaligned. A requested checkpoint may be early; a checkpoint that waits, late."""
        expected = self._trigger.expected(self._now())
        return min(at_most, max(at_least, expected)) + self._policy.aligned_timeout_ms

    # -- the round that carries one --------------------------------------------------------------------------------------

    def round_begins(self, checkpoint: Checkpoint | None) -> float | None:
        """Return how long the round that begins now may take, in milliseconds, with the checkpoint that it carries, if any.

        While a round hangs, no checkpoint completes: one more expires with every timeout, and the first one that is not
        tolerated fails the job. A slow round that is tolerated continues: its results are valid.
        """
        self._held_until = None
        due = self._trigger.next_due() if checkpoint is None else None
        now, timeout_ms = self._now(), self._policy.timeout_ms
        first = checkpoint.deadline if checkpoint else max(now, due or 0.0) + timeout_ms
        return first - now + self._failures.tolerated * timeout_ms

    def round_hung(self, checkpoint: Checkpoint | None, message: str) -> None:
        """Raise ``CheckpointError``: the round was cancelled after the time of ``round_begins``."""
        self._failures.use_up()
        self._count_failure(checkpoint, Reason.EXPIRED, message)

    def round_failed(self, checkpoint: Checkpoint, error: Exception) -> None:
        self.abort(checkpoint, Reason.ROUND_FAILED, str(error))
        checkpoint.message = str(error)  # also of a checkpoint that has expired with its round
        self._recorder.checkpoint(checkpoint)

    def round_declined(self, checkpoint: Checkpoint | None, reason: str, written: set[str]) -> None:
        """Count a declined round. ``written``: files that the round has left. A round without a barrier that could not be stored
        counts too: otherwise the job would retry it for ever."""
        self._released |= written
        self._count_failure(checkpoint, Reason.DECLINED, reason)

    def round_accepted(self, context: RoundContext, before: Progress, after: Progress) -> None:
        self._unsaved = True
        self._released |= before.paths() - after.paths()
        for number in (*context.completed, *context.aborted):
            if number in self._all:
                self._all[number].notified = True
                self._forget_if_notified(self._all[number])

    def _forget_if_notified(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_over and checkpoint.notified:
            self._forget(checkpoint)

    # -- step 6 ----------------------------------------------------------------------------------------------------------

    def cut(self, checkpoint: Checkpoint, result: RoundResult, progress: Progress, planner: SourcePlanner) -> bool:
        """Fix the content of the checkpoint after step 6, and submit it to the lane. False: the checkpoint is aborted."""
        checkpoint.uid_hashes = {operator.id: operator.uid_hash for operator in progress.graph.operators}
        checkpoint.subtasks = tuple(_subtasks(result.acks, progress, self.steps.completed.latest_paths))
        if checkpoint.kind == SAVEPOINT:
            self._cut_savepoint(checkpoint, progress, planner, result.round)
            return True
        _acknowledge(checkpoint, result.acks, progress)
        checkpoint.ran(result.seconds * 1000, planner.behind())
        checkpoint.passed_ms[6] = self._clock.now_ms()
        if checkpoint.is_expired(self._now()):
            # The round itself is valid: its state stays, and its prepared output goes into the next checkpoint.
            self.abort(checkpoint, Reason.EXPIRED, f"round {result.round}", shown=Reason.EXPIRED.text)
            return False
        operators = progress.operator_states(planner.snapshots())
        if (too_large := self._too_large(operators)) is not None:
            self.abort(checkpoint, Reason.STATE_TOO_LARGE, too_large)
            return False
        finished = planner.finished and not progress.in_flight_records
        self.fix(checkpoint, operators, progress, round=result.round, finished=finished)
        self.steps.store(checkpoint)
        checkpoint.handed_over = self._now()
        number = checkpoint.checkpoint_id
        checkpoint.slow = self._clock.call_at(checkpoint.deadline / 1000, lambda: log.warning(_SLOW, number))
        self._unsaved = False
        return True

    def fix(
        self,
        checkpoint: Checkpoint,
        operators: list[OperatorState],
        progress: Progress | None = None,
        *,
        round: int,
        finished: bool = False,
    ) -> Cut:
        """Return what step 7 has to store. All acks have arrived, and nothing later is part of the checkpoint."""
        if not checkpoint.is_acknowledged:
            raise checkpoint.bug(f"stage {checkpoint.stage}, missing {sorted(checkpoint.missing)}")
        checkpoint.measure_from(self._now())
        confirmed = Counter(self._confirmed)
        return self._cut(checkpoint, operators, progress, round=round, finished=finished, confirmed=confirmed)

    def _too_large(self, operators: list[OperatorState]) -> str | None:
        """Describe a subtask whose state is too large for memory, if there is one."""
        most = self._policy.max_state_bytes
        for operator in operators if most is not None else ():
            for subtask, snapshot in enumerate(operator.subtasks):
                size = sum(file.size for file in snapshot.files())
                if most is not None and size > most:
                    return (
                        f"'{operator.name}' ({subtask + 1}/{operator.parallelism}) has {size:,} bytes of state, and "
                        f"{most:,} may be kept in memory; use execution.checkpointing.storage: filesystem, or raise "
                        "tidegate.checkpoint.max-state-size"
                    )
        return None

    # -- steps 7 to 9 ----------------------------------------------------------------------------------------------------

    def stored(self, checkpoint: Checkpoint, stage: Stored) -> None:
        """Handle the end of step 7. The checkpoint is still under way until step 9 is done."""
        if checkpoint.kind == SAVEPOINT:
            return self._savepoint_stored(checkpoint, stage)
        _stop_watching(checkpoint)
        checkpoint.reach(stage, self._clock.now_ms())
        for number, older in self._checkpoints():
            if number < checkpoint.checkpoint_id:
                self.abort(older, Reason.SUBSUMED)  # no lower id commits after a higher (I11)
        self._failures.completed()
        assert stage.sizes is not None
        checkpoint.measured(stage.sizes)
        checkpoint.passed("complete", self._now())
        self.history.remember(checkpoint.enter(self._now(), self._clock.now_ms()))
        self._recorder.checkpoint(checkpoint)

    def failed(self, checkpoint: Checkpoint, stage: Failed, seconds: float) -> None:
        """Handle a checkpoint that the lane has aborted. The failure counts, and one too many raises ``CheckpointError``.

        The round stays accepted. Its prepared output waits in the progress, before all later output, and goes into the next
        checkpoint. Never abort this output: the metadata may still appear (C5). A failed savepoint does not count.
        """
        if checkpoint.kind == SAVEPOINT:
            return self._savepoint_failed(checkpoint, stage)
        _stop_watching(checkpoint)
        self._lane_seconds = seconds
        self._unsaved = True
        if checkpoint.ending is not None and stage.reason is Reason.OUTCOME_UNKNOWN:
            checkpoint.reach(stage, self._clock.now_ms())
            self._trigger.ended(self._now())
            assert stage.error is not None
            raise stage.error  # storage will say to the next attempt whether the job was to end
        self.abort(checkpoint, stage.reason, stage.message, error=stage.error)

    def committed(self, checkpoint: Checkpoint, stage: Committed, progress: Progress, seconds: float) -> Progress:
        """Handle the end of step 8, and submit step 9 to the lane. Return the progress without the confirmed output."""
        number, confirmed = checkpoint.checkpoint_id, stage.cut.unconfirmed(self._confirmed)
        progress = progress.without_pending(confirmed)
        self._confirmed.update({sink: len(items) for sink, items in confirmed.items()})
        self._lane_seconds = seconds
        checkpoint.reach(stage, self._clock.now_ms())
        for command in checkpoint.asked:
            command.succeed(number)
        checkpoint.asked = []
        self._passed(checkpoint, "commit")
        needed = progress.paths() | self.paths()
        self.steps.clean_up(checkpoint, needed, self._released - needed)
        self._released = set()
        return progress

    def subsumed(self, checkpoint: Checkpoint, stage: Subsumed, seconds: float) -> None:
        """Handle the end of step 9: the next checkpoint may start."""
        self._lane_seconds += seconds
        checkpoint.reach(stage, self._clock.now_ms())
        self._passed(checkpoint, "subsume")
        self._trigger.ended(self._now())
        self._forget_if_notified(checkpoint)

    def record(self) -> None:
        """Write failed checkpoints to the history as soon as the lane has nothing else to do."""
        if self.history.unstored and self.steps.at_rest:
            self.steps.record()

    def write_history(self) -> None:
        self.steps.write_history()

    def _enter_savepoint(self, checkpoint: Checkpoint) -> None:
        self.history.remember(checkpoint.enter(self._now(), self._clock.now_ms()))
        super()._enter_savepoint(checkpoint)

    def _passed(self, checkpoint: Checkpoint, step: str) -> None:
        checkpoint.passed(step, self._now())
        if checkpoint.entry is not None:
            checkpoint.entry = self.history.amend(checkpoint.entry, steps_ms=dict(checkpoint.steps_ms))
        self._recorder.checkpoint(checkpoint)

    # -- the other way out -----------------------------------------------------------------------------------------------

    def abort(
        self,
        checkpoint: Checkpoint,
        reason: Reason,
        message: str = "",
        *,
        shown: str | None = None,
        error: Exception | None = None,
    ) -> None:
        """Abort a pending checkpoint. Raises ``CheckpointError`` if more failed in a row than tolerated. ``shown``: the text for
        people, if it is not the message."""
        if not checkpoint.is_pending:
            return
        checkpoint.reach(Failed(reason, message, error), self._clock.now_ms())
        checkpoint.message = message if shown is None else shown
        if reason is not Reason.ROUND_FAILED:  # else the attempt ends, and answers all
            self._refuse(checkpoint, checkpoint.message)
        self._trigger.ended(self._now())
        # Why a round failed is in the log at the restart that follows, or in the job's error.
        told = message.partition("\n")[0] if reason is Reason.ROUND_FAILED else message
        self._log(checkpoint.checkpoint_id, "aborted: %s: %s", reason.text, told, level=logging.WARNING)
        self.history.remember(checkpoint.enter(self._now(), self._clock.now_ms()))
        self._recorder.checkpoint(checkpoint)
        faults.point("C2.aborted", checkpoint_id=checkpoint.checkpoint_id)
        self._failures.failed(checkpoint.checkpoint_id, reason, message)

    def _count_failure(self, checkpoint: Checkpoint | None, reason: Reason, message: str) -> None:
        """Do as ``abort``. Without a checkpoint under way the failure is counted and recorded too, under no id."""
        if checkpoint is not None:
            return self.abort(checkpoint, reason, message)
        log.warning("job %s: counts as a failed checkpoint: %s: %s", self._job_id, reason.text, message)
        nobody = self._new(NO_ID, self._clock.now_ms())
        nobody.reach(Failed(reason, message), self._clock.now_ms())
        self.history.remember(nobody.enter(self._now(), self._clock.now_ms()))
        self._recorder.checkpoint(nobody)
        self._failures.failed(NO_ID, reason, message)

    def _refuse(self, checkpoint: Checkpoint, why: str) -> None:
        for command in checkpoint.asked:
            command.fail(_not_taken(f"checkpoint {checkpoint.checkpoint_id}: {why}"))
        checkpoint.asked = []

    def _refuse_asked(self, why: str) -> None:
        """Refuse the waiting commands: the next checkpoint could not be triggered. Those under way may still complete."""
        asked, self._asked = self._asked, []
        for command in asked:
            command.fail(_not_taken(why))

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """The attempt has ended: whoever waits, waits in vain."""
        for _, checkpoint in self._checkpoints():
            _stop_watching(checkpoint)
            self._refuse(checkpoint, why)
        self._refuse_asked(why)
        self.give_up_savepoints("the attempt has ended")

    def on_shutdown(self, status: AttemptStatus, abort_output: Callable[[], None] = lambda: None) -> None:
        """Retain or delete the checkpoints and end the lease. The job has ended and commits nothing more.

        FINISHED deletes (the status stays, so that a restart knows), CANCELLED follows the retention, FAILED and SUSPENDED retain.
        RUNNING means that the job continues in another attempt: everything stays. ``abort_output``: see ``discard_all``.
        """
        self.steps.stop_if_fenced()
        for _, checkpoint in self._checkpoints():
            self.abort(checkpoint, Reason.JOB_STOPPING, shown="the attempt has ended")
        self.history.store()
        retain = self._policy.retention is Retention.RETAIN_ON_CANCELLATION
        discard = status is AttemptStatus.FINISHED or (status is AttemptStatus.CANCELLED and not retain)
        try:
            if discard:
                self.steps.completed.discard_all(status, abort_output)
            else:
                self._lease.record_end(status)
            self._lease.release()
        except StorageError as error:
            # The next attempt sweeps the remaining files; a finished job left a finished checkpoint.
            log.warning("job %s: %s, and cleaning up failed: %s", self._job_id, status.value, error)
            return
        log.info("job %s: %s, checkpoints %s", self._job_id, status.value, "deleted" if discard else "kept")

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _account_for_lost(self) -> None:
        """Add to the history the checkpoints that earlier attempts had under way, or had completed but not entered, when they were
        killed."""
        completed = {point.checkpoint_id for point in self.steps.completed.retained}
        known = self.history.highest_id or self._lease.ids_behind
        if not known and completed and self._lease.live.origin:
            known = min(completed) - 1  # ids began after those of another directory
        lost = range(known + 1, self._lease.live.first_id)
        self.history.add(*(self._lost_entry(number, number in completed) for number in lost[-DEFAULT_LIMIT:]))

    def _lost_entry(self, checkpoint_id: int, completed: bool) -> HistoryEntry:
        if not completed:
            return blank_entry(checkpoint_id, CheckpointStatus.FAILED, Reason.DRIVER_LOST.name)
        try:
            content = self._lease.files.read_bytes(metadata_path(checkpoint_id))
            return entry_of(decode_metadata(metadata_path(checkpoint_id), content), len(content))
        except TidegateError:
            return blank_entry(checkpoint_id, CheckpointStatus.COMPLETED)

    def validate(self, carried: Checkpoint | None) -> None:
        super().validate(carried)
        mine = [one for _, one in self._checkpoints()]
        under_way = sum(not one.is_over for one in mine)
        assert self._trigger.under_way == under_way, f"{self._trigger.under_way} counted, {under_way} under way"
        stages = [_ORDER[type(one.stage)] for one in mine if not isinstance(one.stage, Failed)]
        assert stages == sorted(stages), f"a later checkpoint is ahead of an older one (I11): {mine}"
        assert all(not one.asked for one in mine if one.is_committed), (
            "who asked for a committed checkpoint has the answer"
        )
        unknown = [one for one in mine if isinstance(one.stage, Failed) and one.is_decided]
        ended = [one for one in mine if not one.is_pending and one not in unknown]
        assert all(one.entry is not None for one in ended), "the history has all that ended"

    @property
    def _job_id(self) -> str:
        return self._lease.claim.job_id

    def _now(self) -> float:
        return self._clock.monotonic() * 1000

    def _log(self, checkpoint_id: int, text: str, *args: object, level: int = logging.INFO) -> None:
        log.log(level, "job %s: checkpoint %d: " + text, self._job_id, checkpoint_id, *args)


_ORDER: dict[type, int] = {Subsumed: 0, Committed: 1, Stored: 2, Cut: 3, Triggered: 4}


def _stop_watching(checkpoint: Checkpoint) -> None:
    if checkpoint.slow is not None:
        checkpoint.slow.cancel()
        checkpoint.slow = None


def _not_taken(why: str) -> CheckpointError:
    return CheckpointError(_NOT_TAKEN, found=why, cure="read the job's log, and retry the command")


def _acknowledge(checkpoint: Checkpoint, acks: list[Ack], progress: Progress) -> None:
    """Do step 6, with the figures."""
    for ack in sorted(acks, key=lambda ack: (ack.chain, ack.subtask)):
        chain = progress.graph.chains[ack.chain]
        for operator in chain.operators:
            figures = _figures(ack, operator, is_first=operator is chain.head.operator)
            checkpoint.acknowledge(operator.uid_hash, ack.subtask, figures)


def _subtasks(acks: list[Ack], progress: Progress, before: Collection[str]) -> Iterator[SubtaskFigures]:
    """Yield the figures of single subtasks. ``before``: state files of the previous checkpoint."""
    for ack in sorted(acks, key=lambda ack: (ack.chain, ack.subtask)):
        head, acknowledged_ms = progress.graph.chains[ack.chain].head.operator.id, ack.work.acknowledged_ms or None
        for operator, snapshot in ack.snapshots.items():
            files, is_head = snapshot.files(), operator == head
            snapshot_ms = round(ack.snapshot_seconds.get(operator, 0.0) * 1000, 1)
            if is_head or files or snapshot_ms >= _WORTH_MS:
                yield SubtaskFigures(
                    operator,
                    ack.subtask,
                    round(ack.seconds * 1000, 1) if is_head else 0.0,
                    round(ack.align_seconds * 1000, 1) if is_head else 0.0,
                    snapshot_ms,
                    sum(file.size for file in files),
                    sum(file.size for file in files if file.path not in before),
                    ack.in_flight_bytes if is_head else 0,
                    acknowledged_ms,
                )


def _figures(ack: Ack, operator: Operator, *, is_first: bool) -> OperatorFigures:
    snapshot_ms = round(ack.snapshot_seconds.get(operator.id, 0.0) * 1000, 1)
    if not is_first:
        return OperatorFigures(name=operator.label, snapshot_ms=snapshot_ms)
    return OperatorFigures(
        name=operator.label,
        run_ms=round(ack.seconds * 1000, 1),
        align_ms=round(ack.align_seconds * 1000, 1),
        snapshot_ms=snapshot_ms,
        in_flight_bytes=ack.in_flight_bytes,
        in_flight_records=ack.in_flight_records,
    )
