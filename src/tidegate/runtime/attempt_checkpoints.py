"""The checkpoints of an attempt, as the job's thread sees them: when to take one, what it holds, what the lane has answered."""

from __future__ import annotations

import logging
from collections import Counter

from tidegate.base.clock import FOREVER, Clock, Timer
from tidegate.base.errors import RefusedError
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.failures import CheckpointFailureReason
from tidegate.checkpoint.figures import OperatorFigures
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.checkpoint.savepoint import Ending, NewSavepoint
from tidegate.graph.plan import Operator
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.checkpoint_lane import CheckpointLane, Committed, Cut, NotCopied, NotStored, Stored, Through
from tidegate.runtime.commands import TriggerCheckpoint
from tidegate.runtime.inbox import RoundEnded
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.requests import CheckpointRequests
from tidegate.runtime.savepoint_lane import SavepointLane
from tidegate.runtime.view import JobRecorder

log = logging.getLogger(__name__)

CLOSED = "a source has ended, and execution.checkpointing.checkpoints-after-tasks-finish is false"
_SLOW = (
    "checkpoint %d: its metadata is not stored after execution.checkpointing.timeout; rounds go on, "
    "and no output is committed until storage answers"
)


class AttemptCheckpoints:
    """``coordinator`` None: the job takes none. Each is triggered by the round that begins, cut when that round is accepted, and
    then in the lane's hands."""

    def __init__(
        self,
        coordinator: CheckpointCoordinator | None,
        lane: CheckpointLane,
        savepoints: SavepointLane,
        lease: Lease,
        recorder: JobRecorder,
        clock: Clock,
    ) -> None:
        self._coordinator, self._lane, self._recorder, self._clock = coordinator, lane, recorder, clock
        self._savepoints, self._lease = savepoints, lease
        if coordinator is not None:
            coordinator.history.listener = recorder.entered
        self._requests = CheckpointRequests()
        self._watched: dict[int, Timer] = {}
        self._held_until: float | None = None
        self._confirmed: Counter[int] = Counter()  # committables of each sink, over all checkpoints of this attempt
        self.unsaved = True
        """Something has happened since the last checkpoint was cut; the first one after a start is always wanted."""
        self.released: set[str] = set()
        """State files that were needed since step 9 last looked, and maybe are no more."""
        self.source_has_ended = False
        self.completed: list[int] = []
        """To be told with the next round, as ``aborted`` ones are."""
        self.aborted: list[int] = []

    @property
    def enabled(self) -> bool:
        return self._coordinator is not None

    @property
    def closed(self) -> bool:
        """A source has ended, and the job was told to take none from then on."""
        return self.source_has_ended and self._coordinator is not None and self._coordinator.ends_with_sources

    @property
    def all_saved(self) -> bool:
        """At the end of input: whether nothing is left for a checkpoint."""
        return self._coordinator is None or self.closed or not self.unsaved

    # -- step 1 ----------------------------------------------------------------------------------------------------------

    def ask(self, command: TriggerCheckpoint) -> None:
        if self._coordinator is not None:
            return self._requests.add(command)
        rule = "A checkpoint that was asked for could not be taken."
        command.fail(
            RefusedError(rule, found="the job takes no checkpoints", cure="set execution.checkpointing.interval")
        )

    def hold_ms(self, *, wanted: bool, ending: bool, half_round_ms: float) -> float:
        """How long the next round should wait for room for its checkpoint; 0: it goes on.

        The last round carries a barrier, so it waits ``FOREVER``, which ends with the checkpoint under way. Any other waits a
        quarter of a round at most, and only if the lane is likely to be quicker. Else checkpoints would come at every second beat
        where rounds are as long as the interval; or rounds would wait for storage that is slow.
        """
        coordinator = self._coordinator
        if coordinator is None or self.closed or not coordinator.is_full:
            return 0.0
        if ending and self.unsaved:
            return FOREVER
        now, patience_ms = self._clock.monotonic() * 1000, half_round_ms / 2
        if self._held_until is None:
            quick = self._lane.likely_seconds * 1000 <= patience_ms
            if not (wanted and quick and coordinator.late(half_round_ms)):
                return 0.0
            self._held_until = now + patience_ms
        return max(0.0, self._held_until - now)

    def rest_ms(self, rest_ms: float) -> float:
        """How much of a rest the next checkpoint leaves. It ends with the interval: what came meanwhile is in it."""
        if self._coordinator is None or self._requests.waiting:
            return 0.0
        due_ms = self._coordinator.due_in_ms()
        return rest_ms if due_ms is None else min(rest_ms, due_ms)

    def trigger(
        self, expected: set[tuple[str, int]], *, wanted: bool, ending: bool, half_round_ms: float
    ) -> PendingCheckpoint | None:
        """Step 1, for the round that begins. The last one always carries a barrier: it commits the last output."""
        coordinator = self._coordinator
        if self.closed:
            self._requests.refuse_waiting(CLOSED)
        if coordinator is None or self.closed or coordinator.is_full:
            return None
        # Rounds are the grid checkpoints lie on: the one nearest to the beat carries it, be it a little early.
        due = (ending and self.unsaved) or (wanted and coordinator.due(half_round_ms))
        if not due and not self._requests.waiting:
            return None
        pending = coordinator.trigger(expected)
        if pending is None:
            self._requests.refuse_waiting("checkpoint storage gave no id for it")
        else:
            self._requests.attach(pending.checkpoint_id)
            self._recorder.triggered(pending)
        return pending

    def take_id(self) -> int:
        """For a savepoint: checkpoints and savepoints count together."""
        history = self._coordinator.history.highest_id if self._coordinator is not None else 0
        return self._lease.take_id(at_least=history + 1)

    def aligned_ms(self, pending: PendingCheckpoint | None = None) -> float | None:
        """So long subtasks of a round that begins now take input; None: until they have all of it."""
        return None if self._coordinator is None or self.closed else self._coordinator.aligned_ms(pending)

    # -- the round that carries one --------------------------------------------------------------------------------------

    def round_begins(self, pending: PendingCheckpoint | None) -> float | None:
        """How long it may take, in milliseconds; None: nothing bounds it."""
        self._held_until = None
        return None if self._coordinator is None else self._coordinator.patience_ms(pending)

    def round_hung(self, pending: PendingCheckpoint | None, message: str) -> None:
        """It was cut off: raises ``CheckpointError``, unless the job takes no checkpoints."""
        if self._coordinator is not None:
            self._coordinator.expire(pending, message)

    def round_failed(self, pending: PendingCheckpoint | None, error: Exception) -> None:
        if pending is not None and self._coordinator is not None:
            self._coordinator.abort(pending, CheckpointFailureReason.ROUND_FAILED, str(error))
            self._recorder.failed(pending.checkpoint_id, str(error))

    def round_declined(self, pending: PendingCheckpoint | None, reason: str) -> None:
        """A round without a barrier that could not be stored counts too: otherwise it would be tried for ever."""
        assert self._coordinator is not None
        if pending is not None:
            self._give_up(pending.checkpoint_id, reason)
        self._coordinator.fail(pending, CheckpointFailureReason.DECLINED, reason)

    def round_accepted(self, context: RoundContext, before: Progress, after: Progress) -> None:
        self.unsaved = True
        self.released |= before.paths() - after.paths()
        self.completed = [number for number in self.completed if number not in context.completed]
        self.aborted = [number for number in self.aborted if number not in context.aborted]

    # -- steps 7 to 9 ----------------------------------------------------------------------------------------------------

    def cut(
        self,
        pending: PendingCheckpoint,
        ended: RoundEnded,
        progress: Progress,
        planner: SourcePlanner,
        round: int,
        ending: Ending | None = None,
    ) -> bool:
        """Step 6 is done: what the checkpoint holds is fixed, and the lane stores it. ``ending``: the job ends with it. False: it
        took too long, and is given up."""
        assert self._coordinator is not None
        _acknowledge(pending, ended, progress)
        pending.figures.fell_behind(planner.behind())
        self._recorder.step(pending.checkpoint_id, 6)
        if self._coordinator.is_expired(pending):
            # The round itself is fine: its state stays, and what its sinks prepared goes into the next checkpoint.
            self._give_up(pending.checkpoint_id, CheckpointFailureReason.EXPIRED.text)
            self._coordinator.abort(pending, CheckpointFailureReason.EXPIRED, f"round {round}")
            return False
        operators = progress.operator_states(planner.snapshots())
        if (too_large := self._coordinator.too_large(operators)) is not None:
            self._give_up(pending.checkpoint_id, too_large)
            self._coordinator.abort(pending, CheckpointFailureReason.STATE_TOO_LARGE, too_large)
            return False
        properties = ending.properties() if ending is not None else {}
        metadata = self._coordinator.cut(
            pending,
            operators,
            round=round,
            finished=planner.finished and not progress.in_flight_records,
            properties=properties,
        )
        savepoint = NewSavepoint.of(ending, self._lease.files, metadata) if ending is not None else None
        self._lane.checkpoint(Cut(pending, metadata, progress.committables, Counter(self._confirmed), savepoint))
        self._watched[pending.checkpoint_id] = self._clock.call_at(
            pending.deadline / 1000, lambda: log.warning(_SLOW, pending.checkpoint_id)
        )
        self.unsaved = False
        return True

    def stored(self, event: Stored) -> None:
        assert self._coordinator is not None
        self._watched.pop(event.cut.checkpoint_id).cancel()
        self._recorder.step(event.cut.checkpoint_id, 7, size=event.completed.size)
        self._coordinator.stored(event.cut.pending, event.completed)

    def not_stored(self, event: NotStored) -> None:
        """What the checkpoint covers still waits in the progress, in front of all that came later."""
        assert self._coordinator is not None
        self._watched.pop(event.cut.checkpoint_id).cancel()
        self.unsaved = True
        self._give_up(event.cut.checkpoint_id, str(event.error))
        self._coordinator.not_stored(event.cut.pending, event.error)

    def not_copied(self, event: NotCopied) -> None:
        """The job goes on, and counts no failure of its own."""
        self.unsaved = True
        if event.cut is not None and self._coordinator is not None:
            self._watched.pop(event.cut.checkpoint_id).cancel()
            self._give_up(event.cut.checkpoint_id, str(event.error))
            self._coordinator.abort(event.cut.pending, CheckpointFailureReason.SAVEPOINT_FAILED, str(event.error))

    def committed(self, event: Committed, progress: Progress) -> Progress:
        """Step 8 is done, step 9 goes into the lane. Gives the progress without what is confirmed."""
        number, confirmed = event.cut.checkpoint_id, event.cut.unconfirmed(self._confirmed)
        progress = progress.without_pending(confirmed)
        self._confirmed.update({sink: len(items) for sink, items in confirmed.items()})
        self.completed.append(number)
        self._requests.complete(number)
        self._recorder.step(number, 8)
        if self._coordinator is not None:
            self._coordinator.committed(event.cut.pending)
        needed = progress.paths() | self._lane.paths() | self._savepoints.paths()
        self._lane.clean_up(event.cut, needed, self.released - needed)
        self.released = set()
        return progress

    def through(self, event: Through) -> None:
        assert self._coordinator is not None
        self._recorder.step(event.cut.checkpoint_id, 9)
        self._coordinator.through(event.cut.pending)

    def record(self) -> None:
        """Checkpoints that failed go into the history as soon as the lane has nothing else to do."""
        if self._coordinator is not None and self._coordinator.history.unstored and self._lane.at_rest:
            self._lane.record()

    # -- the end ---------------------------------------------------------------------------------------------------------

    def write_history(self) -> None:
        if self._coordinator is not None:
            self._coordinator.write_history()

    def close(self, why: str) -> None:
        """The attempt has ended: whoever waits for a checkpoint waits in vain."""
        for timer in self._watched.values():
            timer.cancel()
        self._requests.refuse(why)

    def _give_up(self, checkpoint_id: int, why: str) -> None:
        self.aborted.append(checkpoint_id)
        self._requests.fail(checkpoint_id, why)
        self._recorder.failed(checkpoint_id, why)


def _acknowledge(pending: PendingCheckpoint, ended: RoundEnded, progress: Progress) -> None:
    """Step 6, with what was measured."""
    for ack in sorted(ended.acks, key=lambda ack: (ack.chain, ack.subtask)):
        chain = progress.graph.chains[ack.chain]
        for operator in chain.operators:
            figures = _figures(ack, operator, is_first=operator is chain.head.operator)
            pending.acknowledge(operator.uid_hash, ack.subtask, figures)
    pending.figures.ran(ended.seconds * 1000)


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
