"""The simulated engine: the same levels in one process, with a seeded schedule and injected faults. A test tool.

It does what Spark may do: rows arrive in any order, tasks run in any worker, attempts fail half-way and are tried
again, zombies finish late, a finished task is run again after some of its receivers have read the first run.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import RoundError
from tidegate.operators.level import Job, JobSpec
from tidegate.operators.rows import Ack, Row, TaskPlan
from tidegate.runtime.engine import RoundPlan
from tidegate.state.local_dir import remove_job

_ATTEMPTS = 4


@dataclass(frozen=True)
class Chances:
    """Probabilities per task (``rerun``: per level and round)."""

    die: float = 0.0
    """The attempt's worker dies in the middle; Spark tries again elsewhere."""
    zombie: float = 0.0
    """The attempt runs to its end, but its output is lost and it is run again."""
    rerun: float = 0.0
    """A finished task is run again and some receivers read the second run: tokens disagree, the round must fail."""
    lose_store: float = 0.0
    """The host's local state is gone: the next task rebuilds it."""


class SimulatedEngine:
    """See runtime/engine.py for the contract. ``fired`` counts what was injected, by name."""

    def __init__(self, seed: int, chances: Chances | None = None, workers: int = 3) -> None:
        self._random = random.Random(seed)
        self._chances = chances or Chances()
        self._workers: list[Job | None] = [None] * workers
        self._spec: JobSpec | None = None
        self.fired: dict[str, int] = {}

    def start(self, spec: JobSpec) -> None:
        self._spec = spec
        self._workers = [None] * len(self._workers)

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self._spec is not None
        incoming: list[list[Row]] = [[] for _ in range(self._spec.widths[0])]
        for level in range(len(plan.tasks)):
            outputs = [self._task(level, p, plan, incoming[p]) for p in range(self._spec.widths[level])]
            if level + 1 == len(plan.tasks):
                return [pickle.loads(payload) for rows in outputs for _, payload in rows]
            incoming = self._shuffle(level, outputs, plan, incoming)
        raise AssertionError("a job has at least one level")

    def _shuffle(
        self, level: int, outputs: list[list[tuple[int, Any]]], plan: RoundPlan, incoming: list[list[Row]]
    ) -> list[list[Row]]:
        assert self._spec is not None
        width = self._spec.widths[level + 1]
        arrived: list[list[Row]] = [[] for _ in range(width)]
        again = self._maybe(self._chances.rerun, "rerun") and width > 1
        second = self._task(level, 0, plan, incoming[0]) if again else []
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

    def _task(self, level: int, partition: int, plan: RoundPlan, rows: list[Row]) -> list[tuple[int, Any]]:
        if self._maybe(self._chances.zombie, "zombie"):
            list(self._attempt(level, partition, plan, rows))
        for _ in range(_ATTEMPTS):
            attempt = self._attempt(level, partition, plan, rows)
            if not self._maybe(self._chances.die, "die"):
                return list(attempt)
            for _ in range(self._random.randrange(4)):
                next(attempt, None)
            attempt.close()
            self._workers[self._random.randrange(len(self._workers))] = None
        raise RoundError("A simulated task failed, with all its retries", where=f"level {level}, partition {partition}")

    def _attempt(self, level: int, partition: int, plan: RoundPlan, rows: list[Row]) -> Any:
        assert self._spec is not None
        number = self._random.randrange(len(self._workers))
        job = self._workers[number]
        if job is None:
            job = self._workers[number] = Job(self._spec)
        task: TaskPlan = pickle.loads(pickle.dumps(plan.tasks[level][partition], 5))
        if self._maybe(self._chances.lose_store, "lose_store"):
            self.lose_local_state()
            job = self._workers[number] = Job(self._spec)
        return job.run_partition(level, partition, plan.context, task, _stream(rows))

    def lose_local_state(self) -> None:
        """A host is gone, with its stores and workers."""
        assert self._spec is not None
        self._workers = [None] * len(self._workers)
        settings = self._spec.settings
        remove_job(settings.local_root, settings.job_id)

    def _maybe(self, chance: float, name: str) -> bool:
        if chance and self._random.random() < chance:
            self.fired[name] = self.fired.get(name, 0) + 1
            return True
        return False

    def cancel(self) -> None:
        return None

    def stop(self) -> None:
        self._workers = [None] * len(self._workers)


def _stream(rows: list[Row]) -> Iterator[Row]:
    yield from rows
