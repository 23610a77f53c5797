"""The savepoint lane: files are copied and a savepoint is published while rounds run and checkpoints are stored.

It is a lane of its own since copying takes as long as the state is large: checkpoints, and with them all output, would wait for it.
What it reads cannot go away under it: step 9 keeps the files of every savepoint under way (``paths``), and the end of an attempt
waits until the lane is at rest, for the files that are being copied at most: then the rest is given up.

A savepoint belongs to nobody's lineage, so an attempt that has lost its lease does little harm with one. But the attempt behind it
deletes what it finds unfinished. So the lease is looked at behind the publication too: one that may have lost files is withdrawn,
before anybody was told of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.base.clock import Clock
from tidegate.base.errors import CheckpointError
from tidegate.checkpoint.savepoint import Copied, NewSavepoint
from tidegate.runtime.inbox import Event, Lane, Lanes, Work


@dataclass(frozen=True)
class SavepointCopied(Event):
    """Another of its files is there. Only who looks on is interested."""

    checkpoint_id: int
    copied: Copied


@dataclass(frozen=True)
class SavepointEnded(Event):
    """``error`` None: it is complete. Else nothing is left of it."""

    savepoint: NewSavepoint
    seconds: float
    error: Exception | None = None


class SavepointLane:
    """The job's thread submits and counts; the work itself runs in the lane. ``check_lease``: raises if it is lost. ``threads``: so
    many files are copied at a time."""

    def __init__(self, lanes: Lanes, clock: Clock, check_lease: Callable[[], None], threads: int) -> None:
        self.threads = threads
        self._lanes, self._clock, self._check_lease = lanes, clock, check_lease
        self._under_way: list[NewSavepoint] = []
        self._dropping = False

    @property
    def at_rest(self) -> bool:
        return not self._under_way

    def paths(self) -> set[str]:
        """State files of savepoints that are under way."""
        return {path for savepoint in self._under_way for path in savepoint.paths()}

    def store(self, savepoint: NewSavepoint) -> None:
        """Ends as ``SavepointEnded``."""
        self._lanes.submit(Lane.SAVEPOINTS, self._store(savepoint))
        self._under_way.append(savepoint)

    def ended(self, event: SavepointEnded) -> None:
        self._under_way.remove(event.savepoint)

    def drop(self) -> None:
        """The attempt ends: what is not complete is given up."""
        self._dropping = True

    def _store(self, savepoint: NewSavepoint) -> Work:
        started = self._clock.monotonic()
        error: Exception | None = None
        try:
            with contextlib.closing(savepoint.copy(self.threads)) as copies:
                for copied in copies:
                    self._go_on()
                    yield SavepointCopied(savepoint.checkpoint_id, copied)
            self._go_on()
            self._check_lease()
            savepoint.publish()
            self._check_lease()
        except Exception as failed:  # whatever it is, who has asked is told, and the job goes on
            error = failed
        if error is not None:
            savepoint.discard()
        yield SavepointEnded(savepoint, self._clock.monotonic() - started, error)

    def _go_on(self) -> None:
        if self._dropping:
            raise CheckpointError("The job ends, or restarts, before the savepoint is complete.")
