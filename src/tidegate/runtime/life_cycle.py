"""The life of an attempt as types: claimed, then checked and restored, or finished before. Each of them can be ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidegate.base.clock import Clock, Timer
from tidegate.base.errors import FencedError
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.misfits import Misfit, refusal
from tidegate.checkpoint.recovery import Recovery
from tidegate.checkpoint.savepoint import Ending
from tidegate.graph.plan import JobGraph
from tidegate.runtime.checkpoints import Checkpoints, NoCheckpoints
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress

log = logging.getLogger(__name__)

Act = Callable[[], None]
_LAST_BEAT_S = 5


class Heartbeat:
    """Renews a lease on the injected clock, in parallel to everything else, and reports once if the lease is lost."""

    def __init__(
        self, lease: Lease, clock: Clock, aside: Callable[[Act], None], on_lost: Callable[[int, FencedError], None]
    ) -> None:
        self._lease, self._clock, self._aside, self._on_lost = lease, clock, aside, on_lost
        self._lock, self._beating = threading.Lock(), threading.Lock()
        self._stopped = False
        self._timer: Timer | None = None
        self._arm()

    def stop(self) -> None:
        """Stop the heartbeat. After this returns, no lost lease is reported: the next attempt is our own. A heartbeat that has
        begun is waited for, up to a limit: the directory may be deleted next."""
        with self._lock:
            self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._beating.acquire(timeout=_LAST_BEAT_S):
            self._beating.release()

    def _arm(self) -> None:
        moment = self._clock.monotonic() + self._lease.renew_every_ms / 1000
        self._timer = self._clock.call_at(moment, lambda: self._aside(self._renew))

    def _renew(self) -> None:
        try:
            with self._beating:
                if self._stopped:
                    return
                self._lease.renew()
        except FencedError as error:
            with self._lock:
                if not self._stopped:
                    log.error("%s", error)
                    self._on_lost(self._lease.token, error)
            return
        except Exception as error:
            log.warning("heartbeat not written, retrying: %s", error)
        self._arm()


@dataclass(frozen=True)
class Claimed:
    """The attempt has claimed the directory. Nothing has been touched yet."""

    lease: Lease
    heartbeat: Heartbeat

    def fenced(self) -> FencedError | None:
        """Return why this attempt has to stop, if a newer attempt has taken over; None also if storage fails."""
        try:
            self.lease.check()
        except FencedError as error:
            return error
        except Exception as error:
            log.warning("it is not known whether the lease is still held: %s", error)
        return None

    def release(self) -> None:
        """Let the next attempt claim the directory."""
        self.heartbeat.stop()
        _unless_fenced(self.lease.release)


@dataclass(frozen=True)
class FinishedBefore:
    """The job finished in an earlier run: only the directory has to be released. ``savepoint``: the job was stopped with this
    savepoint."""

    claimed: Claimed
    savepoint: str = ""

    def end(self, status: AttemptStatus) -> None:
        self.claimed.release()


@dataclass(frozen=True)
class Checked:
    """The restore is decided and its metadata is read. Nothing has been touched yet: an attempt that ends here leaves no trace.
    ``progress``: the restored state. ``misfits``: what does not fit the program, found by reading. With misfits nothing can be
    taken over, but a rehearsal may find more. ``rehearses``: whether there is a rehearsal."""

    claimed: Claimed
    recovery: Recovery
    graph: JobGraph
    planner: SourcePlanner
    progress: Progress
    rehearses: bool = False
    misfits: tuple[Misfit, ...] = ()

    def refuse_misfits(self, more: Iterable[Misfit] = ()) -> None:
        """Raise one report of all misfits, in the order of the program, if there are any."""
        misfits = [*self.misfits, *more]
        if misfits:
            raise refusal(self.checkpoint, misfits, [o.uid_hash for o in self.graph.operators])

    @property
    def round(self) -> int:
        """The latest round that counts."""
        return self.recovery.located.metadata.round if self.recovery.located is not None else 0

    @property
    def checkpoint(self) -> str | None:
        """The address of the restored snapshot."""
        return self.recovery.located.address if self.recovery.located is not None else None

    def end(self, status: AttemptStatus) -> None:
        try:
            self.claimed.release()
        finally:
            self.planner.close()


@dataclass(frozen=True)
class Restored:
    """The resources of a running attempt. ``ending``: the job was asked before to end with a savepoint, which is complete now:
    there is nothing to run."""

    claimed: Claimed
    graph: JobGraph
    planner: SourcePlanner
    progress: Progress
    committers: SinkCommitters
    checkpoints: Checkpoints | NoCheckpoints
    ending: Ending | None = None

    def end(self, status: AttemptStatus) -> None:
        """Release the lease. ``status`` RUNNING: the next attempt of the same job follows."""
        self.claimed.heartbeat.stop()
        try:
            _unless_fenced(lambda: self._end(status))
        finally:
            self.planner.close()
            self.committers.close()

    def _end(self, status: AttemptStatus) -> None:
        if status is AttemptStatus.RUNNING:
            self.claimed.lease.release()
        else:
            self.checkpoints.on_shutdown(status, lambda: self.committers.abort_lingering({}, {}))


def _unless_fenced(act: Act) -> None:
    try:
        act()
    except FencedError as error:
        log.warning("%s", error)
