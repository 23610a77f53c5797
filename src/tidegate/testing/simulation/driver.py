"""One simulated driver: a job master that crashes, fails or continues at the fault points it passes."""

from __future__ import annotations

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import RoundError
from tidegate.base.spooled_files import SpooledFiles
from tidegate.checkpoint.owner import Owner
from tidegate.graph.transformation import Program
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.inbox import Inbox
from tidegate.runtime.master import JobMaster
from tidegate.testing.engine import Rows
from tidegate.testing.simulation.engine import Chances, Inside, LateRows, SimulatedEngine, WorkerDied
from tidegate.testing.simulation.lanes import SimulatedLanes

MOST_WAITS = 10_000
MOST_ROUNDS = 150
"""A driver that needs more rounds makes no progress (I9)."""


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


class SimulatedDriver:
    """One driver process: a job master from its start to its end. Fault points of its thread come to ``at_point``.

    ``number`` counts the drivers of a job from 0, and chooses the faults among ``planned``. ``zombies`` are the late tasks
    of earlier drivers. A subclass may look at the job at each point (``observe``), attempt and round.
    """

    most_rounds = MOST_ROUNDS

    def __init__(
        self,
        number: int,
        planned: Iterable[Fault],
        *,
        seed: int,
        clock: ManualClock,
        chances: Chances | None = None,
        zombies: list[LateRows] | None = None,
        workers: int = 2,
    ) -> None:
        self.number, self._seed = number, seed
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
        self.failed_at: set[str] = set()
        """Points where an operation failed since storage was last looked at."""
        self.violation: AssertionError | None = None
        self._worker_died = False
        self.lanes: SimulatedLanes | None = None
        self.at_round: dict[int, Callable[[JobMaster], object]] = {}
        """What somebody tells the job while the n-th round of this driver begins."""
        self.clock = ManualClock(same_as=clock)
        """With the timers of this driver, which end with it."""
        self.engine = DrivenEngine(self, seed * 101 + number, chances, workers, zombies)

    # -- what a subclass may look at -----------------------------------------------------------------------------------

    def observe(self, name: str, where: dict[str, Any]) -> None:
        """Look at a fault point, before a fault may fire there."""

    def attempt_begins(self) -> None:
        """Look at the job before the first round of an attempt."""

    def round_begins(self) -> None:
        """Look at the job before a round."""

    # -- the process ---------------------------------------------------------------------------------------------------

    def run_program(self, program: Program, local_root: str) -> None:
        """Run the job until it ends, fails or crashes. ``finished``, ``error`` and ``crashed`` say which."""
        try:
            self.master = JobMaster(
                program,
                self.engine,
                clock=self.clock,
                liveness=self._is_alive,
                local_root=local_root,
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
        """Let go of the locks, which end with a process."""
        files = self.master._job.files
        if isinstance(files, SpooledFiles) and files.held is not None:
            files.held.let_go()

    def _new_lanes(self, inbox: Inbox, name: str) -> SimulatedLanes:
        self.lanes = SimulatedLanes(inbox, self._seed * 103 + self.number)
        self.engine.between_tasks = self.lanes.between_tasks
        return self.lanes

    def _is_alive(self, owner: Owner) -> bool:
        """Drivers before this one are dead, or seem to be. After its own start the newest lease is its own."""
        return self.starts > 0

    # -- fault points --------------------------------------------------------------------------------------------------

    def at_point(self, name: str, where: dict[str, Any]) -> None:
        inside = self.engine.inside
        if inside is Inside.ZOMBIE:
            return
        if self.crashed:
            raise SimulatedCrash
        if self._worker_died:
            raise WorkerDied
        self.observe(name, where)
        self.passed[name] += 1
        self.passed["*"] += 1
        self.order.append(name)
        if inside is Inside.TASK:
            self.in_tasks.add(name)
        elif self.lanes is not None and self.lanes.overlap:
            self.overlaps.append((name, self.passed[name]))
        self.passed_point()
        fault = self.planned.get((name, self.passed[name])) or self.planned.get(("*", self.passed["*"]))
        if fault is not None:
            self._fire(fault, name, inside)

    def passed_point(self) -> None:
        """A point was counted, and its fault has not fired yet."""

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
        """A check that fails in the middle of the job ends this driver: the job must not take it for a failure of its own."""
        try:
            yield
        except AssertionError as error:
            self.violation, self.crashed = error, True
            raise SimulatedCrash from error


class DrivenEngine(SimulatedEngine):
    """The engine of a simulated driver: rounds take simulated time, and a round may hang until it is cancelled."""

    def __init__(
        self, driver: SimulatedDriver, seed: int, chances: Chances | None, workers: int, zombies: list[LateRows] | None
    ) -> None:
        super().__init__(seed, chances, workers=workers, zombies=zombies)
        self._driver = driver
        self._begins = False

    def start(self, spec: JobSpec) -> None:
        self._driver.starts += 1
        self._begins = True
        super().start(spec)

    def run(self, plan: RoundPlan) -> list[Ack]:
        if plan.context.rehearsal:
            return super().run(plan)
        driver = self._driver
        if self._begins:
            self._begins = False
            driver.attempt_begins()
        driver.round_begins()
        driver.rounds += 1
        with driver.checking():
            assert driver.rounds <= driver.most_rounds, f"I9: {driver.most_rounds} rounds and no end"
        driver.clock.advance(self._random.choice((5, 30, 60)))
        tell = driver.at_round.get(driver.rounds)
        if tell is not None:
            tell(driver.master)
        if self._maybe(self._chances.hang, "hang"):
            self._hang()
        return super().run(plan)

    def _hang(self) -> None:
        """Time passes, and the checkpoint lane continues, until somebody cancels the round."""
        self.cancelled = False
        for _ in range(MOST_WAITS):
            if self.cancelled:
                raise RoundError("A simulated round was cancelled")
            self.between_tasks()
            self._driver.clock.advance(100)
        with self._driver.checking():
            raise AssertionError("I9: a round hangs and nobody cuts it off")

    def _run_attempt(self, *arguments: Any) -> Rows:
        try:
            return super()._run_attempt(*arguments)
        finally:
            self._driver.worker_replaced()


# -- the hook ----------------------------------------------------------------------------------------------------------

_drivers: dict[int, SimulatedDriver] = {}
_quiet = threading.local()


def _hook(name: str, where: dict[str, Any]) -> None:
    driver = _drivers.get(threading.get_ident())
    if driver is not None and not getattr(_quiet, "on", False):
        driver.at_point(name, where)


@contextmanager
def unobserved() -> Iterator[None]:
    """The observer's own reads pass no fault points."""
    before, _quiet.on = getattr(_quiet, "on", False), True
    try:
        yield
    finally:
        _quiet.on = before


@contextmanager
def current(driver: SimulatedDriver) -> Iterator[None]:
    """Let the fault points of this thread come to the driver."""
    _drivers[threading.get_ident()] = driver
    faults.install(_hook)
    try:
        yield
    finally:
        del _drivers[threading.get_ident()]
        if not _drivers:
            faults.install(None)
