"""The savepoints of an attempt, as the job's thread sees them: the commands, the rounds that carry savepoints, the answers.

One savepoint is under way at a time, others wait for their turn, so that checkpoints come between them. A failed savepoint does not
count against the tolerable failures, and does not change what the job does next.

**The end of a job with a savepoint.** The last round reads nothing (or is the end of input) and carries the last checkpoint. In the
checkpoint lane, in this order: *copy the state files -> publish the checkpoint (7) -> publish the savepoint -> commit (8) -> settle
the savepoint -> end the job -> answer*. Why this order:

- Files first: likely failures (no space, no permission) come before anything else has happened, and the job continues.
- The checkpoint decides (``Ending`` is a part of it). A crash before its publication restores the previous checkpoint: the job
  continues as without the command, and the incomplete savepoint is deleted. A crash after it, at any point, restores this
  checkpoint, and the new attempt does the rest of the end (``restoring.py``) instead of running: the savepoint is complete, its
  output is committed once, the job ends, and its record names the savepoint.
- The savepoint comes before the commit, since a job without checkpoints has no other record of the output to commit: a restore of
  the savepoint commits it.
- Commit before the end, so a stopped job leaves no output that only a restore would make visible. A job that is cancelled with a
  savepoint commits too: otherwise its pending output would be aborted, and the savepoint that names this output would be useless.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tidegate.base.clock import FOREVER, Clock
from tidegate.base.errors import CheckpointError, RefusedError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.checkpoint import Checkpoint, Cut, Failed, Stored, Target, Triggered
from tidegate.checkpoint.checkpoint import CheckpointFailureReason as Reason
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.metadata import CHECKPOINT, SAVEPOINT, CheckpointMetadata, OperatorState
from tidegate.checkpoint.savepoint import PURPOSE, Copied, Ending, NewSavepoint, SavepointPlace, discard
from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.specs import sources_of
from tidegate.runtime.commands import CancelWithSavepoint, LastSavepoint, SavepointCommand, Stop, StopWithSavepoint
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.steps import Steps
from tidegate.runtime.view import JobRecorder

log = logging.getLogger(__name__)

CLOSED = "a source has ended, and execution.checkpointing.checkpoints-after-tasks-finish is false"


@dataclass(frozen=True)
class Around:
    """What the checkpoints and savepoints of an attempt work with."""

    place: SavepointPlace
    graph: JobGraph
    lease: Lease
    recorder: JobRecorder
    clock: Clock
    stop: Stop


class Savepoints:
    """The common part of a job with checkpoints and a job without. It belongs to an attempt and to the job's thread. Every command
    is answered before the attempt has ended, or returned (``close``)."""

    def __init__(self, steps: Steps, around: Around) -> None:
        self.steps = steps
        self._place, self._graph, self._lease = around.place, around.graph, around.lease
        self._recorder, self._clock, self._stop = around.recorder, around.clock, around.stop
        self._all: dict[int, Checkpoint] = {}
        """All checkpoints and savepoints of the attempt by id, until they have ended and functions were notified."""
        self._waiting: deque[Target] = deque()

    @property
    def closed(self) -> bool:
        """Whether a source has ended, and the job is configured to take no checkpoints from then on."""
        return False

    def paths(self) -> set[str]:
        """Return the state files of checkpoints and savepoints under way."""
        return {path for checkpoint in self._all.values() for path in checkpoint.paths()}

    @property
    def savepoint_waits(self) -> bool:
        """Whether the next round should carry a savepoint of a job that continues."""
        return bool(self._waiting) and self.steps.savepoints.at_rest

    # -- asked -----------------------------------------------------------------------------------------------------------

    def ask_for_savepoint(self, command: SavepointCommand, last: Target | None) -> Target | None:
        """Refuse the command, with an answer, or note it. ``last``: the job already ends with this target. Return the target of
        a savepoint that the job ends with: nothing more may be read."""
        try:
            self._refuse_if_impossible(command, last)
            address = self._place.new_address(command.target, self._lease.files)
            self._make_room(address)
        except TidegateError as error:
            command.fail(error)
            return None
        if isinstance(command, LastSavepoint):
            cancels = isinstance(command, CancelWithSavepoint)
            return Target(address, command, Ending(address, cancels, command.drains))
        self._waiting.append(Target(address, command))
        return None

    def _refuse_if_impossible(self, command: SavepointCommand, last: Target | None) -> None:
        if self.closed:
            raise _refused(CLOSED, "set the key to true")
        if self._place.refusal is not None:
            raise _refused(self._place.refusal, "run the job in streaming mode")
        if last is not None:
            raise _refused(
                f"the job is already ending with the savepoint {last.address}", "use that savepoint when it is complete"
            )
        fixed = [o.label for o in sources_of(self._graph) if not o.spec.source.can_stop]
        if fixed and isinstance(command, StopWithSavepoint):
            raise RefusedError(
                "The job cannot stop: some of its sources cannot stop.",
                where=f"job {self._place.job_id}",
                found=f"records that {', '.join(fixed)} has received but not handed over would be lost",
                cure="cancel the job; add a savepoint to keep its state",
            )

    def _make_room(self, address: str) -> None:
        """Make the directory now, so that a directory that cannot be written is found before anything has changed."""
        self._lease.savepoint_begins(address)
        try:
            Files(address, PURPOSE).protect(group=self._place.group)
        except StorageError:
            self._lease.savepoint_over(address)
            raise

    def refuse_waiting_savepoints(self, why: str) -> None:
        """Refuse the savepoints that wait for a round: they will not get one."""
        while self._waiting:
            self.give_up_target(self._waiting.popleft(), why)

    # -- the round that carries one --------------------------------------------------------------------------------------

    def begin_savepoint(self, target: Target | None = None) -> Checkpoint | None:
        """Do step 1 for the round that begins: the next waiting savepoint, or the last one of a job without checkpoints. None:
        storage gave no id, and the command gets an error."""
        target = target or self._waiting.popleft()
        now_ms, now = self._clock.now_ms(), self._clock.monotonic() * 1000
        try:
            taken = self._take_id()
        except StorageError as error:
            self.give_up_target(target, f"checkpoint storage failed, so it has no id: {error}")
            return None
        begun = Checkpoint(taken, self._lease.token, now_ms, now, FOREVER, kind=SAVEPOINT, target=target)
        self._all[taken] = begun
        self._recorder.checkpoint(begun)
        return begun

    def _take_id(self) -> int:
        """Take the next id. Checkpoints and savepoints share one sequence."""
        return self._lease.take_id()

    def _cut(
        self,
        checkpoint: Checkpoint,
        operators: list[OperatorState],
        progress: Progress | None,
        *,
        round: int,
        finished: bool = False,
        confirmed: Mapping[int, int] = MappingProxyType({}),
    ) -> Cut:
        """Fix the content of a checkpoint or savepoint: nothing later is part of it."""
        ending, is_checkpoint = checkpoint.ending, checkpoint.kind == CHECKPOINT
        metadata = CheckpointMetadata(
            checkpoint_id=checkpoint.checkpoint_id,
            job_id=self._lease.claim.job_id,
            job_name=self._place.job_name,
            token=self._lease.token,
            trigger_ms=checkpoint.trigger_ms,
            complete_ms=self._clock.now_ms(),
            round=round,
            kind=checkpoint.kind,
            operators=operators,
            finished=finished,
            properties=ending.properties() if ending is not None and is_checkpoint else {},
        )
        savepoint = None
        if checkpoint.target is not None:
            drained = ending is not None and ending.drained
            savepoint = NewSavepoint(self._lease.files, checkpoint.target.address, metadata, drained=drained)
        cut = Cut(metadata, progress.committables if progress is not None else {}, confirmed, savepoint)
        checkpoint.round = round
        checkpoint.reach(cut, self._clock.now_ms())
        self._recorder.checkpoint(checkpoint)
        return cut

    def _cut_savepoint(self, checkpoint: Checkpoint, progress: Progress, planner: SourcePlanner, round: int) -> None:
        operators = self.steps.with_unpublished(progress).operator_states(planner.snapshots())
        cut = self._cut(checkpoint, operators, progress, round=round)
        write = self.steps.copy if checkpoint.ending is None else self.steps.end_with
        write(checkpoint, cut)

    # -- the lane has answered -------------------------------------------------------------------------------------------

    def copied(self, checkpoint: Checkpoint, copied: Copied) -> None:
        """Record the progress: another file of a savepoint is copied."""
        checkpoint.copied = copied
        self._recorder.checkpoint(checkpoint)

    def _savepoint_stored(self, checkpoint: Checkpoint, stage: Stored) -> None:
        assert checkpoint.target is not None
        checkpoint.reach(stage, self._clock.now_ms())
        size = sum(file.size for file in stage.cut.metadata.state_files())
        checkpoint.sizes = (size, size)
        self._lease.savepoint_over(checkpoint.target.address)
        self._enter_savepoint(checkpoint)
        checkpoint.target.asked.succeed(checkpoint.target.address)

    def _savepoint_failed(self, checkpoint: Checkpoint, stage: Failed) -> None:
        """Handle a savepoint whose files could not be copied: nothing is left of it."""
        assert checkpoint.target is not None
        log.warning("savepoint %d could not be taken: %s", checkpoint.checkpoint_id, stage.message)
        checkpoint.reach(stage, self._clock.now_ms())
        checkpoint.message = stage.message
        self._lease.savepoint_over(checkpoint.target.address)
        self._enter_savepoint(checkpoint)
        checkpoint.target.asked.fail(self._not_taken(stage.message))

    def _enter_savepoint(self, checkpoint: Checkpoint) -> None:
        """Without checkpoints there is no history."""
        self._recorder.checkpoint(checkpoint)
        self._forget(checkpoint)

    def ends(self, checkpoint: Checkpoint) -> None:
        """Record the savepoint that the job ends with: it is published, and all its output is committed."""
        assert checkpoint.target is not None
        self._lease.savepoint_over(checkpoint.target.address)
        self._lease.ends_with(checkpoint.target.address)

    # -- given up --------------------------------------------------------------------------------------------------------

    def give_up_savepoint(self, checkpoint: Checkpoint, why: str) -> None:
        """Abort a savepoint whose round or lane has failed. A last checkpoint has its own entry in the history."""
        if checkpoint.kind == SAVEPOINT and checkpoint.is_pending:
            checkpoint.reach(Failed(Reason.SAVEPOINT_FAILED, why), self._clock.now_ms())
            checkpoint.message = why
            self._recorder.checkpoint(checkpoint)
            self._forget(checkpoint)
        assert checkpoint.target is not None
        self.give_up_target(checkpoint.target, why)

    def give_up_savepoints(self, why: str) -> None:
        """Answer every savepoint command that has no answer yet: those that wait, and those whose round could not begin or whose
        lane broke. The last savepoint of a job is not among them: its command goes to the next attempt."""
        self.refuse_waiting_savepoints(why)
        for checkpoint in [each for each in self._all.values() if each.kind == SAVEPOINT]:
            if checkpoint.is_pending and checkpoint.ending is None:
                self.give_up_savepoint(checkpoint, why)

    def give_up_target(self, target: Target, why: str) -> None:
        discard(target.address)
        self._lease.savepoint_over(target.address)
        target.asked.fail(self._not_taken(why))

    def _not_taken(self, why: str) -> TidegateError:
        """Return the error for the answer. If another command ended the job meanwhile, the error says so."""
        if self._stop.asked.is_set():
            return self._stop.error().having(found="its savepoint was incomplete and is discarded")
        cure = "read the job's log, and retry the command"
        return CheckpointError("The requested savepoint could not be taken.", found=why, cure=cure)

    def _forget(self, checkpoint: Checkpoint) -> None:
        self._all.pop(checkpoint.checkpoint_id, None)

    # -- looked at -------------------------------------------------------------------------------------------------------

    def validate(self, carried: Checkpoint | None) -> None:
        """Check the invariants between two events. ``carried``: the checkpoint or savepoint of the running round."""
        self.steps.validate()
        ids = list(self._all)
        assert ids == sorted(ids) and all(ids), f"ids grow: {ids}"
        assert all(number == checkpoint.checkpoint_id for number, checkpoint in self._all.items())
        triggered = [checkpoint for checkpoint in self._all.values() if isinstance(checkpoint.stage, Triggered)]
        assert triggered in ([], [carried]), f"triggered: {triggered}, the running round carries {carried}"
        in_lane = [c for c in self._all.values() if c.kind == SAVEPOINT and isinstance(c.stage, Cut) and not c.ending]
        assert len(in_lane) <= 1, "one savepoint is under way at a time"


def _refused(why: str, cure: str) -> RefusedError:
    return RefusedError("The requested savepoint could not be taken.", found=why, cure=cure)
