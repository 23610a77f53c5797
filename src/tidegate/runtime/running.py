"""What a running attempt holds: the lease and all that is bound to it, from the claim to its release."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.common.clock import Clock, SystemClock
from tidegate.common.errors import FencedError
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.planner import SourcePlanner
from tidegate.runtime.progress import Progress

log = logging.getLogger(__name__)


@dataclass
class Running:
    """Made with the claim of the lease; the rest comes when the restore is decided. ``stop`` ends it, whatever there is of it."""

    lease: Lease
    committers: SinkCommitters | None = None
    coordinator: CheckpointCoordinator | None = None
    progress: Progress | None = None
    planner: SourcePlanner | None = None
    finished_before: bool = False
    _released: threading.Event = field(default_factory=threading.Event)
    _keeper: threading.Thread | None = None

    def keep_lease(self, clock: Clock, on_lost: Callable[[], None]) -> None:
        """Renew the heartbeat in the background; a lost lease stops the running round."""
        if isinstance(clock, SystemClock):
            self._keeper = threading.Thread(target=self._renew, args=(on_lost,), name="tidegate-lease", daemon=True)
            self._keeper.start()

    def _renew(self, on_lost: Callable[[], None]) -> None:
        while not self._released.wait(self.lease.renew_every_ms / 1000):
            try:
                self.lease.renew()
            except FencedError as error:
                if not self._released.is_set():  # otherwise it is the next attempt of our own
                    log.error("%s", error)
                    on_lost()
                return
            except Exception as error:
                log.warning("heartbeat not written, tried again: %s", error)

    def fenced(self) -> FencedError | None:
        """Why this attempt has to stop, if a newer one is known to have taken over; storage that fails says nothing."""
        try:
            self.lease.check()
        except FencedError as error:
            return error
        except Exception as error:
            log.warning("whether the lease is still held could not be read: %s", error)
        return None

    def stop(self, status: AttemptStatus) -> None:
        """Give up the lease; ``status`` RUNNING: the next attempt of the same job follows."""
        self._released.set()
        if self._keeper is not None:
            self._keeper.join(timeout=5)
        try:
            if self.finished_before or status is AttemptStatus.RUNNING:
                self.lease.release()
            elif self.coordinator is not None:
                self.coordinator.on_shutdown(status, self._abort_output)
            else:  # without checkpoints nothing of it can ever be committed
                self._abort_output()
                self.lease.release()
        except FencedError as error:
            log.warning("%s", error)
        finally:
            if self.planner is not None:
                self.planner.close()
            if self.committers is not None:
                self.committers.close()

    def _abort_output(self) -> None:
        if self.committers is not None:
            self.committers.abort_lingering({}, {})
