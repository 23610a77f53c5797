"""Steps 7, 8 and 9, and all other calls of sinks, as work for the lanes: they run while the next rounds run.

Why rounds need not wait. Round r carried the barrier of checkpoint n. The round is accepted, the checkpoint lane stores n, and
round r+1 runs on the state after r, although n is not stored yet.

- *A crash, now or later,* restores n-1 or n, whichever is complete. Both are consistent cuts, and neither contains anything of r+1.
  The content of n was fixed at its cut (``Cut``), and progress never changes. The output of r+1 and later rounds is invisible, has
  names of its own and is swept.
- *State files* of round r are on storage already, or wait on the host that tasks and driver share (``base/spooled_files.py``). In
  the second case step 7 first stores the files that n refers to, and then the metadata of n. If one file cannot be stored, n is not
  stored. No other step stores such files, so no file arrives late. A lost spool has the same effect as a worker's lost memory.
- *Committables* stay in the progress until they are confirmed. So n+1 also holds the committables of n if n is not committed at the
  cut of n+1. A failed step 7 has nothing to give back: the output that n covered stays before all later output, and goes into n+1.
  This output is never aborted, because the metadata of n may still appear (C5). The lane remembers the confirmed committables and
  does not commit them twice.
- *Order per sink.* All commits go through one lane: one thread, first in first out. A checkpoint begins step 7 when the previous
  checkpoint is committed, or was not stored. When a commit fails, no waiting work of the lane begins.
- *Sinks that publish with every round* promise that nothing is lost. The output that round r has prepared for them is in no
  checkpoint. So it goes into the lane first, and is published before n is stored. At most two rounds wait for their publication;
  then the next round waits.
- *At-least-once* makes all sinks such sinks, and their output must not wait for storage. So prepared output is published, swept
  and aborted in a lane of its own. This lane has all committers to itself, because no checkpoint has anything to commit. The order
  of one lane no longer ensures "published before n is stored". Instead the job's thread hands n to the checkpoint lane only when
  every round up to r is published (``_held``). If a publication fails or is dropped, the held checkpoints are dropped too. Then
  the restored checkpoint is older than all unpublished output, whose records are read again. A crash after a publication and
  before the checkpoint that covers it publishes the same records again: duplicated, never lost. A savepoint has another lane, and
  holds the output that is not published yet, as it holds the output of sinks that wait.
- *Step 9* deletes files that are neither in use nor in a kept checkpoint. A round may be running on the files of the latest
  progress. A later checkpoint may wait in the lane, with files that a merge has replaced since. So the job's thread gives step 9
  two lists: the files of the progress at that moment, which the running round reads, and the files of every checkpoint and
  savepoint under way. Step 9 does not know the names of later files.
- *Output of a discarded round* is aborted here too, after the commits that began before. No round begins until the abort is done,
  because a listing finds the remaining output.
- *Output of retried tasks* is aborted by the same listing, as soon as their round is accepted. A worker that died has an open
  transaction, and readers of its topic wait as long as the transaction may stay open. The listing must keep all output of the
  accepted round. Output that waits for a checkpoint is in the progress, from this round and all rounds before it, whatever the
  lane has stored or confirmed by then: this output is kept. Output that waits for no checkpoint is published earlier in this lane.
  If that publication fails, no waiting work of the lane begins. No later round has output yet: no round begins until the listing
  is done.
- *Savepoints* have a lane of their own, because the time for copying grows with the state. Checkpoints, and with them all output,
  would wait for the copy. A savepoint belongs to no lineage, so an attempt without a lease does little harm with a savepoint. But
  the next attempt deletes unfinished savepoints. So the lease is also checked after the publication: a savepoint that may have
  lost files is withdrawn before its address is given to anyone.
- *The end of an attempt*, whatever the reason, waits until the lanes are at rest. Work that has begun finishes: a stored
  checkpoint is committed, and files of a savepoint that are being copied are copied. Work that has not begun is dropped. Only then
  the lease is released and the next attempt restores.
- *A lost lease* is detected in the lane, because every step checks it (``checkpoint/lease.py``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter, deque
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.base import faults
from tidegate.base.clock import Clock
from tidegate.base.errors import CheckpointError, StorageError
from tidegate.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointFailureReason,
    Committables,
    Committed,
    Cut,
    Failed,
    Stage,
    Stored,
    Subsumed,
)
from tidegate.checkpoint.completed import CompletedCheckpoints, OutcomeUnknownError
from tidegate.checkpoint.history import CheckpointHistory
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.savepoint import Copied, NewSavepoint
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.inbox import Broke, Dropped, Event, Gate, Lane, LaneName, Lanes, Work, WorkEnded
from tidegate.runtime.progress import Progress

log = logging.getLogger(__name__)

_MOST_PUBLICATIONS = 2


@dataclass(frozen=True)
class Reached(Event):
    """A lane has brought a checkpoint or savepoint to its next stage: posted, or the result of the work."""

    checkpoint: Checkpoint
    stage: Stage


@dataclass(frozen=True)
class SavepointCopied(Event):
    """Another file of a savepoint is copied. Only faces use this event."""

    checkpoint: Checkpoint
    copied: Copied


class Done(Enum):
    """What a lane has done besides the steps of a checkpoint."""

    PUBLISHED = "the output of a round for sinks that do not wait for checkpoints is published"
    DISCARDED = "the prepared output of a discarded round is aborted"
    SWEPT = "the remains of failed tries of tasks of an accepted round are aborted"
    RECORDED = "failed checkpoints are written to the history"


class Steps:
    """The steps of every job. The job's thread submits and counts; the work itself runs in the lanes. ``threads``: how many files
    of a savepoint are copied at a time."""

    def __init__(self, lanes: Lanes, committers: SinkCommitters, lease: Lease, clock: Clock, threads: int) -> None:
        self._committers, self._lease, self._threads = committers, lease, threads
        gate = Gate()  # one gate for both lanes: after a failed publication no step 7 begins, and vice versa
        self.checkpoints = Lane(lanes, LaneName.CHECKPOINTS, clock, gate)
        self.savepoints = Lane(lanes, LaneName.SAVEPOINTS, clock)
        self.outputs = Lane(lanes, LaneName.PUBLICATIONS, clock, gate) if committers.at_once else self.checkpoints
        self._held: deque[tuple[int, Checkpoint]] = deque()
        """Checkpoints that wait for publications, each with the number of publications submitted before its cut."""
        self._unpublished: deque[Committables] = deque()
        self._submitted = self._discards = 0
        """The number of publications so far; the number of outstanding discards and sweeps."""

    # -- the job's thread ------------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether nothing is being stored, committed or aborted, and no such work waits."""
        return self.checkpoints.at_rest and self.outputs.at_rest and not self._held

    @property
    def holds_rounds(self) -> bool:
        """Whether the next round has to wait."""
        return self._discards > 0 or len(self._unpublished) >= _MOST_PUBLICATIONS

    def take_seconds(self) -> float:
        """Return how long the lanes of checkpoints and publications have worked since the last call."""
        lanes = {self.checkpoints.name: self.checkpoints, self.outputs.name: self.outputs}.values()
        seconds = sum(lane.seconds for lane in lanes)
        for lane in lanes:
            lane.seconds = 0.0
        return seconds

    def with_unpublished(self, progress: Progress) -> Progress:
        """Return the progress for a savepoint, with the output that is not published yet. A job that continues from the savepoint
        would otherwise lose this output."""
        for committables in self._unpublished if self.outputs is not self.checkpoints else ():
            progress = progress.with_pending(committables)
        return progress

    def publish(self, committables: Committables) -> None:
        """Commit the output that waits for no checkpoint. Ends as ``PUBLISHED``."""
        self.outputs.submit(self._publish(committables), may_drop=True)
        self._submitted += 1
        self._unpublished.append(committables)

    def discard(self, prepared: Committables, kept: Committables, states: Mapping[int, list[Any]]) -> None:
        """Abort the prepared output of a discarded round, and all output that is neither kept nor a writer's. Ends as
        ``DISCARDED``."""
        self.outputs.submit(functools.partial(self._discard, prepared, kept, states))
        self._discards += 1

    def sweep(self, kept: Committables, states: Mapping[int, list[Any]]) -> None:
        """Abort all output that is neither kept nor a writer's, after an accepted round with retried tasks. Ends as ``SWEPT``."""
        self.outputs.submit(functools.partial(self._sweep, kept, states), may_drop=True)
        self._discards += 1

    def copy(self, savepoint: Checkpoint, cut: Cut) -> None:
        """Write a savepoint of a job that continues. Ends as ``Reached`` ``Stored`` or ``Failed``."""
        self.savepoints.submit(self._copy(savepoint, cut))

    def end_with(self, savepoint: Checkpoint, cut: Cut) -> None:
        """End a job without checkpoints. Ends as ``Reached`` ``Committed`` or ``Failed``."""
        self.checkpoints.submit(self._end_with(savepoint, cut), may_drop=True)

    def ended(self, event: WorkEnded) -> None:
        """Count the end of a piece of work, before its result is handled."""
        event.lane.ended(event)
        match event.result:
            case Done.PUBLISHED:
                self._unpublished.popleft()
                self._let_go()
            case Done.DISCARDED | Done.SWEPT:
                self._discards -= 1
            case Broke() | Dropped():
                self._held.clear()

    def drop(self) -> None:
        """Drop the work that has not begun: the attempt ends."""
        self.checkpoints.drop()
        self.outputs.drop()
        self._held.clear()

    def _let_go(self) -> None:
        """Do nothing: without checkpoints nothing is held."""

    def validate(self) -> None:
        """Check that the counters agree with each other."""
        assert 0 <= self._discards <= self.outputs.outstanding, f"{self._discards} discards"
        assert len(self._unpublished) <= self._submitted
        assert all(lane.outstanding >= 0 for lane in (self.checkpoints, self.savepoints, self.outputs))
        assert all(isinstance(held.stage, Cut) for _, held in self._held), "only what is cut waits for publications"

    # -- the lanes -------------------------------------------------------------------------------------------------------

    def _publish(self, committables: Committables) -> Work:
        yield from self._committers.commit_by_sink(committables)
        return Done.PUBLISHED

    def _discard(self, prepared: Committables, kept: Committables, states: Mapping[int, list[Any]]) -> Done:
        self._committers.abort(prepared)
        # The listing finds the output of retried tasks, and the open output of writers.
        self._committers.abort_lingering(kept, states)
        return Done.DISCARDED

    def _sweep(self, kept: Committables, states: Mapping[int, list[Any]]) -> Done:
        self._committers.abort_lingering(kept, states)
        return Done.SWEPT

    def _copy(self, checkpoint: Checkpoint, cut: Cut) -> Work:
        savepoint = cut.savepoint
        assert savepoint is not None
        try:
            with contextlib.closing(savepoint.copy(self._threads)) as copies:
                for copied in copies:
                    self._give_up_if_dropping()
                    yield SavepointCopied(checkpoint, copied)
            self._give_up_if_dropping()
            self._lease.check()
            savepoint.publish()
            self._lease.check()
        except Exception as error:  # any error is the answer to the request, and the job continues
            savepoint.discard()
            return Reached(checkpoint, Failed(CheckpointFailureReason.SAVEPOINT_FAILED, str(error), error))
        return Reached(checkpoint, Stored(cut))

    def _give_up_if_dropping(self) -> None:
        if self.savepoints.is_dropping:
            raise CheckpointError("The job ended or restarted before the savepoint was complete.")

    def _end_with(self, checkpoint: Checkpoint, cut: Cut) -> Work:
        savepoint = cut.savepoint
        assert savepoint is not None
        failed = yield from self._copied(checkpoint, savepoint)
        if failed is not None:
            return Reached(checkpoint, failed)
        savepoint.publish()
        yield from self._committers.commit_by_sink(cut.committables)
        savepoint.settle()
        return Reached(checkpoint, Committed(cut))

    def _copied(self, checkpoint: Checkpoint, savepoint: NewSavepoint) -> Generator[Event, None, Failed | None]:
        """Copy the files of the savepoint with which a job ends."""
        try:
            for copied in savepoint.copy(self._threads):
                yield SavepointCopied(checkpoint, copied)
        except StorageError as error:
            return Failed(CheckpointFailureReason.SAVEPOINT_FAILED, str(error), error)
        return None


class CheckpointSteps(Steps):
    """The steps of a job that takes checkpoints. ``concurrency``: how many checkpoints may be under way."""

    def __init__(
        self,
        lanes: Lanes,
        committers: SinkCommitters,
        lease: Lease,
        clock: Clock,
        threads: int,
        completed: CompletedCheckpoints,
        history: CheckpointHistory,
        concurrency: int,
    ) -> None:
        super().__init__(lanes, committers, lease, clock, threads)
        self.completed, self._history, self._concurrency = completed, history, concurrency
        self._confirmed: Counter[int] = Counter()  # used in the lane only

    # -- the job's thread ------------------------------------------------------------------------------------------------

    def store(self, checkpoint: Checkpoint) -> None:
        """Carry out steps 7 and 8. Ends as ``Reached`` ``Committed`` or ``Failed``; posts ``Stored`` in between."""
        self._held.append((self._submitted, checkpoint))
        self._let_go()

    def _let_go(self) -> None:
        """Submit the checkpoints whose rounds are all published, in order. With one lane nothing is held: the lane publishes these
        rounds before it begins the checkpoint."""
        one_lane = self.outputs is self.checkpoints
        while self._held and (one_lane or self._held[0][0] <= self._submitted - len(self._unpublished)):
            checkpoint = self._held.popleft()[1]
            assert isinstance(checkpoint.stage, Cut)
            self.checkpoints.submit(self._store(checkpoint, checkpoint.stage), may_drop=True)

    def clean_up(self, checkpoint: Checkpoint, in_use: Collection[str], released: Collection[str]) -> None:
        """Carry out step 9. Ends as ``Reached`` ``Subsumed``."""
        self.checkpoints.submit(self._clean_up(checkpoint, in_use, released))

    def record(self) -> None:
        """Write the history if no step 9 writes it. Ends as ``RECORDED``."""
        self.checkpoints.submit(self._record)

    # -- the lane --------------------------------------------------------------------------------------------------------

    def _store(self, checkpoint: Checkpoint, cut: Cut) -> Work:
        savepoint = cut.savepoint
        if savepoint is not None and (failed := (yield from self._copied(checkpoint, savepoint))) is not None:
            return Reached(checkpoint, failed)
        try:
            completed = self.completed.add(cut.metadata)
        except StorageError as error:
            unknown = isinstance(error, OutcomeUnknownError)
            reason = CheckpointFailureReason.OUTCOME_UNKNOWN if unknown else CheckpointFailureReason.STORAGE_FAILED
            return Reached(checkpoint, Failed(reason, str(error), error))
        yield Reached(checkpoint, Stored(cut, completed.sizes))
        if savepoint is not None:  # runtime/savepoints.py says why in this order
            faults.point("C10.decided", checkpoint_id=checkpoint.checkpoint_id)
            savepoint.publish()
        # Step 8 comes only after step 7. From here on a restore commits the same output again, so a crash in between loses nothing.
        waiting = cut.unconfirmed(self._confirmed)
        yield from self._committers.commit_by_sink(waiting, checked=True)
        for sink, items in waiting.items():
            self._confirmed[sink] += len(items)
        faults.point("C6.all-committed", checkpoint_id=checkpoint.checkpoint_id)
        if savepoint is not None:
            savepoint.settle()
        return Reached(checkpoint, Committed(cut))

    def _clean_up(self, checkpoint: Checkpoint, in_use: Collection[str], released: Collection[str]) -> Work:
        self.completed.subsume(in_use, released)
        yield None
        self.write_history()
        self._take_ahead()
        return Reached(checkpoint, Subsumed())

    def _record(self) -> Done:
        self.write_history()
        return Done.RECORDED

    def write_history(self) -> None:
        """Store the entries that are not stored yet. Raise ``FencedError`` if the history belongs to a newer attempt by now."""
        if self._history.unstored:
            self.stop_if_fenced()
            self._history.store()

    def stop_if_fenced(self) -> None:
        """Raise if a newer attempt exists. Its clean-up may have caused the failure, and this attempt cannot continue."""
        with contextlib.suppress(StorageError):
            self._lease.check()

    def _take_ahead(self) -> None:
        """Reserve the ids for the next steps 1, as many as may be needed before the next call, if storage is slow. A failure is
        reported when an id is needed."""
        try:
            self._lease.take_ahead(self._concurrency)
        except StorageError as error:
            log.warning("no checkpoint id reserved, the next checkpoint retries: %s", error)
