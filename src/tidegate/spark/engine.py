"""Rounds as Spark jobs: one action a round, one stage a level, chunks as shuffle rows."""

from __future__ import annotations

import gc
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from tidegate.base import errors, faults
from tidegate.base.errors import EngineLostError, EngineUnavailableError, RoundError, TidegateError
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.spark.lost import is_lost
from tidegate.spark.task import ForgetJob, LevelTask, identity
from tidegate.spark.worker_setup import WorkerSetup

log = logging.getLogger(__name__)

_COLLECT_EVERY = 50
_SPARK_ERRORS = (Py4JError, PySparkException, OSError)
"""OSError: the connection to a JVM that is gone."""
_TASKS_PER_CORE = 2
"""Of a level: enough to even out subtasks of different length. A task costs Spark and its worker about 10 ms, used or not."""
_STARTS = 3
"""Spark that has not come up this often in a row will not: the restart strategy alone might try for ever."""


class SparkEngine:
    """See runtime/engine.py for the contract. One object a job; ``run`` is called from one thread, ``cancel`` from any.

    ``open_context`` is called at the first start, when all checks of the program have passed, and again when the context it gave
    is gone: the attempt that lost it fails, as by any error, and the next one runs in a new JVM. ``ship`` then
    brings to its executors what the job depends on.
    """

    def __init__(
        self,
        open_context: Callable[[], SparkContext],
        ship: Callable[[SparkContext, JobSpec], WorkerSetup],
        *,
        one_host: bool = False,
    ) -> None:
        self.one_host = one_host
        self._open_context, self._ship = open_context, ship
        self._setup: WorkerSetup | None = None
        self._context: SparkContext | None = None
        self._spec: JobSpec | None = None
        self._program: Any = None
        self._seed: Any = None
        self._group = ""
        self._runs = 0
        self._failed_starts = 0
        self._most_tasks = 1
        self._told = False

    @property
    def _sc(self) -> SparkContext:
        assert self._context is not None
        return self._context

    def start(self, spec: JobSpec) -> None:
        self._spec = spec
        if self._is_lost():
            # a context that is gone has taken its broadcasts and files with it
            self._context = self._program = self._setup = None
        if self._context is None:
            self._context = self._open()
        with self._errors("start of an attempt"):
            self._forget_program()
            self._setup = self._setup or self._ship(self._sc, spec)
            self._program = self._sc.broadcast(pickle.dumps(spec, 5))
            # Level 0 reads no rows; one RDD of empty partitions serves all rounds (a new one costs some milliseconds).
            self._most_tasks = _most_tasks(self._sc)
            self._seed = self._sc.parallelize([], self._tasks(spec.widths[0]))
        self._tell_of_shared_tasks(max(spec.widths))
        self._group = f"tidegate-{spec.settings.job_id}-{spec.attempt}"

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self._spec is not None
        checkpoint = plan.context.checkpoint_id
        title = f"round {plan.context.round}" + (f", checkpoint {checkpoint}" if checkpoint is not None else "")
        with self._errors(title):
            self._sc.setJobGroup(self._group, title, interruptOnCancel=True)
            rows = self._collect(self._rdd(plan, self._spec))
            acks: list[Ack] = [pickle.loads(payload) for _, payload in rows]
            self._tell_of_stages_run_again(acks)
        return acks

    def _tell_of_stages_run_again(self, acks: list[Ack]) -> None:
        """When shuffle files are lost Spark runs a stage again, as a new attempt of the *stage*: its tasks count from 0 anew. What
        Spark knows of stages it learns from events, but a new attempt of a stage is told before its first task starts, and that
        was before the round ended."""
        tracker = self._sc._jsc.statusTracker()
        for stage in {ack.run.stage for ack in acks}:
            known = tracker.getStageInfo(stage)
            if known is not None and known.currentAttemptId() > 0:
                for ack in acks:
                    ack.run = ack.run._replace(attempt=ack.run.attempt + 1)

    def _collect(self, last: RDD[Any]) -> list[Any]:
        """``last.collect()`` would open a socket for each round, and the JVM remembers its path for good (``deleteOnExit``)."""
        try:
            batches = last._jrdd.collect()
            return [row for batch in batches for row in pickle.loads(batch)]
        finally:
            self._release_shuffles(last)
            self._runs += 1
            if self._runs % _COLLECT_EVERY == 0:
                # RDD objects are cycles; until Python collects them, the JVM keeps its side of each round.
                del last
                gc.collect()

    def _open(self) -> SparkContext:
        faults.point("spark.opening")
        try:
            context = self._open_context()
        except _SPARK_ERRORS as error:
            self._failed_starts += 1
            kind, cure = RoundError, "the job tries again if its restart strategy allows"
            if self._failed_starts >= _STARTS:
                kind, cure = EngineUnavailableError, "look at what Spark has printed; java -version must work"
            raise kind(
                "Spark must start",
                found=f"start {self._failed_starts} of at most {_STARTS} in a row failed: {_cause(error)}",
                cure=cure,
            ) from error
        self._failed_starts = 0
        return context

    @contextmanager
    def _errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except _SPARK_ERRORS as error:
            if self._is_lost():
                raise EngineLostError(
                    "Spark must stay as long as a job runs",
                    where=where,
                    found=f"its JVM or context is gone: {_cause(error)}",
                    cure="the job restarts in a new JVM if its restart strategy allows; else start the program again: with a "
                    "fixed tidegate.job-id it goes on from its last checkpoint",
                ) from error
            cause = _cause(error)
            final = raised_in_task(cause)
            if final is not None:
                raise final.located(where) from error
            raise RoundError(
                "A Spark job failed, with all its retries", where=where, found=cause, cure=_cure(cause)
            ) from error

    def _is_lost(self) -> bool:
        return self._context is not None and is_lost(self._context)

    def _rdd(self, plan: RoundPlan, spec: JobSpec) -> RDD[Any]:
        context = pickle.dumps(plan.context, 5)
        assert self._setup is not None
        rdd: RDD[Any] = self._seed
        for level, tasks in enumerate(plan.tasks):
            if level:
                rdd = rdd.partitionBy(self._tasks(spec.widths[level]), identity)
            plans = [pickle.dumps(task, 5) for task in tasks]
            task = LevelTask(spec.attempt, self._program, level, context, plans, self._tasks(len(plans)), self._setup)
            rdd = rdd.mapPartitionsWithIndex(task)
        return rdd

    def _tasks(self, width: int) -> int:
        """How many Spark tasks run a level: beyond some for each core more of them only cost their start."""
        return min(width, self._most_tasks)

    def _tell_of_shared_tasks(self, width: int) -> None:
        if width > self._most_tasks and not self._told:
            self._told = True
            log.warning(
                "a level has %d subtasks and Spark %d cores: %d tasks share them. More parallelism than cores does not run "
                "faster, and every subtask costs a round some milliseconds, whether it has records or not",
                width,
                self._sc.defaultParallelism,
                self._most_tasks,
            )

    def _release_shuffles(self, rdd: RDD[Any]) -> None:
        """Shuffle files of past rounds stay until a garbage collection of the driver's JVM: release them now."""
        try:
            rdd._jrdd.rdd().cleanShuffleDependencies(False)
        except (*_SPARK_ERRORS, AttributeError):
            return  # the context is stopping, and takes its files with it

    def cancel(self) -> None:
        if self._group and not self._is_lost():
            self._sc.cancelJobGroup(self._group)

    def stop(self) -> None:
        spec = self._spec
        if self._context is None or spec is None or self._is_lost():
            return  # a context that is gone has taken its broadcasts with it
        if self._setup is None:
            return  # executors could not be got ready, so nothing of the job is there
        forget = ForgetJob(spec.settings)
        hosts = max(1, self._sc.defaultParallelism)
        self._sc.setJobGroup(f"{self._group}-end", "release local state", interruptOnCancel=False)
        self._sc.parallelize(range(hosts), hosts).mapPartitions(forget).count()
        self._forget_program()

    def _forget_program(self) -> None:
        if self._program is not None:
            self._program.destroy()
            self._program = None


def _most_tasks(context: SparkContext) -> int:
    """Of a level. A cluster's cores come and go, and are not all known when a job starts: there every subtask has its task."""
    local = (context.master or "").partition("[")[0] == "local"
    return _TASKS_PER_CORE * max(1, context.defaultParallelism) if local else sys.maxsize


_CURES = [
    (
        "StackOverflowError",
        "Spark goes down the levels of a program one in another, and this one has too many: let operators be chained "
        "(fewer key_by, rebalance and disable_chaining between them), or give threads of the driver's JVM more room: "
        "spark.driver.extraJavaOptions=-Xss32m",
    ),
    (
        "path too long",
        "set spark.python.unix.domain.socket.enabled=false, or spark.python.unix.domain.socket.dir to a short path: the path of a "
        "Unix socket has 107 characters at most",
    ),
    (
        "PYTHON_VERSION_MISMATCH",
        "install the driver's version of Python on all hosts, and set PYSPARK_PYTHON or the key python.executable to it",
    ),
    (
        "Cannot run program",
        "set PYSPARK_PYTHON, or the key python.executable, to a Python that exists at this path on all hosts",
    ),
    (
        "No module named",
        "install the module on all hosts, or ship it with python.files, python.requirements or python.archives",
    ),
]
"""What stands in a cause, and what helps."""


def _cure(found: str) -> str:
    known = (cure for sign, cure in _CURES if sign in found)
    return next(known, "the job restarts from its last checkpoint if its restart strategy allows")


def raised_in_task(cause: str) -> TidegateError | None:
    """The error of ours that has ended a task, if its class says that no restart helps. Errors of functions come in acks, as they
    are; an error outside of them comes as text, in the message of the Spark job that failed."""
    name, _, text = cause.partition(": ")
    kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None)
    if not (isinstance(kind, type) and issubclass(kind, TidegateError)) or kind.restart_helps:
        return None
    parts = _PARTS.split(text)
    error: TidegateError = kind.__new__(kind)
    TidegateError.__init__(error, parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True)))
    return error


_PARTS = re.compile(r"\n  (where|found|cure): ")
"""Of the message of a ``TidegateError``, behind its rule."""


def _cause(error: Exception) -> str:
    """The useful part of a failed Spark job: what the Python traceback in it ends with, else Spark's first line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    raised = _raised_in_python(lines)
    if raised:
        return "\n".join(raised)
    for line in lines:
        if line.startswith(": "):  # py4j: behind the name of the called method, the Java exception
            return line.removeprefix(": ")
    return lines[0] if lines else repr(error)


def _raised_in_python(lines: list[str]) -> list[str]:
    """Of the first tracebacks in Spark's message (several, if exceptions are chained), the text behind the last one's frames."""
    raised: list[str] = []
    inside = False
    for line in lines:
        if line.startswith((" SQLSTATE", "\tat ", "Driver stacktrace")):
            if raised:
                break
        elif line.endswith(_TRACEBACK):
            inside, raised = True, []
        elif inside and (raised or not line.startswith((" ", "\t"))):
            raised.append(line)
    return raised


_TRACEBACK = "Traceback (most recent call last):"
