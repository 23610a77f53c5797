"""The simulated engine: the same levels in one process, with a seeded schedule and injected faults.

It does what Spark may do: rows arrive in any order, tasks run in any worker, attempts fail half-way and are tried
again, zombies finish late, a finished task is run again after some of its receivers have read the first run.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import RoundError
from tidegate.operators.flow.level import Job, JobSpec
from tidegate.operators.flow.rows import Ack, Row, TaskRun
from tidegate.runtime.engine import RoundPlan
from tidegate.state.local_dir import remove_job
from tidegate.testing.engine import InProcessEngine, Rows, sent

_ATTEMPTS = 4

LateRows = Iterator[tuple[int, Any]]
"""The rows that a late attempt has still to send."""


class WorkerDied(faults.Killed):
    """Raised by a fault hook inside a task: the worker's process is gone, Spark tries the task again elsewhere."""


class Inside(Enum):
    """Whose code runs right now: fault hooks ask."""

    DRIVER = "driver"
    TASK = "task"
    ZOMBIE = "zombie"


@dataclass(frozen=True)
class Chances:
    """Probabilities per task (``rerun``, ``rerun_whole``: per level and round)."""

    die: float = 0.0
    """The attempt's worker dies in the middle; Spark tries again elsewhere."""
    zombie: float = 0.0
    """The attempt runs to its end, but its output is lost and it is run again."""
    late: float = 0.0
    """As a zombie, but it continues bit by bit while later rounds, and later attempts of the job, run."""
    rerun: float = 0.0
    """A finished task is run again and some receivers read the second run: tokens disagree, the round must fail."""
    rerun_whole: float = 0.0
    """A finished level is run again and all receivers read the second run: the round is good, the first run's output lingers."""
    lose_store: float = 0.0
    """The host's local state is gone: the next task rebuilds it."""
    hang: float = 0.0
    """Per round: it does not end until it is cancelled. For engines with a clock (``lives.py``)."""


class SimulatedEngine(InProcessEngine):
    """Run rounds as Spark may run them. ``fired`` counts what was injected, by name.

    ``zombies``: a list to share with the engines of later drivers of the job, whose executors still run old tasks.
    """

    timeless = True
    """How long tasks take is not reported: it depends on the machine, and what the driver makes of it would differ between runs."""

    def __init__(
        self, seed: int, chances: Chances | None = None, workers: int = 3, zombies: list[LateRows] | None = None
    ) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._chances = chances or Chances()
        self._workers: list[Job | None] = [None] * workers
        self._used = 0
        self._zombies = zombies if zombies is not None else []
        self.inside = Inside.DRIVER
        self.between_tasks: Callable[[], None] = lambda: None
        """What else the driver does while a round runs: called before each task."""
        self.fired: dict[str, int] = {}

    def start(self, spec: JobSpec) -> None:
        self._spec = spec
        self._workers = [None] * len(self._workers)

    def run(self, plan: RoundPlan) -> list[Ack]:
        acks = super().run(plan)
        return list(map(_timeless, acks)) if self.timeless else acks

    def run_level(self, level: int, plan: RoundPlan, incoming: list[list[Row]]) -> list[Rows]:
        outputs = super().run_level(level, plan, incoming)
        if self._maybe(self._chances.rerun_whole, "rerun_whole"):
            outputs = [self.run_task(level, p, plan, rows, tried=1) for p, rows in enumerate(incoming)]
        return outputs

    def shuffle(self, level: int, outputs: list[Rows], plan: RoundPlan, incoming: list[list[Row]]) -> list[list[Row]]:
        width = self.spec.widths[level + 1]
        arrived: list[list[Row]] = [[] for _ in range(width)]
        again = width > 1 and self._maybe(self._chances.rerun, "rerun")
        second = self.run_task(level, 0, plan, incoming[0]) if again else []
        late = self._random.randrange(1, width) if again else width
        for sender, rows in enumerate(outputs):
            for partition, row in rows:
                if not (again and sender == 0 and partition >= late):
                    arrived[partition].append(row)
        for partition, row in second:
            if partition >= late:
                arrived[partition].append(row)
        for received in arrived:
            self._random.shuffle(received)
        return arrived

    # -- attempts of a task ----------------------------------------------------------------------------------------------

    def run_task(self, level: int, partition: int, plan: RoundPlan, rows: list[Row], tried: int = 0) -> Rows:
        self._haunt()
        self.between_tasks()
        if self._maybe(self._chances.zombie, "zombie"):
            with self._as(Inside.ZOMBIE):
                list(self._attempt(level, partition, plan, rows))
            tried += 1
        if self._maybe(self._chances.late, "late"):
            given = sent(plan, level, partition, rows)
            self._zombies.append(Job(self.spec).run_partition(level, partition, plan.context, *given))
            tried += 1
        for attempt in range(tried, tried + _ATTEMPTS):
            try:
                with self._as(Inside.TASK):
                    return self._run_attempt(level, partition, plan, rows, attempt)
            except WorkerDied:
                self._workers[self._used] = None
        raise RoundError("A simulated task failed, with all its retries", where=f"level {level}, partition {partition}")

    def _run_attempt(self, level: int, partition: int, plan: RoundPlan, rows: list[Row], number: int) -> Rows:
        attempt = self._attempt(level, partition, plan, rows, number)
        if not self._maybe(self._chances.die, "die"):
            return list(attempt)
        for _ in range(self._random.randrange(4)):
            next(attempt, None)
        attempt.close()
        raise WorkerDied

    def _attempt(self, level: int, partition: int, plan: RoundPlan, rows: list[Row], attempt: int = 0) -> Any:
        self._used = number = self._random.randrange(len(self._workers))
        job = self._workers[number]
        if job is None:
            job = self._workers[number] = Job(self.spec)
        if self._maybe(self._chances.lose_store, "lose_store"):
            self.lose_local_state()
            job = self._workers[number] = Job(self.spec)
        run = TaskRun(attempt, place=f"worker {number}")
        return job.run_partition(level, partition, plan.context, *sent(plan, level, partition, rows, run))

    def _haunt(self, most: int = 3) -> None:
        """Let a late attempt of an earlier round continue for some rows."""
        if self._zombies and self._random.random() < 0.5:
            zombie = self._random.choice(self._zombies)
            with self._as(Inside.ZOMBIE):
                for _ in range(self._random.randint(1, most)):
                    if next(zombie, None) is None:
                        self._zombies.remove(zombie)
                        break

    def lay_zombies(self) -> None:
        """Late attempts run to their end, now."""
        with self._as(Inside.ZOMBIE):
            for zombie in self._zombies:
                for _ in zombie:
                    pass
        self._zombies.clear()

    def lose_local_state(self) -> None:
        """A host is gone, with its stores and workers."""
        self._workers = [None] * len(self._workers)
        settings = self.spec.settings
        for root in settings.local_roots:
            remove_job(root, settings.local_name)
        if settings.spool:
            shutil.rmtree(settings.spool, ignore_errors=True)

    @contextmanager
    def _as(self, inside: Inside) -> Iterator[None]:
        before, self.inside = self.inside, inside
        try:
            yield
        finally:
            self.inside = before

    def _maybe(self, chance: float, name: str) -> bool:
        if chance and self._random.random() < chance:
            self.fired[name] = self.fired.get(name, 0) + 1
            return True
        return False

    def cancel(self) -> None:
        """A round that hangs ends; any other runs to its end, as one whose cancellation came too late."""
        self.cancelled = True

    def stop(self) -> None:
        if self._spec is not None:
            self.lose_local_state()


def _timeless(ack: Ack) -> Ack:
    ack.seconds = ack.align_seconds = 0.0
    ack.snapshot_seconds = dict.fromkeys(ack.snapshot_seconds, 0.0)
    ack.work = ack.work._replace(read=0.0, user=0.0, pack=0.0, snapshot=0.0)
    return ack
