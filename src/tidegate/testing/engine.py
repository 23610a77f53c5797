"""The plain engine of ``execution.target: test``: the levels of a job, one subtask after the other, in this process.

It runs the same graph, operators, state and protocol as Spark does. It differs in four points: there is one process, tasks run
one after the other, rows travel in memory in the order in which they were sent, and no task is tried again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tidegate.base.errors import RoundError
from tidegate.operators.flow.level import Job, JobSpec
from tidegate.operators.flow.rows import FIRST_RUN, Ack, Row, TaskPlan, TaskRun
from tidegate.runtime.engine import RoundPlan
from tidegate.state.local_dir import remove_job

Rows = list[tuple[int, Any]]
"""Rows that a task has sent, each with the partition of the next level; after the last level pickled acks."""


class InProcessEngine:
    """See runtime/engine.py for the contract."""

    one_host = True

    def __init__(self) -> None:
        self._spec: JobSpec | None = None
        self._job: Job | None = None
        self.cancelled = False

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
        incoming: list[list[Row]] = [[] for _ in range(self.spec.widths[0])]
        for level in range(len(plan.tasks)):
            outputs = self.run_level(level, plan, incoming)
            if level + 1 == len(plan.tasks):
                return [pickle.loads(payload) for rows in outputs for _, payload in rows]
            incoming = self.shuffle(level, outputs, plan, incoming)
        raise AssertionError("a job has at least one level")

    def run_level(self, level: int, plan: RoundPlan, incoming: list[list[Row]]) -> list[Rows]:
        """Return the output of each task of a level."""
        return [self.run_task(level, partition, plan, rows) for partition, rows in enumerate(incoming)]

    def run_task(self, level: int, partition: int, plan: RoundPlan, rows: list[Row]) -> Rows:
        """Return the output of a task."""
        if self.cancelled:
            raise RoundError("The round was cancelled")
        if self._job is None:
            self._job = Job(self.spec)
        return list(self._job.run_partition(level, partition, plan.context, *sent(plan, level, partition, rows)))

    def shuffle(self, level: int, outputs: list[Rows], plan: RoundPlan, incoming: list[list[Row]]) -> list[list[Row]]:
        """Return the rows that reach each task of the next level. ``incoming``: what the tasks of this level got."""
        arrived: list[list[Row]] = [[] for _ in range(self.spec.widths[level + 1])]
        for rows in outputs:
            for partition, row in rows:
                arrived[partition].append(row)
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


def sent(
    plan: RoundPlan, level: int, partition: int, rows: list[Row], run: TaskRun = FIRST_RUN
) -> tuple[TaskPlan, Iterator[Row]]:
    """Return what reaches a task: a copy of its plan, and its rows."""
    task: TaskPlan = pickle.loads(pickle.dumps(plan.tasks[level][partition], 5))
    return replace(task, run=run), iter(list(rows))
