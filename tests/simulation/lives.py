"""One life of a job: a simulated driver whose job and storage are checked at every fault point, attempt and round."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.driver import Fault, SimulatedDriver, current, unobserved

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class Life(SimulatedDriver):
    """One driver process of a simulation, from its start to its end."""

    master: JobMaster

    def __init__(self, simulation: Simulation, number: int, planned: Iterable[Fault], parallelism: int) -> None:
        super().__init__(
            number,
            planned,
            seed=simulation.seed,
            clock=simulation.clock,
            chances=simulation.chances,
            zombies=simulation.zombies,
        )
        self.simulation, self.parallelism = simulation, parallelism
        self.restored: int | None = None
        """The checkpoint it restored last; 0: one of another job."""
        self.left: set[str] = set()
        """Files that the sweep of the latest start was not allowed to delete."""
        self.needed: set[str] = set()
        self.unneeded: set[str] = set()
        """State files that were needed at a step 9 of this life, and at the latest one no more."""
        self.pause_at = 0
        self._paused, self._go_on = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_waiting = False
        self._broken: BaseException | None = None

    def run(self) -> None:
        simulation = self.simulation
        program = simulation.scenario.program(simulation.place, self.parallelism, simulation.settings)
        self.run_program(program, simulation.place.local)

    def run_until(self, point: int) -> None:
        """Run in a thread of its own and stop at the n-th point passed, as if the process were stopped."""
        self.pause_at = point
        self._thread = threading.Thread(target=self._run_in_thread, daemon=True)
        self._thread.start()
        self._paused.acquire()
        if not self._is_waiting:
            self._thread.join()
            self._raise_broken()

    @property
    def is_paused(self) -> bool:
        return self._is_waiting

    def wake_up(self) -> None:
        """Continue after the pause, to the end."""
        assert self._thread is not None
        self._go_on.release()
        self._thread.join()
        self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _run_in_thread(self) -> None:
        try:
            with current(self):
                self.run()
        except BaseException as error:
            self._broken = error
        finally:
            self._paused.release()

    # -- looking -----------------------------------------------------------------------------------------------------

    def passed_point(self) -> None:
        if self.passed["*"] == self.pause_at:
            self._is_waiting = True
            self._paused.release()
            self._go_on.acquire()
            self._is_waiting = False

    def attempt_begins(self) -> None:
        """Storage is looked at when an attempt has taken over, right after its sweep."""
        self.simulation.history.settled = True
        with self.checking(), unobserved():
            self.simulation.check_started(self)

    def round_begins(self) -> None:
        with self.checking(), unobserved():
            self.simulation.check_tidy(self)

    def observe(self, name: str, where: dict[str, Any]) -> None:
        if name in _OBSERVED:
            with self.checking():
                self._observe(name, where)

    def _observe(self, name: str, where: dict[str, Any]) -> None:
        history = self.simulation.history
        if name == "C1.triggered":
            history.trigger(where["checkpoint_id"], self.simulation.alone)
        elif name == "storage.publish.after-link" and _CHECKPOINT.search(where["path"]):
            history.settled = False
            self.simulation.published(where["path"])
        elif name == "C6.completed":
            self.completed += 1
        elif name == "C6.all-committed":
            history.commit(where["checkpoint_id"], self.simulation.alone)
            history.settled = True
        elif name == "C7.subsumed":
            with unobserved():
                self.simulation.check_subsumed(self)
                self.simulation.check_made_up_for(self)
        elif name == "C8.recorded":
            history.settled = False
            self.restored = self.simulation.restored(where["token"])


_CHECKPOINT = re.compile(r"/chk-\d+/_metadata$")
_OBSERVED = {
    *("C1.triggered", "storage.publish.after-link", "C6.completed", "C6.all-committed", "C7.subsumed", "C8.recorded"),
}
