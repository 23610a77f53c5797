"""One simulated driver: a job master that crashes, fails or is stopped at the fault points it passes."""

from __future__ import annotations

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tests.simulation.engine import Inside, SimulatedEngine, WorkerDied
from tests.simulation.lanes import SimulatedLanes
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import RoundError
from tidegate.base.spooled_files import SpooledFiles
from tidegate.checkpoint.owner import Owner
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.inbox import Inbox
from tidegate.runtime.master import JobMaster

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

MOST_WAITS = 10_000
MOST_ROUNDS = 150
"""A life that needs more is not getting on (I9)."""


class SimulatedCrash(faults.Killed):
    """The driver's process ends here: nothing of it runs any more."""


class Kind(Enum):
    CRASH = "crash"
    """The driver dies."""
    KILL = "kill"
    """The Python worker dies (points inside tasks)."""
    ERROR = "error"
    """The operation fails with an OSError, once."""


@dataclass(frozen=True)
class Fault:
    """At the n-th passing of a point in a life (from 1; point ``*``: any point). As text: ``1:C6.published@2=crash``."""

    life: int
    point: str
    passing: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.life}:{self.point}@{self.passing}={self.kind.value}"

    @staticmethod
    def parse(text: str) -> Fault:
        match = re.fullmatch(r"(\d+):(\S+)@(\d+)=(\w+)", text)
        if match is None:
            raise ValueError(f"not a fault: {text!r}; write for example 1:C6.published@2=crash")
        return Fault(int(match[1]), match[2], int(match[3]), Kind(match[4]))


class Life:
    """One driver process: a job master from its start to its end. Fault points of its thread come to ``at_point``."""

    def __init__(self, simulation: Simulation, number: int, planned: Iterable[Fault], parallelism: int) -> None:
        self.simulation, self.number, self.parallelism = simulation, number, parallelism
        self.planned = {(fault.point, fault.passing): fault for fault in planned if fault.life == number}
        self.passed: Counter[str] = Counter()
        self.order: list[str] = []
        self.in_tasks: set[str] = set()
        self.overlaps: list[tuple[str, int]] = []
        """Points, with their passing, that the checkpoint lane came to while a round ran."""
        self.fired: list[Fault] = []
        self.error: Exception | None = None
        self.crashed = self.finished = False
        self.rounds = self.starts = self.completed = 0
        self.restored: int | None = None
        """The checkpoint it restored last; 0: one of another job."""
        self.failed_at: set[str] = set()
        """Points where an operation failed since storage was last looked at."""
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
        self.violation: AssertionError | None = None
        self._worker_died = False
        self.lanes: SimulatedLanes | None = None
        self.at_round: dict[int, Callable[[JobMaster], object]] = {}
        """What somebody tells the job while the n-th round of this life begins."""
        self.clock = ManualClock(same_as=simulation.clock)
        """With the timers of this driver, which end with it."""
        self.engine = _ObservedEngine(self, simulation)

    def run(self) -> None:
        simulation = self.simulation
        program = simulation.scenario.program(simulation.place, self.parallelism, simulation.settings)
        try:
            self.master = JobMaster(
                program,
                self.engine,
                clock=self.clock,
                liveness=self._is_alive,
                local_root=simulation.place.local,
                lanes=self._new_lanes,
            )
            self.master.run()
            self.finished = True
        except SimulatedCrash:
            self.crashed = True
            self._let_go()
        except Exception as error:
            self.error = error
        if self.violation is not None:
            raise self.violation

    def _let_go(self) -> None:
        """Locks end with a process."""
        files = self.master._job.files
        if isinstance(files, SpooledFiles) and files.held is not None:
            files.held.let_go()

    def _new_lanes(self, inbox: Inbox, name: str) -> SimulatedLanes:
        self.lanes = SimulatedLanes(inbox, self.simulation.seed * 103 + self.number)
        self.engine.between_tasks = self.lanes.between_tasks
        return self.lanes

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
        """Go on behind the pause, to the end."""
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

    def _is_alive(self, owner: Owner) -> bool:
        """Drivers before this one are dead, or seem to be. Behind its own start the newest lease is its own."""
        return self.starts > 0

    # -- fault points ------------------------------------------------------------------------------------------------------

    def at_point(self, name: str, where: dict[str, Any]) -> None:
        inside = self.engine.inside
        if inside is Inside.ZOMBIE:
            return
        if self.crashed:
            raise SimulatedCrash
        if self._worker_died:
            raise WorkerDied
        if name in _OBSERVED:
            with self.checking():
                self._observe(name, where)
        self.passed[name] += 1
        self.passed["*"] += 1
        self.order.append(name)
        if inside is Inside.TASK:
            self.in_tasks.add(name)
        elif self.lanes is not None and self.lanes.overlap:
            self.overlaps.append((name, self.passed[name]))
        if self.passed["*"] == self.pause_at:
            self._is_waiting = True
            self._paused.release()
            self._go_on.acquire()
            self._is_waiting = False
        fault = self.planned.get((name, self.passed[name])) or self.planned.get(("*", self.passed["*"]))
        if fault is not None:
            self._fire(fault, name, inside)

    def _fire(self, fault: Fault, name: str, inside: Inside) -> None:
        self.fired.append(fault)
        if fault.kind is Kind.ERROR:
            self.failed_at.add(name)
            raise OSError(errno.EIO if "read" in name else errno.ENOSPC, "injected")
        if fault.kind is Kind.KILL and inside is Inside.TASK:
            self._worker_died = True
            raise WorkerDied
        self.crashed = True
        raise SimulatedCrash

    def worker_replaced(self) -> None:
        self._worker_died = False

    @contextmanager
    def checking(self) -> Iterator[None]:
        """A check that fails in the middle of the job ends this life: the job must not take it for a failure of its own."""
        try:
            yield
        except AssertionError as error:
            self.violation, self.crashed = error, True
            raise SimulatedCrash from error

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


class _ObservedEngine(SimulatedEngine):
    """Rounds take simulated time; storage is looked at when an attempt has taken over, right behind its sweep."""

    def __init__(self, life: Life, simulation: Simulation) -> None:
        seed = simulation.seed * 101 + life.number
        super().__init__(seed, simulation.chances, workers=2, zombies=simulation.zombies)
        self._life, self._simulation = life, simulation

    def start(self, spec: JobSpec) -> None:
        self._life.starts += 1
        self._begins = True
        super().start(spec)

    def _begin(self) -> None:
        self._begins = False
        self._simulation.history.settled = True
        with self._life.checking(), unobserved():
            self._simulation.check_started(self._life)

    def run(self, plan: RoundPlan) -> list[Ack]:
        if plan.context.rehearsal:
            return super().run(plan)
        if self._begins:
            self._begin()
        with self._life.checking(), unobserved():
            self._simulation.check_tidy(self._life)
        self._life.rounds += 1
        with self._life.checking():
            assert self._life.rounds <= MOST_ROUNDS, f"I9: {MOST_ROUNDS} rounds and no end"
        self._life.clock.advance(self._random.choice((5, 30, 60)))
        tell = self._life.at_round.get(self._life.rounds)
        if tell is not None:
            tell(self._life.master)
        if self._maybe(self._chances.hang, "hang"):
            self._hang()
        return super().run(plan)

    def _hang(self) -> None:
        """Time passes, and the checkpoint lane goes on, until somebody cancels the round."""
        self.cancelled = False
        for _ in range(MOST_WAITS):
            if self.cancelled:
                raise RoundError("A simulated round was cancelled")
            self.between_tasks()
            self._life.clock.advance(100)
        with self._life.checking():
            raise AssertionError("I9: a round hangs and nobody cuts it off")

    def _run_attempt(self, *arguments: Any) -> list[tuple[int, Any]]:
        try:
            return super()._run_attempt(*arguments)
        finally:
            self._life.worker_replaced()


# -- the hook ------------------------------------------------------------------------------------------------------------

_lives: dict[int, Life] = {}
_quiet = threading.local()


def _hook(name: str, where: dict[str, Any]) -> None:
    life = _lives.get(threading.get_ident())
    if life is not None and not getattr(_quiet, "on", False):
        life.at_point(name, where)


@contextmanager
def unobserved() -> Iterator[None]:
    """The observer's own reads pass no fault points."""
    before, _quiet.on = getattr(_quiet, "on", False), True
    try:
        yield
    finally:
        _quiet.on = before


@contextmanager
def current(life: Life) -> Iterator[None]:
    _lives[threading.get_ident()] = life
    faults.install(_hook)
    try:
        yield
    finally:
        del _lives[threading.get_ident()]
        if not _lives:
            faults.install(None)
