"""Run a prepared job in the simulator: one life after the other, with faults, until it has finished."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.base.clock import ManualClock
from tidegate.base.errors import UserCodeError
from tidegate.base.user_code import users_line
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.operators.flow.subtask import Subtask
from tidegate.state.local_dir import SHARED_MEMORY
from tidegate.state.stores import close_removed_stores
from tidegate.testing.certify.code import place_text
from tidegate.testing.certify.prepared import PreparedJob, World, worlds
from tidegate.testing.simulation.driver import Fault, Kind, SimulatedDriver, current
from tidegate.testing.simulation.engine import Chances

MOST_ROUNDS = 250
_ERRORS = ("storage.", "T2.")
"""Points at which storage may fail."""
FEW, ALL = "few", "all"


@dataclass(frozen=True)
class Schedule:
    """How a job is run: its faults, and everything that must not matter. ``records``: of a source in a round."""

    seed: int = 1
    faults: tuple[Fault, ...] = ()
    chances: Chances = field(default_factory=Chances)
    parallelism: tuple[int | None, ...] = (None,)
    """Of each life in turn."""
    records: int | None = None
    workers: int = 1
    new_workers: bool = False
    """Every round runs in a new worker."""

    def __str__(self) -> str:
        parts = [f"seed {self.seed}", *map(str, self.faults)]
        rates = [f"{name}={rate}" for name, rate in vars(self.chances).items() if rate]
        widths = [str(width) for width in self.parallelism if width is not None]
        parts += [*rates, *([f"parallelism {','.join(widths)}"] if widths else [])]
        parts += [f"{self.records} records a round"] if self.records else ["one round"]
        return " ".join(parts) + (" new worker each round" if self.new_workers else "")


@dataclass
class ScheduleResult:
    """What a run gave. ``error``: the job failed for good."""

    visible: dict[str, Counter[str]]
    error: Exception | None = None
    failed_at: str | None = None
    """The user's line that failed last."""
    stuck: str | None = None
    """Why the run was given up: no fault of the job."""
    rounds: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    in_tasks: set[str] = field(default_factory=set)
    fired: list[str] = field(default_factory=list)


Look = Callable[["CertifiedDriver"], None]


class CertifiedDriver(SimulatedDriver):
    """A simulated driver whose workers can be replaced before every round, and looked at after it."""

    most_rounds = MOST_ROUNDS

    def __init__(self, number: int, schedule: Schedule, clock: ManualClock, look: Look | None) -> None:
        super().__init__(
            number,
            schedule.faults,
            seed=schedule.seed,
            clock=clock,
            chances=schedule.chances,
            zombies=[],
            workers=schedule.workers,
        )
        self._replaces, self._look = schedule.new_workers, look

    def round_begins(self) -> None:
        if self._look is not None:
            self._look(self)
        if self._replaces:
            self.engine._workers = [None] * len(self.engine._workers)

    def operators(self) -> list[StreamOperator]:
        """Return the operators that the workers hold now."""
        jobs = [job for job in self.engine._workers if job is not None]
        return [o for job in jobs for subtask in job._subtasks.values() for o in subtask.operators.values()]


_numbers = iter(range(1, 1 << 60))


def run(
    job: PreparedJob,
    schedule: Schedule,
    *,
    look: Look | None = None,
    changed: Callable[[Program], Program] = lambda program: program,
) -> ScheduleResult:
    """Run a job to its end: a life for each number that the faults name, then lives without faults."""
    world = f"world-{next(_numbers)}"
    worlds[world] = World()
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    directory = tempfile.mkdtemp(prefix="tidegate-certify-", dir=memory)
    clock, outcome = ManualClock(), ScheduleResult({})
    keys: Mapping[str, Any] = {"tidegate.round.max-records": schedule.records}
    try:
        most = 2 + max((fault.life for fault in schedule.faults), default=0)
        for number in range(most):
            width = schedule.parallelism[number % len(schedule.parallelism)]
            driver = CertifiedDriver(number, schedule, clock, look)
            program = changed(job.variant(world, directory, width, keys))
            try:
                with current(driver), _failures(outcome):
                    driver.run_program(program, f"{directory}/local")
            except AssertionError as error:
                outcome.stuck = str(error)
                break
            finally:
                outcome.rounds += driver.rounds
                outcome.passed += driver.passed
                outcome.in_tasks |= driver.in_tasks
                outcome.fired += [fault.point for fault in driver.fired]
            outcome.error = driver.error
            if driver.finished or (driver.error is not None and not driver.fired):
                break
        outcome.visible = worlds[world].outcome()
        return outcome
    finally:
        del worlds[world]
        shutil.rmtree(directory, ignore_errors=True)
        close_removed_stores()


@contextmanager
def _failures(outcome: ScheduleResult) -> Iterator[None]:
    """Note the user's line where a subtask fails: the error that reaches the driver has no traceback."""

    def note(subtask: Subtask, error: BaseException) -> None:
        while isinstance(error, UserCodeError) and error.__cause__ is not None:
            error = error.__cause__
        line = users_line(error)
        if line is not None:
            file, _, rest = line.rpartition(":")
            number, _, name = rest.partition(" in ")
            outcome.failed_at = place_text(file, int(number), name)

    before = Subtask.on_failure
    Subtask.on_failure = staticmethod(note)
    try:
        yield
    finally:
        Subtask.on_failure = before


def schedules(
    reference: Schedule, job: PreparedJob, passed: Counter[str], in_tasks: set[str], rounds: list[int]
) -> Iterator[Schedule]:
    """Yield schedules without end: first each fault point, then at random. ``rounds``: numbers of records a round."""
    widths: list[int | None] = [None] if job.batch else [None, 1, 2, 3]
    if not job.batch:
        kinds = {Kind.CRASH: set(passed), Kind.KILL: in_tasks, Kind.ERROR: {p for p in passed if p.startswith(_ERRORS)}}
        for kind, points in kinds.items():
            for name in sorted(points - {"*"}):
                fault = Fault(0, name, (passed[name] + 1) // 2, kind)
                yield replace(reference, faults=(fault,), workers=2)
    seed = reference.seed
    while True:
        seed += 1
        dice = random.Random(seed)
        faults = []
        for life in range(0 if job.batch else dice.randrange(3)):
            kind = dice.choice((Kind.CRASH, Kind.CRASH, Kind.KILL, Kind.ERROR))
            faults.append(Fault(life, "*", dice.randrange(1, max(2, passed["*"])), kind))
        rates = {name: dice.choice((0, 0, 0.05)) for name in ("die", "zombie", "rerun", "lose_store", "rerun_whole")}
        if job.batch:
            rates["rerun"] = 0  # nothing would be left to continue from
        yield Schedule(
            seed,
            tuple(faults),
            Chances(**rates),
            (dice.choice(widths), dice.choice(widths), dice.choice(widths)),
            dice.choice((None, *rounds)),
            workers=dice.choice((1, 2, 3)),
        )


def differences(
    expected: dict[str, Counter[str]], found: dict[str, Counter[str]]
) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Return what is missing and what is too much, by sink."""
    every = {}
    for sink in {*expected, *found}:
        want, have = expected.get(sink, Counter()), found.get(sink, Counter())
        if want != have:
            every[sink] = want - have, have - want
    return every


def shown(missing: Counter[str], extra: Counter[str]) -> str:
    """Return an example of a difference as text."""
    parts = []
    for name, counted in (("missing", missing), ("instead" if missing else "too much", extra)):
        examples = [f"{value:.120}" for value in sorted(counted)[:2]]
        if examples:
            parts.append(
                f"{name}: {', '.join(examples)}" + (f" and {len(counted) - 2} more" if len(counted) > 2 else "")
            )
    return "; ".join(parts)
