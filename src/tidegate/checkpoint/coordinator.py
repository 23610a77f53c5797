"""The checkpoint coordinator: takes ids, counts, remembers. Each decision is made by a class of its own.

The job's thread drives it: ``due`` -> ``trigger`` (1) -> a round carries the barrier (2-6) -> ``cut`` -> what is to be stored
goes to the checkpoint lane, whose answers come back as ``stored`` or ``not_stored`` (7) and ``through`` (8 and 9); or ``abort``
at any point before 7. But for the id it takes, it never waits for storage.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

from tidegate.base import faults
from tidegate.base.clock import Clock
from tidegate.base.counts import count
from tidegate.base.errors import InternalError, StorageError, TidegateError
from tidegate.checkpoint.completed import CompletedCheckpoints, OutcomeUnknownError
from tidegate.checkpoint.failures import CheckpointFailureReason, FailureCounter
from tidegate.checkpoint.history import (
    DEFAULT_LIMIT,
    NO_ID,
    CheckpointHistory,
    CheckpointStatus,
    HistoryEntry,
    blank_entry,
    entry_of,
    output_of,
)
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.metadata import CHECKPOINT, CheckpointMetadata, OperatorState, decode_metadata, metadata_path
from tidegate.checkpoint.pending import CompletedCheckpoint, PendingCheckpoint, SubtaskId
from tidegate.checkpoint.policy import CheckpointPolicy, Retention
from tidegate.checkpoint.trigger import CheckpointTrigger

logger = logging.getLogger(__name__)


class CheckpointCoordinator:
    """One for each attempt of a job, used by the job's thread only. ``completed`` is the checkpoint lane's while rounds run."""

    def __init__(
        self,
        *,
        job_name: str,
        policy: CheckpointPolicy,
        lease: Lease,
        completed: CompletedCheckpoints,
        history: CheckpointHistory,
        clock: Clock,
    ) -> None:
        self.job_id, self.job_name = lease.claim.job_id, job_name
        self.completed, self.history = completed, history
        self._policy, self._lease, self._clock = policy, lease, clock
        self._failures = FailureCounter(policy.tolerable_failures)
        self._trigger = CheckpointTrigger(policy, self._now())
        self._pending: dict[int, PendingCheckpoint] = {}
        self._account_for_lost()

    # -- step 1 --

    def due(self, early_ms: float = 0.0) -> bool:
        """Whether the next round should carry a barrier. ``early_ms``: how much before its time it may."""
        return self._trigger.due(self._now(), early_ms)

    def late(self, early_ms: float = 0.0) -> bool:
        """Whether it is time for the next checkpoint, and only the one under way is in the way."""
        return self._trigger.late(self._now(), early_ms)

    def due_in_ms(self) -> float | None:
        """Until the next one is due; None while another must end first."""
        due = self._trigger.next_due()
        return None if due is None else max(0.0, due - self._now())

    @property
    def ends_with_sources(self) -> bool:
        """None is taken any more when a source has ended."""
        return not self._policy.after_finish

    @property
    def is_full(self) -> bool:
        """As many checkpoints as may be are under way: the next one waits until one of them has ended."""
        return self._trigger.next_due() is None

    def trigger(self, expected: Iterable[SubtaskId], kind: str = CHECKPOINT) -> PendingCheckpoint | None:
        """Step 1: take the next id. None if storage failed: counted, ``CheckpointError`` when once too often."""
        faults.point("C1.before-trigger", job_id=self.job_id)
        trigger_ms, began = self._clock.now_ms(), self._now()
        aligned_until = self._aligned_until(at_most=began)
        self._trigger.started(began)
        try:
            most = self._policy.concurrency
            checkpoint_id = self._lease.take_id(at_least=self.history.highest_id + 1, spare=most - 1)
        except StorageError as error:
            lost = PendingCheckpoint(self._lease.last_id, trigger_ms, self._deadline(), frozenset(), kind)
            self.abort(lost, CheckpointFailureReason.TRIGGER_FAILED, str(error))
            return None
        pending = PendingCheckpoint(checkpoint_id, trigger_ms, self._deadline(), frozenset(expected), kind)
        pending.aligned_until = aligned_until
        pending.figures.begins(began)
        pending.figures.passed("trigger", self._now())
        self._pending[checkpoint_id] = pending
        self._log(checkpoint_id, "step 1 triggered, %s to acknowledge", count(len(pending.expected), "subtask"))
        faults.point("C1.triggered", checkpoint_id=checkpoint_id)
        return pending

    def aligned_ms(self, pending: PendingCheckpoint | None) -> float | None:
        """How long subtasks of the round that begins now may take input; None: until they have all of it.

        Every round is bounded, not only that of a checkpoint: a long one may be running when the next checkpoint becomes due. It is
        cut at the same moment at which that checkpoint turns unaligned, and the round that carries it begins at once. So
        a checkpoint is there soon after the timeout, counted from when it was due.
        """
        if not self._policy.unaligned:
            return None
        until = pending.aligned_until if pending is not None else self._aligned_until(at_least=self._now())
        return max(0.0, until - self._now())

    def _aligned_until(self, *, at_least: float = 0.0, at_most: float = float("inf")) -> float:
        """When the next checkpoint turns unaligned. One that is asked for may be early, and one whose turn has not come late."""
        expected = self._trigger.expected(self._now())
        return min(at_most, max(at_least, expected)) + self._policy.aligned_timeout_ms

    def take_ahead(self) -> None:
        """The ids of the next steps 1, as many as may come before this is done again, if storage is slow. That it fails is told
        when an id is needed."""
        try:
            self._lease.take_ahead(self._policy.concurrency)
        except StorageError as error:
            logger.warning("no id taken ahead: %s", error)

    def is_expired(self, pending: PendingCheckpoint) -> bool:
        return pending.is_expired(self._now())

    def patience_ms(self, pending: PendingCheckpoint | None) -> float:
        """How long the round that begins now may take, with the checkpoint it carries, if it carries one.

        While a round hangs no checkpoint completes: with every timeout that passes one more has expired, and the first
        that is not tolerated fails the job. A slow round that is tolerated is left alone: its results are good.
        """
        due = self._trigger.next_due() if pending is None else None
        first = pending.deadline if pending else max(self._now(), due or 0.0) + self._policy.timeout_ms
        return first - self._now() + self._failures.tolerated * self._policy.timeout_ms

    def expire(self, pending: PendingCheckpoint | None, message: str) -> None:
        """The round was cut off behind ``patience_ms``: raises ``CheckpointError``."""
        self._failures.use_up()
        self.fail(pending, CheckpointFailureReason.EXPIRED, message)

    # -- step 7 --

    def cut(
        self,
        pending: PendingCheckpoint,
        operators: list[OperatorState],
        *,
        round: int,
        finished: bool = False,
        properties: dict[str, str] | None = None,
    ) -> CheckpointMetadata:
        """All acks are in: what step 7 has to store. What comes later is not part of it."""
        self._refuse_incomplete(pending)
        pending.figures.begins(self._now())
        return CheckpointMetadata(
            checkpoint_id=pending.checkpoint_id,
            job_id=self.job_id,
            job_name=self.job_name,
            token=self._lease.token,
            trigger_ms=pending.trigger_ms,
            complete_ms=self._clock.now_ms(),
            round=round,
            kind=pending.kind,
            operators=operators,
            finished=finished,
            properties=properties or {},
        )

    def too_large(self, operators: list[OperatorState]) -> str | None:
        """What has more state than may be kept in memory, if anything does."""
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

    def stored(self, pending: PendingCheckpoint, completed: CompletedCheckpoint) -> None:
        """Step 7 is done. The checkpoint is still under way until it is ``through``."""
        pending.over = True
        self._pending.pop(pending.checkpoint_id, None)
        for older in [other for number, other in self._pending.items() if number < pending.checkpoint_id]:
            self.abort(older, CheckpointFailureReason.SUBSUMED)  # no lower id commits after a higher (I11)
        self._failures.completed()
        pending.figures.stored(completed.sizes)
        pending.figures.passed("complete", self._now())
        round, output = completed.metadata.round, output_of(completed.metadata)
        self.history.remember(self._entry(pending, CheckpointStatus.COMPLETED, round=round, output=output))

    def not_stored(self, pending: PendingCheckpoint, error: StorageError) -> None:
        """Step 7 failed: aborted and counted, ``CheckpointError`` when once too often. The round stays accepted and what it
        prepared goes into the next checkpoint: never abort it, the metadata may yet appear (C5)."""
        unknown = isinstance(error, OutcomeUnknownError)
        reason = CheckpointFailureReason.OUTCOME_UNKNOWN if unknown else CheckpointFailureReason.STORAGE_FAILED
        self.abort(pending, reason, str(error))

    def committed(self, pending: PendingCheckpoint) -> None:
        """Step 8 is done."""
        self._passed(pending, "commit")

    def through(self, pending: PendingCheckpoint) -> None:
        """A stored checkpoint is committed (8) and has cleaned up (9): there is room for the next."""
        self._passed(pending, "subsume")
        self._trigger.ended(self._now())

    # -- the other way out --

    def abort(self, pending: PendingCheckpoint, reason: CheckpointFailureReason, message: str = "") -> None:
        """Give a pending checkpoint up. Raises ``CheckpointError`` if more failed in a row than tolerated."""
        if pending.over:
            return
        pending.over = True
        self._pending.pop(pending.checkpoint_id, None)
        self._trigger.ended(self._now())
        # Why a round failed is in the log at the restart that follows, or in the job's error.
        told = message.partition("\n")[0] if reason is CheckpointFailureReason.ROUND_FAILED else message
        self._log(pending.checkpoint_id, "aborted: %s: %s", reason.text, told, level=logging.WARNING)
        self.history.remember(self._entry(pending, CheckpointStatus.FAILED, reason=reason.name, message=message))
        faults.point("C2.aborted", checkpoint_id=pending.checkpoint_id)
        self._failures.failed(pending.checkpoint_id, reason, message)

    def fail(self, pending: PendingCheckpoint | None, reason: CheckpointFailureReason, message: str) -> None:
        """As ``abort``; without a checkpoint under way what failed is counted and remembered all the same, under no id."""
        if pending is not None:
            return self.abort(pending, reason, message)
        logger.warning("job %s: counts as a failed checkpoint: %s: %s", self.job_id, reason.text, message)
        nobody = PendingCheckpoint(NO_ID, self._clock.now_ms(), self._deadline(), frozenset())
        self.history.remember(self._entry(nobody, CheckpointStatus.FAILED, reason=reason.name, message=message))
        self._failures.failed(NO_ID, reason, message)

    def write_history(self) -> None:
        """Store what is remembered; ``FencedError`` if the history is a newer attempt's by now."""
        if self.history.unstored:
            self._stop_if_fenced()
            self.history.store()

    def on_shutdown(self, status: AttemptStatus, abort_output: Callable[[], None] = lambda: None) -> None:
        """The job has ended and committed all it ever will: keep or delete its checkpoints, end the lease.

        FINISHED deletes (the status stays, so that a restart knows), CANCELLED as the retention says, FAILED and SUSPENDED keep.
        RUNNING means that the job goes on in another attempt: all stays. ``abort_output``: see ``discard_all``.
        """
        self._stop_if_fenced()
        for pending in list(self._pending.values()):
            self.abort(pending, CheckpointFailureReason.JOB_STOPPING)
        self.history.store()
        retain = self._policy.retention is Retention.RETAIN_ON_CANCELLATION
        discard = status is AttemptStatus.FINISHED or (status is AttemptStatus.CANCELLED and not retain)
        try:
            if discard:
                self.completed.discard_all(status, abort_output)
            else:
                self._lease.record_end(status)
            self._lease.release()
        except StorageError as error:
            # Whatever was not deleted is swept by the next attempt; a finished job left a finished checkpoint.
            logger.warning("job %s: %s, and cleaning up failed: %s", self.job_id, status.value, error)
            return
        logger.info("job %s: %s, checkpoints %s", self.job_id, status.value, "deleted" if discard else "kept")

    # -- inside --

    def _account_for_lost(self) -> None:
        """Enter what attempts before this one had under way, or completed and not entered, when they were killed."""
        completed = {point.checkpoint_id for point in self.completed.retained}
        known = self.history.highest_id or self._lease.ids_behind
        if not known and completed and self._lease.live.origin:
            known = min(completed) - 1  # ids began behind those of another directory
        lost = range(known + 1, self._lease.live.first_id)
        self.history.add(*(self._lost_entry(number, number in completed) for number in lost[-DEFAULT_LIMIT:]))

    def _lost_entry(self, checkpoint_id: int, completed: bool) -> HistoryEntry:
        if not completed:
            return blank_entry(checkpoint_id, CheckpointStatus.FAILED, CheckpointFailureReason.DRIVER_LOST.name)
        try:
            content = self._lease.files.read_bytes(metadata_path(checkpoint_id))
            return entry_of(decode_metadata(metadata_path(checkpoint_id), content), len(content))
        except TidegateError:
            return blank_entry(checkpoint_id, CheckpointStatus.COMPLETED)

    def _passed(self, pending: PendingCheckpoint, step: str) -> None:
        pending.figures.passed(step, self._now())
        self.history.amend(pending.checkpoint_id, steps_ms=dict(pending.figures.steps_ms))

    def _entry(
        self,
        pending: PendingCheckpoint,
        status: CheckpointStatus,
        *,
        round: int = 0,
        output: int | None = None,
        reason: str = "",
        message: str = "",
    ) -> HistoryEntry:
        end_ms, figures = self._clock.now_ms(), pending.figures
        return HistoryEntry(
            checkpoint_id=pending.checkpoint_id,
            token=self._lease.token,
            kind=pending.kind,
            status=status,
            trigger_ms=pending.trigger_ms,
            end_ms=end_ms,
            duration_ms=self._now() - (pending.deadline - self._policy.timeout_ms),
            round=round,
            size=figures.size,
            reason=reason,
            message=message,
            incremental=figures.incremental,
            in_flight_bytes=figures.in_flight_bytes,
            in_flight_records=figures.in_flight_records,
            behind=figures.behind,
            output=output,
            steps_ms=dict(figures.steps_ms),
            operators=dict(figures.operators),
        )

    def _refuse_incomplete(self, pending: PendingCheckpoint) -> None:
        if not pending.is_acknowledged:
            raise InternalError(
                "A checkpoint completes only when every subtask has acknowledged.",
                where=f"job {self.job_id}, checkpoint {pending.checkpoint_id}",
                found=f"over {pending.over}, missing {pending.missing}",
            )

    def _stop_if_fenced(self) -> None:
        """If a newer attempt is there, what failed may be its tidying up, and there is no point in going on."""
        with contextlib.suppress(StorageError):
            self._lease.check()

    def _deadline(self) -> float:
        return self._now() + self._policy.timeout_ms

    def _now(self) -> float:
        return self._clock.monotonic() * 1000

    def _log(self, checkpoint_id: int, text: str, *args: object, level: int = logging.INFO) -> None:
        logger.log(level, "job %s: checkpoint %d: " + text, self.job_id, checkpoint_id, *args)
