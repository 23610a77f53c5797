"""The checkpoint lane: steps 7, 8 and 9, and all else that sinks are asked, while the next rounds run.

Why rounds need not wait. Round r carried the barrier of checkpoint n. It is accepted, the lane stores n, and round r+1 runs
on the state that r has left, though n is not stored yet.

- *A crash, now or later,* restores n-1 or n, whichever is complete. Both are consistent cuts, and nothing of r+1 is in either:
  what n holds was fixed at its cut (``Cut``), since progress never changes. What r+1 and later rounds have written is
  invisible, has names of its own and is swept.
- *State files* of round r are on storage already, or wait on the host that tasks and driver share (``base/spooled_files.py``).
  Then step 7 begins with storing those that n refers to, and its metadata comes only behind them: if one cannot be stored, n is
  not stored. Nobody else stores any, so none comes late. A spool that is lost is as a worker's memory that is lost.
- *Committables* stay in the progress until they are confirmed. So n+1 holds those of n too if n is not committed at its cut,
  and a step 7 that failed has nothing to give back: what n covered waits in front of what came later, and goes into n+1. It is
  never aborted, because the metadata of n may yet appear (C5). The lane remembers what it has confirmed and does not commit it
  twice.
- *Order per sink.* All commits go through this lane: one thread, first in first out. A checkpoint begins step 7 when the one
  before is committed, or was not stored; when a commit fails, nothing behind it begins.
- *Sinks that publish with every round* promise that nothing is lost. What round r has prepared for them is in no checkpoint, so
  it is published before n is stored: it goes into the lane first. Two rounds may wait for that; then rounds wait.
- *At-least-once* makes all sinks such sinks, and their output must not wait for storage: what rounds have prepared is published,
  swept and aborted in a lane of its own, which then has all committers to itself, since no checkpoint has anything to commit.
  "Published before n is stored" is no longer the order of one lane, so the job's thread sees to it: n goes into the checkpoint
  lane only when every round up to r is published (``_held``). If a publication fails, or is dropped, so is what is held: the
  restored checkpoint is older than everything that did not get out, which is read again. A crash behind a publication and in
  front of the checkpoint that covers it publishes the same records again: doubled, never lost. A savepoint is in a lane of its
  own and holds what is not published yet, as it would of sinks that wait.
- *Step 9* deletes files that are neither in use nor in a kept checkpoint. A round may be running on the files of the latest
  progress, and a later checkpoint may wait in the lane for its turn, with files that a merge has replaced since. So the job's
  thread gives it both: the files of the progress at that moment, which are those the running round reads, and those of every
  cut under way. Files that come later have names step 9 has never heard of.
- *What a discarded round prepared* is aborted here too, behind the commits that were begun before; and no round begins until
  that is done, since what lingers is found by listing.
- *What tasks that were tried again have left* is aborted as soon as their round is accepted, by the same listing: a worker that
  died has an open transaction, and readers of that topic wait behind it for as long as it may stay open. Nothing of the
  accepted round may go with it. What waits for a checkpoint is in the progress, from this round and all before it, whatever the
  lane has stored or confirmed by then: that is what is kept. What waits for none is published before, in this lane; if that
  fails, nothing behind it begins. And no later round has anything yet: none begins until the listing is done.
- *The end of an attempt*, whatever the reason, waits until the lane is at rest: what has begun comes to its end (a stored
  checkpoint is committed), what has not is dropped. Only then the lease is given up and the next attempt restores.
- *A lost lease* shows in the lane as it did before: every step checks it (``checkpoint/lease.py``).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.base import faults
from tidegate.base.clock import Clock
from tidegate.base.errors import StorageError
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.metadata import CheckpointMetadata
from tidegate.checkpoint.pending import CompletedCheckpoint, PendingCheckpoint
from tidegate.checkpoint.savepoint import NewSavepoint
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.inbox import Event, Lane, Lanes, Work
from tidegate.runtime.progress import Progress
from tidegate.runtime.savepoint_lane import SavepointCopied

log = logging.getLogger(__name__)

Committables = Mapping[int, Sequence[Any]]
_MOST_PUBLICATIONS = 2


@dataclass(frozen=True)
class Cut:
    """A checkpoint as its round has left it. ``confirmed``: how many committables of each sink were confirmed before those here.
    ``savepoint``: the job ends with this checkpoint, and leaves it as a savepoint."""

    pending: PendingCheckpoint
    metadata: CheckpointMetadata
    committables: Committables
    confirmed: Mapping[int, int]
    savepoint: NewSavepoint | None = None

    @property
    def checkpoint_id(self) -> int:
        return self.pending.checkpoint_id

    def unconfirmed(self, by_now: Mapping[int, int]) -> Committables:
        """Of its committables those that are not among the first ``by_now``."""
        return {sink: items[by_now[sink] - self.confirmed[sink] :] for sink, items in self.committables.items()}


@dataclass(frozen=True)
class Stored(Event):
    """Step 7 is done; step 8 follows at once."""

    cut: Cut
    completed: CompletedCheckpoint


@dataclass(frozen=True)
class WorkEnded(Event):
    """The last event of every work of this lane. ``seconds``: how long it took."""

    seconds: float


@dataclass(frozen=True)
class NotStored(WorkEnded):
    cut: Cut
    error: StorageError


@dataclass(frozen=True)
class NotCopied(WorkEnded):
    """The job was to end with a savepoint whose files could not be written: nothing else was done. ``cut`` None: of a job without
    checkpoints."""

    cut: Cut | None
    error: Exception


@dataclass(frozen=True)
class LastCommitted(WorkEnded):
    """A job without checkpoints has its last savepoint, and all output is committed."""

    committables: Committables


@dataclass(frozen=True)
class Committed(WorkEnded):
    """Step 8 is done."""

    cut: Cut


@dataclass(frozen=True)
class Through(WorkEnded):
    """Step 9 is done."""

    cut: Cut


@dataclass(frozen=True)
class Published(WorkEnded):
    """What a round prepared for sinks that do not wait for checkpoints is out."""


@dataclass(frozen=True)
class Discarded(WorkEnded):
    """What a discarded round prepared is aborted."""


@dataclass(frozen=True)
class Swept(WorkEnded):
    """What tasks of an accepted round left when they were tried the first time is aborted."""


@dataclass(frozen=True)
class Recorded(WorkEnded):
    """What is known of failed checkpoints is in the history."""


@dataclass(frozen=True)
class Dropped(WorkEnded):
    """It never began."""


@dataclass(frozen=True)
class Failed(WorkEnded):
    """The attempt fails with it. Nothing behind it begins."""

    error: Exception | SystemExit


class CheckpointLane:
    """The job's thread submits and counts; the work itself runs in the lane."""

    def __init__(
        self,
        lanes: Lanes,
        committers: SinkCommitters,
        coordinator: CheckpointCoordinator | None,
        clock: Clock,
        threads: int = 1,
    ) -> None:
        """``coordinator``: of it the lane uses ``completed``, and ``write_history``. ``threads``: so many files of a last savepoint
        are copied at a time."""
        self._threads = threads
        self._lanes, self._committers, self._coordinator = lanes, committers, coordinator
        self._clock = clock
        self._under_way: dict[int, Cut] = {}
        self._held: deque[tuple[int, Cut]] = deque()
        """Checkpoints that wait for publications, each with how many of them were submitted before it was cut."""
        self._outstanding = self._publications = self._discards = 0
        self._unpublished: deque[Committables] = deque()
        self._submitted = 0  # publications
        self._outputs = Lane.PUBLICATIONS if committers.at_once else Lane.CHECKPOINTS
        self._confirmed: Counter[int] = Counter()  # the lane's
        self._broken = self._dropping = False
        self.seconds = 0.0
        """How long the lane has worked since this was last set to 0."""
        self._checkpoint_seconds = 0.0  # steps 7 to 9 of the latest one
        self._since: dict[int, float] = {}
        """When the checkpoints came here that are not through."""

    # -- the job's thread ------------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        return self._outstanding == 0 and not self._held

    @property
    def holds_rounds(self) -> bool:
        """Whether the next round has to wait."""
        return self._discards > 0 or self._publications >= _MOST_PUBLICATIONS

    @property
    def likely_seconds(self) -> float:
        """How long steps 7 to 9 take: as long as the last time, or as they have taken by now. So two rounds never wait for the
        same slow checkpoint."""
        now = self._clock.monotonic()
        return max(self._checkpoint_seconds, now - min(self._since.values(), default=now))

    def paths(self) -> set[str]:
        """State files of checkpoints that are under way."""
        return {path for cut in self._under_way.values() for path in cut.metadata.paths()}

    def with_unpublished(self, progress: Progress) -> Progress:
        """For a savepoint: with the output that would be lost if the job ended now and somebody went on from there."""
        for committables in self._unpublished if self._outputs is Lane.PUBLICATIONS else ():
            progress = progress.with_pending(committables)
        return progress

    def checkpoint(self, cut: Cut) -> None:
        """Steps 7 and 8. Ends as ``Committed`` or ``NotStored``, ``Failed`` or ``Dropped``."""
        self._under_way[cut.checkpoint_id] = cut
        self._since[cut.checkpoint_id] = self._clock.monotonic()
        self._held.append((self._submitted, cut))
        self._let_go()

    def _let_go(self) -> None:
        """Whose rounds are all published, in order. In one lane they are by the time it gets there."""
        one_lane = self._outputs is Lane.CHECKPOINTS
        while self._held and (one_lane or self._held[0][0] <= self._submitted - len(self._unpublished)):
            self._submit(self._checkpoint(self._held.popleft()[1]), may_drop=True)

    def end_with(self, savepoint: NewSavepoint, committables: Committables) -> None:
        """The end of a job without checkpoints. Ends as ``LastCommitted`` or ``NotCopied``, ``Failed`` or ``Dropped``."""
        self._submit(self._end_with(savepoint, committables), may_drop=True)

    def clean_up(self, cut: Cut, in_use: Collection[str], released: Collection[str]) -> None:
        """Step 9. Ends as ``Through``."""
        self._submit(self._clean_up(cut, in_use, released))

    def publish(self, committables: Committables) -> None:
        """Commit what waits for no checkpoint. Ends as ``Published``."""
        self._publications += 1
        self._submit(self._publish(committables), self._outputs, may_drop=True)
        self._submitted += 1
        self._unpublished.append(committables)

    def discard(self, prepared: Committables, kept: Committables, states: Mapping[int, list[Any]]) -> None:
        """Abort what a round that did not count has prepared, and what is neither kept nor a writer's. Ends as ``Discarded``."""
        self._discards += 1
        self._submit(self._discard(prepared, kept, states), self._outputs)

    def sweep(self, kept: Committables, states: Mapping[int, list[Any]]) -> None:
        """Behind an accepted round whose tasks were tried more than once: abort what is neither kept nor a writer's. Ends as
        ``Swept``."""
        self._discards += 1
        self._submit(self._sweep(kept, states), self._outputs, may_drop=True)

    def record(self) -> None:
        """Write the history, where no step 9 does. Ends as ``Recorded``."""
        self._submit(self._record())

    def ended(self, event: WorkEnded) -> None:
        """Every event of the lane's comes here before it is acted on."""
        self._outstanding -= 1
        self.seconds += event.seconds
        if isinstance(event, Published):
            self._publications -= 1
            self._unpublished.popleft()
            self._let_go()
        elif isinstance(event, Failed | Dropped):
            self._held.clear()
        elif isinstance(event, Discarded | Swept):
            self._discards -= 1
        elif isinstance(event, NotStored | NotCopied | Committed) and event.cut is not None:
            self._under_way.pop(event.cut.checkpoint_id)
            self._checkpoint_seconds = event.seconds
            if not isinstance(event, Committed):
                self._since.pop(event.cut.checkpoint_id)
        elif isinstance(event, Through):
            self._since.pop(event.cut.checkpoint_id)
            self._checkpoint_seconds += event.seconds

    def drop(self) -> None:
        """The attempt ends: what has not begun does not begin."""
        self._dropping = True
        self._held.clear()

    # -- the lane --------------------------------------------------------------------------------------------------------

    def _submit(self, work: Work, lane: Lane = Lane.CHECKPOINTS, *, may_drop: bool = False) -> None:
        self._lanes.submit(lane, self._guarded(work, may_drop))
        self._outstanding += 1  # not before it is in the lane: the end of an attempt waits for all that is

    def _guarded(self, work: Work, may_drop: bool) -> Work:
        started = self._clock.monotonic()
        if self._broken or (may_drop and self._dropping):
            yield Dropped(0.0)
            return
        try:
            yield from work
        except (
            Exception,
            SystemExit,
        ) as error:  # the second: a user's committer may exit, and must not end this thread only
            self._broken = True
            yield Failed(self._clock.monotonic() - started, error)

    def _checkpoint(self, cut: Cut) -> Work:
        assert self._coordinator is not None
        started, savepoint = self._clock.monotonic(), cut.savepoint
        if savepoint is not None and (error := (yield from _copied(savepoint, self._threads))) is not None:
            yield NotCopied(self._clock.monotonic() - started, cut, error)
            return
        try:
            completed = self._coordinator.completed.add(cut.metadata)
        except StorageError as error:
            yield NotStored(self._clock.monotonic() - started, cut, error)
            return
        yield Stored(cut, completed)
        if savepoint is not None:  # runtime/savepoints.py says why in this order
            faults.point("C10.decided", checkpoint_id=cut.checkpoint_id)
            savepoint.publish()
        # Step 8 only behind step 7: from here on a restore would commit the same again, so a crash in between loses nothing.
        waiting = cut.unconfirmed(self._confirmed)
        yield from self._committers.commit_by_sink(waiting, checked=True)
        for sink, items in waiting.items():
            self._confirmed[sink] += len(items)
        faults.point("C6.all-committed", checkpoint_id=cut.checkpoint_id)
        if savepoint is not None:
            savepoint.settle()
        yield Committed(self._clock.monotonic() - started, cut)

    def _end_with(self, savepoint: NewSavepoint, committables: Committables) -> Work:
        started = self._clock.monotonic()
        error = yield from _copied(savepoint, self._threads)
        if error is not None:
            yield NotCopied(self._clock.monotonic() - started, None, error)
            return
        savepoint.publish()
        yield from self._committers.commit_by_sink(committables)
        savepoint.settle()
        yield LastCommitted(self._clock.monotonic() - started, committables)

    def _clean_up(self, cut: Cut, in_use: Collection[str], released: Collection[str]) -> Work:
        assert self._coordinator is not None
        started = self._clock.monotonic()
        self._coordinator.completed.subsume(in_use, released)
        yield None
        self._coordinator.write_history()
        self._coordinator.take_ahead()
        yield Through(self._clock.monotonic() - started, cut)

    def _record(self) -> Work:
        assert self._coordinator is not None
        started = self._clock.monotonic()
        self._coordinator.write_history()
        yield Recorded(self._clock.monotonic() - started)

    def _publish(self, committables: Committables) -> Work:
        started = self._clock.monotonic()
        yield from self._committers.commit_by_sink(committables)
        yield Published(self._clock.monotonic() - started)

    def _discard(self, prepared: Committables, kept: Committables, states: Mapping[int, list[Any]]) -> Work:
        started = self._clock.monotonic()
        self._committers.abort(prepared)
        # Of tasks that were tried again, and what writers had open: it is found by listing.
        self._committers.abort_lingering(kept, states)
        yield Discarded(self._clock.monotonic() - started)

    def _sweep(self, kept: Committables, states: Mapping[int, list[Any]]) -> Work:
        started = self._clock.monotonic()
        self._committers.abort_lingering(kept, states)
        yield Swept(self._clock.monotonic() - started)


def _copied(savepoint: NewSavepoint, threads: int) -> Generator[Event, None, Exception | None]:
    """Its files, or why they could not be copied."""
    try:
        for copied in savepoint.copy(threads):
            yield SavepointCopied(savepoint.checkpoint_id, copied)
    except StorageError as error:
        return error
    return None
