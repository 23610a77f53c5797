"""What runs inside Spark's Python workers: one level of one round."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from pyspark import TaskContext

from tidegate.operators.contracts.settings import Settings
from tidegate.operators.flow.level import Job, JobSpec, close_job, job_in_this_worker
from tidegate.operators.flow.rows import FIRST_RUN, RoundContext, TaskPlan, TaskRun
from tidegate.spark import garbage
from tidegate.spark.worker_setup import WorkerSetup, at
from tidegate.state.local_dir import remove_job
from tidegate.state.stores import close_removed_stores


def identity(partition: int) -> int:
    """The partitioner: a row's key is its partition."""
    return partition


class LevelTask:
    """The function handed to ``mapPartitionsWithIndex``: pickled with every round, so it holds little.

    ``program`` is the broadcast of the pickled JobSpec; plans are pickled one by one so that a task reads only its own.

    A level with more subtasks than ``tasks`` has several in each: partition p of the level is in task p modulo ``tasks``, where
    Spark's partitioner sends its rows too. They run one after the other, each as if it were alone: with its own token, rows,
    barriers and ack. If the task is tried again, all of them run again, with new tokens, as any task that is tried again.
    """

    def __init__(
        self,
        attempt: str,
        program: Any,
        level: int,
        context: bytes,
        plans: list[bytes],
        tasks: int,
        setup: WorkerSetup,
    ) -> None:
        self.attempt, self.program, self.level, self.setup = attempt, program, level, setup
        self.context, self.plans, self.tasks = context, plans, tasks

    def __call__(self, task: int, rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        garbage.task_begins()
        self.setup.enter()
        job = job_in_this_worker(self.attempt, self._load)
        context: RoundContext = pickle.loads(self.context)
        partitions = range(task, len(self.plans), self.tasks)
        if len(partitions) == 1:
            return _to_the_end(self._run(job, task, context, (row for _, row in rows)))
        waiting: dict[int, list[Any]] = {partition: [] for partition in partitions}
        for partition, row in rows:
            waiting[partition].append(row)
        runs = (self._run(job, p, context, iter(waiting.pop(p))) for p in partitions)
        return _to_the_end(chain.from_iterable(runs))

    def _run(self, job: Job, partition: int, context: RoundContext, rows: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        plan: TaskPlan = replace(pickle.loads(self.plans[partition]), run=_this_run())
        at(f"{self.setup.job_name}: {job.name_of(self.level, partition, plan)}")
        return job.run_partition(self.level, partition, context, plan, rows)

    def _load(self) -> JobSpec:
        close_removed_stores()  # of jobs whose end did not reach this worker
        spec: JobSpec = pickle.loads(self.program.value)
        return spec


def _to_the_end(rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    try:
        yield from rows
    finally:
        garbage.task_over()


def _this_run() -> TaskRun:
    here = TaskContext.get()
    return FIRST_RUN if here is None else TaskRun(here.attemptNumber(), here.stageId())


class ForgetJob:
    """Run on every host when a job ends: its functions are closed in the workers this reaches, its local state goes."""

    def __init__(self, settings: Settings) -> None:
        self.local_roots, self.local_name = settings.local_roots, settings.local_name

    def __call__(self, rows: Iterable[Any]) -> Iterator[int]:
        for _ in rows:
            pass
        close_job(self.local_name)
        for root in self.local_roots:
            remove_job(root, self.local_name)
        close_removed_stores()
        garbage.take_back()  # with what the job had cached
        yield 0
