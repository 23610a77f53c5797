"""The savepoints of an attempt, as the job's thread sees them: who has asked, which round carries one, what was answered.

One savepoint is under way at a time, others wait for their turn, so that checkpoints come between them. A savepoint that fails
counts for nothing: neither against the tolerable failures nor in what the job does next.

**The end of a job with a savepoint.** The last round reads nothing (or is the end of input) and carries the last checkpoint. In the
checkpoint lane, in this order: *copy the state files -> publish the checkpoint (7) -> publish the savepoint -> commit (8) -> settle
the savepoint -> end the job -> answer*. Why so:

- Files first: what can go wrong (no space, no permission) goes wrong before anything has happened, and the job goes on.
- The checkpoint decides (``Ending`` is a part of it). A crash before it restores the checkpoint before: the job goes on as if
  nobody had asked, and what there is of the savepoint is deleted. A crash behind it, at any point, restores this checkpoint, and
  the new attempt does the rest of the end (``restoring.py``) instead of running: the savepoint is there, its output is committed
  once, the job ends, and its record says with which savepoint.
- The savepoint comes before the commit, since a job without checkpoints has no other record of what is to be committed: who
  restores it there commits it.
- Commit before the end, so a stopped job leaves nothing behind that only a restore would make visible. A job that is cancelled with
  a savepoint commits too: cancelled, its pending output would be aborted, and the savepoint that names it be of no use.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.base.clock import FOREVER, Clock
from tidegate.base.errors import (
    CheckpointError,
    ConfigurationError,
    NoTargetError,
    RefusedError,
    StorageError,
    TidegateError,
)
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointHistory
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.metadata import SAVEPOINT, CheckpointMetadata
from tidegate.checkpoint.pending import PendingCheckpoint
from tidegate.checkpoint.savepoint import PURPOSE, Ending, NewSavepoint, discard, new_address
from tidegate.graph.plan import JobGraph
from tidegate.operators.contracts.specs import sources_of
from tidegate.runtime.commands import CancelWithSavepoint, LastSavepoint, SavepointCommand, StopWithSavepoint
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress
from tidegate.runtime.savepoint_lane import SavepointEnded, SavepointLane
from tidegate.runtime.stop import Stop
from tidegate.runtime.view import JobRecorder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavepointPlace:
    """Where a job's savepoints go, and what they are called. ``directory``: the configured one. ``threads``: so many of their files
    are copied at a time. ``refusal``: why it takes none. ``group``: the group of the directory may read them."""

    job_id: str
    job_name: str
    directory: str | None
    threads: int
    refusal: str | None = None
    group: bool = False

    def new_address(self, target: str | None, job: Files) -> str:
        chosen = target or self.directory
        if not chosen:
            raise NoTargetError(
                "A savepoint needs a directory to be made in",
                where=f"job {self.job_id}",
                found="none was given, and execution.checkpointing.savepoint-dir (state.savepoints.dir) is not set",
                cure="give one with the command, or set the key when the job is started",
            )
        address = new_address(chosen, self.job_id)
        if address.startswith(job.root + "/"):
            raise ConfigurationError(
                "A savepoint lies outside of its job's own directory, which may be deleted when the job ends",
                where=f"job {self.job_id}",
                found=f"{chosen} in {job.root}",
                cure="give another directory",
            )
        return address


@dataclass(frozen=True)
class PendingSavepoint:
    """One that a round carries, or is going to."""

    command: SavepointCommand
    address: str
    checkpoint_id: int = 0
    trigger_ms: int = 0

    @property
    def ending(self) -> Ending | None:
        """How the job ends with it; None: it goes on."""
        if not isinstance(self.command, LastSavepoint):
            return None
        return Ending(self.address, isinstance(self.command, CancelWithSavepoint), self.command.drains)


class AttemptSavepoints:
    """Belongs to an attempt and is its thread's. Every command that comes here is answered when the attempt has ended, or handed
    back (``close``)."""

    def __init__(
        self,
        place: SavepointPlace,
        graph: JobGraph,
        lease: Lease,
        lane: SavepointLane,
        history: CheckpointHistory | None,
        recorder: JobRecorder,
        clock: Clock,
        stop: Stop,
    ) -> None:
        """``history``: of the job's checkpoints, if it takes any."""
        self._place, self._graph, self._lease, self._lane, self._history = place, graph, lease, lane, history
        self._recorder, self._clock, self._stop = recorder, clock, stop
        self._waiting: deque[PendingSavepoint] = deque()
        self._under_way: dict[str, SavepointCommand] = {}
        self._last: PendingSavepoint | None = None
        self.last_is_cut = False
        """The last round is accepted: no other begins."""
        self._decided = False
        self.ended_with: Ending | None = None
        """Everything is done but to end."""

    @property
    def waiting(self) -> bool:
        """Whether the next round should carry one."""
        return bool(self._waiting) and self._lane.at_rest and not self._under_way

    @property
    def stopping(self) -> bool:
        """The job has been told to end with a savepoint."""
        return self._last is not None

    # -- asked -----------------------------------------------------------------------------------------------------------

    def ask(self, command: SavepointCommand) -> bool:
        """Refused, with an answer, or to be done. True: nothing more may be read."""
        try:
            self._refuse_if_impossible(command)
            asked = PendingSavepoint(command, self._place.new_address(command.target, self._lease.files))
            self._make_room(asked.address)
        except TidegateError as error:
            command.fail(error)
            return False
        if isinstance(command, LastSavepoint):
            self._last = asked
            return True
        self._waiting.append(asked)
        return False

    def _refuse_if_impossible(self, command: SavepointCommand) -> None:
        if self._place.refusal is not None:
            raise _refused(self._place.refusal, "run it in streaming mode")
        if self._last is not None:
            raise _refused(
                f"the job ends already, with the savepoint {self._last.address}", "take that one, when it is there"
            )
        fixed = [o.label for o in sources_of(self._graph) if not o.spec.source.can_stop]
        if fixed and isinstance(command, StopWithSavepoint):
            raise RefusedError(
                "A job stops only if all its sources can.",
                where=f"job {self._place.job_id}",
                found=f"what {', '.join(fixed)} has taken and not handed over would be lost",
                cure="cancel the job, with a savepoint if its state is to be kept",
            )

    def _make_room(self, address: str) -> None:
        """A directory that cannot be written is found out now, before anything has changed."""
        self._lease.savepoint_begins(address)
        try:
            Files(address, PURPOSE).protect(group=self._place.group)
        except StorageError:
            self._lease.savepoint_over(address)
            raise

    def refuse_waiting(self, why: str) -> None:
        """Those that wait for a round will not get one."""
        while self._waiting:
            self._give_up(self._waiting.popleft(), why)

    # -- the round that carries one --------------------------------------------------------------------------------------

    def begin(self, checkpoint: PendingCheckpoint | None, take_id: Callable[[], int]) -> PendingSavepoint | None:
        """For the round that begins. ``checkpoint``: that it carries; a last savepoint is that checkpoint, any other has an id of
        its own. None: nobody waits, or storage gave no id."""
        asked = self._last or (self._waiting.popleft() if self.waiting else None)
        if asked is None:
            return None
        now = self._clock.now_ms()
        if checkpoint is not None:
            return PendingSavepoint(asked.command, asked.address, checkpoint.checkpoint_id, now)
        try:
            begun = PendingSavepoint(asked.command, asked.address, take_id(), now)
        except StorageError as error:
            self._give_up(asked, f"checkpoint storage gave no id for it: {error}")
            self._last = None if asked is self._last else self._last
            return None
        self._recorder.triggered(PendingCheckpoint(begun.checkpoint_id, now, FOREVER, frozenset(), SAVEPOINT))
        return begun

    def round_failed(self, carried: PendingSavepoint | None, why: str) -> None:
        if carried is None:
            return
        if carried.ending is not None:
            self.last_failed(why)
        else:
            self._give_up(carried, why)

    def cut(self, carried: PendingSavepoint, progress: Progress, planner: SourcePlanner, round: int) -> NewSavepoint:
        """Its round is accepted: what it holds is fixed. A last one is the caller's to store, any other goes into the lane."""
        self._recorder.step(carried.checkpoint_id, 6)
        metadata = CheckpointMetadata(
            checkpoint_id=carried.checkpoint_id,
            job_id=self._lease.claim.job_id,
            job_name=self._place.job_name,
            token=self._lease.token,
            trigger_ms=carried.trigger_ms,
            complete_ms=self._clock.now_ms(),
            round=round,
            kind=SAVEPOINT,
            operators=progress.operator_states(planner.snapshots()),
        )
        savepoint = self.of(carried, metadata)
        if carried.ending is None:
            self._under_way[carried.address] = carried.command
            self._lane.store(savepoint)
        return savepoint

    def of(self, carried: PendingSavepoint, cut: CheckpointMetadata) -> NewSavepoint:
        drained = carried.ending is not None and carried.ending.drained
        return NewSavepoint(self._lease.files, carried.address, cut, drained=drained)

    def ended(self, event: SavepointEnded) -> None:
        """The lane has answered."""
        savepoint = event.savepoint
        command = self._under_way.pop(savepoint.address)
        self._lease.savepoint_over(savepoint.address)
        if self._history is not None:
            self._history.remember(savepoint.entry(self._clock.now_ms(), event.error))
        if event.error is None:
            self._recorder.step(savepoint.checkpoint_id, 7, size=savepoint.size)
            command.succeed(savepoint.address)
        else:
            log.warning("savepoint %d could not be taken: %s", savepoint.checkpoint_id, event.error)
            self._recorder.failed(savepoint.checkpoint_id, str(event.error))
            command.fail(self._not_taken(str(event.error)))

    # -- the last one ----------------------------------------------------------------------------------------------------

    def decided(self) -> None:
        """Its checkpoint is complete, or may be: only storage knows. Whoever comes next does the rest."""
        self._decided = True

    def last_failed(self, why: str) -> bool:
        """It could not be taken, and nothing was decided: who has asked is told. True: event time has come to its end all the same,
        and the attempt cannot go on."""
        assert self._last is not None
        asked, drained = self._last, self.last_is_cut and self._last.command.drains  # type: ignore[attr-defined]
        self._last, self.last_is_cut = None, False
        self._give_up(asked, why)
        return drained

    def completed(self) -> None:
        """It is published and all its output is committed."""
        assert self._last is not None
        self.ended_with = self._last.ending
        self._lease.savepoint_over(self._last.address)
        self._lease.ends_with(self._last.address)

    # -- the end of the attempt ------------------------------------------------------------------------------------------

    def close(self) -> SavepointCommand | None:
        """Whoever waits waits in vain. Gives the command whose answer is not known yet: the job's end knows it."""
        for asked in self._waiting:
            self._give_up(asked, "the attempt has ended")
        self._waiting.clear()
        last, self._last = self._last, None
        if last is not None and not (self._decided or self.ended_with):
            self._give_up(last, "the attempt has ended")
            return None
        return None if last is None else last.command

    def _give_up(self, asked: PendingSavepoint, why: str) -> None:
        discard(asked.address)
        self._lease.savepoint_over(asked.address)
        self._recorder.failed(asked.checkpoint_id, why)
        asked.command.fail(self._not_taken(why))

    def _not_taken(self, why: str) -> TidegateError:
        """Whoever waits for a savepoint while somebody else ends the job is told that the job was ended."""
        if self._stop.asked.is_set():
            return self._stop.error().having(found="its savepoint was not complete, and is discarded")
        cure = "see the job's log, and ask again"
        return CheckpointError("A savepoint that was asked for could not be taken.", found=why, cure=cure)


def _refused(why: str, cure: str) -> RefusedError:
    return RefusedError("A savepoint that was asked for could not be taken.", found=why, cure=cure)
