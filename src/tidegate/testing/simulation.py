"""Simulated lives of a job: drivers crash, wake up late, storage fails, workers die; then everything is looked at.

A run is a scenario, a seed and a list of faults: the same three give the same run again. Every run is audited from
outside for the invariants I1 to I13 of FAULTS.md.
"""

from __future__ import annotations

import errno
import random
import re
import shutil
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidegate.checkpoint.lease_records import RestoredRecord, read_record, restored_path
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.metadata import read_metadata
from tidegate.checkpoint.owner import Owner
from tidegate.common import faults, ids
from tidegate.common.clock import ManualClock
from tidegate.common.files import Files
from tidegate.graph.transformation import Program, Transformation
from tidegate.operators.level import JobSpec
from tidegate.operators.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.observer import (
    Coverage,
    Output,
    OutputObserver,
    Outside,
    StateProbe,
    check_retained,
    check_state,
    check_storage,
    coverage_of,
)
from tidegate.testing.simulated_engine import Chances, Inside, Rows, SimulatedEngine, WorkerDied

MOST_ROUNDS = 150
"""A life that needs more is not getting on (I9)."""


class SimulatedCrash(BaseException):
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


@dataclass(frozen=True)
class Place:
    """Directories of one run. ``outside``: where sinks write."""

    root: str
    job_id: str = "simulated"

    @property
    def checkpoints(self) -> str:
        return f"{self.root}/checkpoints"

    @property
    def job(self) -> str:
        return f"{self.checkpoints}/{self.job_id}"

    @property
    def local(self) -> str:
        return f"{self.root}/local"

    def outside(self, name: str) -> str:
        return f"{self.root}/outside/{name}"


class Scenario(ABC):
    """A program with a model of what it must put out."""

    name = ""

    @abstractmethod
    def transformations(self, place: Place) -> list[Transformation]:
        """The program; the parallelism is the environment's."""

    @abstractmethod
    def outputs(self, place: Place) -> list[Output]: ...

    def probe(self) -> StateProbe | None:
        """A state to compare with the model in every retained checkpoint."""
        return None

    def program(self, place: Place, parallelism: int, settings: dict[str, Any]) -> Program:
        configuration = {**BASE_SETTINGS, **settings, "parallelism.default": parallelism}
        configuration |= {"execution.checkpointing.dir": place.checkpoints, "tidegate.job-id": place.job_id}
        return Program(self.name, tuple(self.transformations(place)), configuration)


BASE_SETTINGS: dict[str, Any] = {
    "execution.checkpointing.interval": 100,
    "execution.checkpointing.tolerable-failed-checkpoints": 2,
    "execution.checkpointing.num-retained": 2,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 30,
    "restart-strategy.fixed-delay.delay": 10,
    "pipeline.max-parallelism": 16,
    "tidegate.state.map-size": 1 << 20,
    "tidegate.chunk.records": 3,
    "tidegate.commit.backoff": 1,
}


@dataclass
class History:
    """What was seen of a job over all its lives: checkpoint ids, what each covers, what was committed."""

    coverage: dict[int, Coverage] = field(default_factory=dict)
    triggered: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    settled: bool = True
    """No commit is under way, or was cut short."""

    def trigger(self, checkpoint_id: int, alone: bool) -> None:
        """I11. Of two drivers one may be paused between taking an id and this, so only one alone sees them grow."""
        grows = not self.triggered or checkpoint_id > self.triggered[-1]
        assert grows if alone else checkpoint_id not in self.triggered, (
            f"I11: id {checkpoint_id} after {self.triggered}"
        )
        self.triggered.append(checkpoint_id)

    def commit(self, checkpoint_id: int, alone: bool) -> None:
        """I11. A driver that wakes up in a commit may repeat an older one, without effect: the outputs tell."""
        last = self.committed[-1] if self.committed else 0
        if checkpoint_id < last:
            assert not alone, f"I11: {checkpoint_id} committed after {last}"
            return
        self.committed.append(checkpoint_id)

    @property
    def published(self) -> list[Coverage]:
        return list(self.coverage.values())

    @property
    def latest_committed(self) -> Coverage:
        return self.coverage.get(self.committed[-1], {}) if self.committed else {}


class Life:
    """One driver process: a job master from its start to its end. Fault points of its thread come to ``at_point``."""

    def __init__(self, simulation: Simulation, number: int, planned: Iterable[Fault], parallelism: int) -> None:
        self.simulation, self.number, self.parallelism = simulation, number, parallelism
        self.planned = {(fault.point, fault.passing): fault for fault in planned if fault.life == number}
        self.passed: Counter[str] = Counter()
        self.order: list[str] = []
        self.in_tasks: set[str] = set()
        self.fired: list[Fault] = []
        self.error: Exception | None = None
        self.crashed = self.finished = False
        self.rounds = self.starts = self.completed = 0
        self.restored: int | None = None
        """The checkpoint it restored last; 0: one of another job."""
        self.pause_at = 0
        self._paused, self._go_on = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_waiting = False
        self._broken: BaseException | None = None
        self._worker_died = False
        self.engine = _ObservedEngine(self, simulation)

    def run(self) -> None:
        simulation = self.simulation
        program = simulation.scenario.program(simulation.place, self.parallelism, simulation.settings)
        try:
            self.master = JobMaster(
                program,
                self.engine,
                clock=simulation.clock,
                liveness=self._is_alive,
                local_root=simulation.place.local,
            )
            self.master.run()
            self.finished = True
        except SimulatedCrash:
            self.crashed = True
        except AssertionError:
            raise
        except Exception as error:
            self.error = error

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
            with _current(self):
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
        self._observe(name, where)
        self.passed[name] += 1
        self.passed["*"] += 1
        self.order.append(name)
        if inside is Inside.TASK:
            self.in_tasks.add(name)
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
            raise OSError(errno.EIO if "read" in name else errno.ENOSPC, "injected")
        if fault.kind is Kind.KILL and inside is Inside.TASK:
            self._worker_died = True
            raise WorkerDied
        self.crashed = True
        raise SimulatedCrash

    def worker_replaced(self) -> None:
        self._worker_died = False

    def _observe(self, name: str, where: dict[str, Any]) -> None:
        history = self.simulation.history
        if name == "C1.triggered":
            history.trigger(where["checkpoint_id"], self.simulation.alone)
        elif name == "storage.publish.after-link" and where["path"].endswith("_metadata"):
            history.settled = False
            self.simulation.published(where["path"])
        elif name == "C6.completed":
            self.completed += 1
        elif name == "C6.all-committed":
            history.commit(where["checkpoint_id"], self.simulation.alone)
            history.settled = True
        elif name == "C8.recorded":
            history.settled = False
            self.restored = self.simulation.restored(where["token"])


class _ObservedEngine(SimulatedEngine):
    """Rounds take simulated time; storage is looked at when an attempt starts, right behind its sweep."""

    def __init__(self, life: Life, simulation: Simulation) -> None:
        seed = simulation.seed * 101 + life.number
        super().__init__(seed, simulation.chances, zombies=simulation.zombies)
        self._life, self._simulation = life, simulation

    def start(self, spec: JobSpec) -> None:
        self._life.starts += 1
        self._simulation.history.settled = True
        if self._life.restored is not None:
            self._simulation.history.commit(self._life.restored, self._simulation.alone)
        with unobserved():
            self._simulation.check_started()
        super().start(spec)

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._life.rounds += 1
        assert self._life.rounds <= MOST_ROUNDS, f"I9: {MOST_ROUNDS} rounds and no end"
        self._simulation.clock.advance(self._random.choice((5, 30, 60)))
        return super().run(plan)

    def _run_attempt(self, *arguments: Any) -> list[tuple[int, Any]]:
        try:
            return super()._run_attempt(*arguments)
        finally:
            self._life.worker_replaced()


class Simulation:
    """The lives of one job in one place. ``settings`` override the scenario's configuration."""

    def __init__(
        self,
        scenario: Scenario,
        root: str,
        seed: int,
        *,
        chances: Chances | None = None,
        settings: dict[str, Any] | None = None,
        job_id: str = "simulated",
    ) -> None:
        self.scenario, self.place, self.seed = scenario, Place(root, job_id), seed
        self.chances, self.settings = chances or Chances(), settings or {}
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.history = History()
        self.zombies: list[Rows] = []
        self.lives: list[Life] = []
        self.alone = True
        """No other driver of this job is awake: then storage holds exactly what is referenced."""
        self.observers = [OutputObserver(output) for output in scenario.outputs(self.place)]

    def new_life(self, planned: Iterable[Fault] = (), parallelism: int = 2) -> Life:
        life = Life(self, len(self.lives), planned, parallelism)
        self.lives.append(life)
        return life

    def live(self, planned: Iterable[Fault] = (), parallelism: int = 2) -> Life:
        """One driver from start to end in this thread, then a look from outside."""
        life = self.new_life(planned, parallelism)
        self.run(life)
        return life

    def run(self, life: Life, *, look: bool = True) -> None:
        """Run a life of ``new_life``; ``look`` False where the test itself has damaged what would be looked at."""
        with _current(life):
            life.run()
        if look:
            self.look(life)

    def lose_local_state(self) -> None:
        """No host has the job's stores any more."""
        shutil.rmtree(self.place.local, ignore_errors=True)

    # -- looking -----------------------------------------------------------------------------------------------------------

    def look(self, life: Life) -> None:
        """I5 on all outputs; I6 and I7 on retained checkpoints, now and then."""
        with unobserved():
            for observer in self.observers:
                settled = self.history.settled and self.alone
                observer.look(self.history.published, self.history.latest_committed, settled)
            if self.alone and not life.finished:
                check_retained(self.place.job)
                probe = self.scenario.probe()
                if probe is not None and self.random.random() < 0.3:
                    check_state(self.place.job, probe)

    def published(self, location: str) -> None:
        with unobserved():
            directory, _, name = location.removesuffix("/_metadata").rpartition("/")
            metadata = read_metadata(Files(directory), f"{name}/_metadata")
            self.history.coverage[metadata.checkpoint_id] = coverage_of(metadata)

    def restored(self, token: int) -> int | None:
        """The checkpoint the attempt with this token says it restores; 0: one of another job."""
        with unobserved():
            record = read_record(Files(self.place.job), restored_path(token), RestoredRecord)
            assert record is not None or not self.alone  # a newer driver may have swept it
            if record is None or record.point is None:
                return None
            if not record.point.directory:
                return record.point.checkpoint_id
            self.history.coverage[0] = coverage_of(locate(record.point.directory).metadata)
            return 0

    def check_started(self) -> None:
        if self.alone and not self.zombies:
            self.check_storage(ended=False)

    def check_storage(self, *, ended: bool) -> None:
        """I8 and I12."""
        check_storage(self.place.job, ended=ended)
        local = Files(self.place.local).list() if ended else []
        assert not local, f"I12: local state left behind: {local}"

    def check_end(self) -> None:
        """All invariants, when the last life has finished."""
        life = self.lives[-1]
        assert life.finished, f"I9: the last life did not finish: {life.error}"
        with unobserved():
            for observer in self.observers:
                observer.check_records()
                observer.check_leftovers()
            if self.alone and not self.zombies:
                self.check_storage(ended=True)

    def conclude(self, parallelism: int = 2) -> None:
        """A driver without faults brings the job to its end; late tasks end, and a last start sweeps what they left."""
        if not any(life.finished for life in self.lives):
            life = self.live((), parallelism)
            assert life.error is None, f"I9: a life without faults failed: {life.error!r}"
            assert life.completed or not life.starts, "I9: no checkpoint completed after the last fault"
        if self.zombies or not self.alone or self.lives[-1].fired:
            # late tasks, a second driver or a failing storage may have left what a finished job's next start sweeps
            self.lives[-1].engine.lay_zombies()
            self.alone = True
            unrecorded = any(fault.kind is Kind.ERROR for fault in self.lives[-1].fired)
            again = self.live((), parallelism)
            assert unrecorded or not again.starts, "a finished job was run again"
        self.check_end()


def simulate(
    scenario: Scenario,
    root: str,
    seed: int,
    planned: Sequence[Fault] = (),
    *,
    chances: Chances | None = None,
    parallelism: Sequence[int] = (2,),
    settings: dict[str, Any] | None = None,
) -> Simulation:
    """A whole run: a life for each number the faults name, with the parallelism of its turn, then one to the end."""
    Outside.forget_all()
    with seeded_tokens(seed):
        simulation = Simulation(scenario, root, seed, chances=chances, settings=settings)
        for number in range(1 + max((fault.life for fault in planned), default=0)):
            life = simulation.live(planned, parallelism[number % len(parallelism)])
            if life.finished:
                break
        simulation.conclude(parallelism[len(simulation.lives) % len(parallelism)])
    return simulation


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
def _current(life: Life) -> Iterator[None]:
    _lives[threading.get_ident()] = life
    faults.install(_hook)
    try:
        yield
    finally:
        del _lives[threading.get_ident()]
        if not _lives:
            faults.install(None)


class _SeededTokens:
    """In place of the module ``secrets``: the same seed gives the same names."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_hex(self, size: int) -> str:
        return self._random.randbytes(size).hex()


@contextmanager
def seeded_tokens(seed: int) -> Iterator[None]:
    before = vars(ids)["secrets"]
    vars(ids)["secrets"] = _SeededTokens(seed)
    try:
        yield
    finally:
        vars(ids)["secrets"] = before
