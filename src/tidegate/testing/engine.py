"""The plain engine of ``execution.target: test``: the levels of a job, one subtask after the other, in this process.

It runs the same graph, operators, state and protocol as Spark does. It differs in four points: there is one process, tasks run
one after the other, rows travel in memory in the order in which they were sent, and no task is tried again.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tidegate.base.errors import RoundError
from tidegate.operators.flow.level import Job, JobSpec
from tidegate.operators.flow.rows import FIRST_RUN, Ack, TaskPlan, TaskRun
from tidegate.runtime.engine import RoundPlan
from tidegate.state.local_dir import remove_job

Rows = list[tuple[int, Any]]
"""Rows that a task has sent or gets, each with its partition of the receiving level; after the last level pickled acks."""


class InProcessEngine:
    """See runtime/engine.py for the contract."""

    one_host = True

    def __init__(self) -> None:
        self._spec: JobSpec | None = None
        self._job: Job | None = None
        self.cancelled = False
        self.most_tasks = sys.maxsize
        """How many tasks a level has at most; a level with more subtasks has several in each task."""

    @property
    def spec(self) -> JobSpec:
        """The program of the current attempt."""
        assert self._spec is not None, "the engine has not started"
        return self._spec

    def start(self, spec: JobSpec) -> None:
        """Take the program of an attempt, before its first round."""
        self.close()
        self._spec = spec

    def run(self, plan: RoundPlan) -> list[Ack]:
        """Run a round, level by level, and return the acks of its subtasks."""
        self.cancelled = False  # it was for an earlier round
        incoming: list[Rows] = [[] for _ in range(self.tasks[0])]
        for level in range(len(plan.tasks)):
            outputs = self.run_level(level, plan, incoming)
            if level + 1 == len(plan.tasks):
                return [pickle.loads(payload) for rows in outputs for _, payload in rows]
            incoming = self.shuffle(level, outputs, plan, incoming)
        raise AssertionError("a job has at least one level")

    @property
    def tasks(self) -> list[int]:
        """By level how many tasks run it."""
        return [min(width, self.most_tasks) for width in self.spec.widths]

    def run_level(self, level: int, plan: RoundPlan, incoming: list[Rows]) -> list[Rows]:
        """Return the output of each task of a level."""
        return [self.run_task(level, task, plan, rows) for task, rows in enumerate(incoming)]

    def run_task(self, level: int, task: int, plan: RoundPlan, rows: Rows) -> Rows:
        """Return the output of a task."""
        if self.cancelled:
            raise RoundError("The round was cancelled")
        if self._job is None:
            self._job = Job(self.spec)
        return list(self.run_in(self._job, level, task, plan, rows))

    def run_in(
        self, job: Job, level: int, task: int, plan: RoundPlan, rows: Rows, run: TaskRun = FIRST_RUN
    ) -> Generator[tuple[int, Any]]:
        """Run a task in a worker. The task gets a copy of its plans, and of the list of its rows."""
        tasks = self.tasks
        plans: list[TaskPlan] = pickle.loads(pickle.dumps(plan.tasks[level][task :: tasks[level]], 5))
        return job.run_task(level, task, plan.context, [replace(one, run=run) for one in plans], list(rows), tasks)

    def shuffle(self, level: int, outputs: list[Rows], plan: RoundPlan, incoming: list[Rows]) -> list[Rows]:
        """Return the rows that reach each task of the next level. ``incoming``: what the tasks of this level got."""
        arrived: list[Rows] = [[] for _ in range(self.tasks[level + 1])]
        for rows in outputs:
            for partition, row in rows:
                arrived[partition % len(arrived)].append((partition, row))
        return arrived

    def cancel(self) -> None:
        """Ask the current round to end. May be called from another thread."""
        self.cancelled = True

    def close(self) -> None:
        """Close the functions of the current attempt."""
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def stop(self) -> None:
        """Close the functions and delete the local files of the job. May be called again."""
        self.close()
        if self._spec is not None:
            for root in self._spec.settings.local_roots:
                remove_job(root, self._spec.settings.local_name)
