"""Runs programs on Spark: a round is one action, a level one stage, a chunk one shuffle row."""

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
from tidegate.graph.transformation import Program
from tidegate.operators.flow.level import JobSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.runtime.statistics import Listener
from tidegate.spark.homes import Homes
from tidegate.spark.pyspark_internals import collect, is_lost, release_shuffles, was_run_again
from tidegate.spark.session import check_settings, is_local, master_of, spark_context
from tidegate.spark.shipping import ship
from tidegate.spark.task import ForgetJob, LevelTask, WorkerSetup, identity

log = logging.getLogger(__name__)

_COLLECT_EVERY = 50
_SPARK_ERRORS = (Py4JError, PySparkException, OSError)
"""OSError: the connection to a lost JVM."""
_TASKS_PER_CORE = 2
"""Of a level: enough to balance subtasks of different length. A task costs Spark and its worker 10 ms, even without records."""
_SCHEDULER, _POOL = "spark.scheduler.mode", "spark.scheduler.pool"
"""With fair scheduling each job has a pool of its own, named by its id (and a token, if it has no checkpoints). Without a pool all
jobs of the application share one, in which the oldest job is first."""
_STARTS = 3
"""After this many failed starts in a row no further start is tried: the restart strategy alone might try for ever."""


class SparkExecutor:
    """Runs programs in the active Spark context, or in a new one. Several jobs may run at once.

    ``env.execute`` finds the executor by the entry point ``tidegate.executors``.
    """

    def execute_async(self, program: Program) -> StartedJob:
        """Start a job in the background. Every error of the program or its configuration is raised here."""
        check_settings(program.configuration)
        listeners: list[Listener] = []
        configuration = program.configuration
        engine = SparkEngine(
            lambda: spark_context(configuration),
            lambda context, spec: ship(context, configuration, spec.settings.job_id, program.name),
            one_host=is_local(configuration),
            master=master_of(configuration),
        )
        return StartedJob(JobMaster(program, engine, listeners=listeners), listeners)


class SparkEngine:
    """See runtime/engine.py for the contract. Each job has one engine. ``run`` is called from one thread, ``cancel`` from any.

    ``open_context`` is called at the first start, after all checks of the program, and again after its context was lost. The
    attempt that lost the context fails as by any error, and the next attempt runs in a new JVM. ``ship`` then brings the job's
    dependencies to the executors.
    """

    def __init__(
        self,
        open_context: Callable[[], SparkContext],
        ship: Callable[[SparkContext, JobSpec], WorkerSetup],
        *,
        one_host: bool = False,
        master: str | None = None,
    ) -> None:
        self.one_host, self.master = one_host, master
        self._open_context, self._ship = open_context, ship
        self._setup: WorkerSetup | None = None
        self._context: SparkContext | None = None
        self._spec: JobSpec | None = None
        self._program: Any = None
        self._seed: Any = None
        self._homes: Homes | None = None
        self._group = ""
        self._pool: str | None = None
        self._runs = 0
        self._failed_starts = 0
        self._most_tasks = 1
        self._has_warned = False

    @property
    def _sc(self) -> SparkContext:
        assert self._context is not None
        return self._context

    def start(self, spec: JobSpec) -> None:
        self._spec = spec
        if self._is_lost():
            # Its broadcasts and files are lost with the context.
            self._context = self._program = self._setup = self._homes = None
        if self._context is None:
            self._context = self._open()
        with self._errors("start of an attempt"):
            self._forget_program()
            self._setup = self._setup or self._ship(self._sc, spec)
            self._program = self._sc.broadcast(pickle.dumps(spec, 5))
            # Level 0 reads no rows; one RDD of empty partitions serves all rounds (a new one costs some milliseconds).
            self._most_tasks = _most_tasks(self._sc)
            self._seed = self._sc.parallelize([], self._tasks(spec.widths[0]))
            if self._homes is None and not _is_local(self._sc):
                self._homes = Homes(self._sc)  # they outlive the attempt, as local state does
            self._pool = spec.settings.job_id if self._sc.getConf().get(_SCHEDULER, "FIFO") == "FAIR" else None
        self._warn_of_shared_tasks(max(spec.widths))
        self._group = f"tidegate-{spec.settings.job_id}-{spec.attempt}"

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self._spec is not None
        checkpoint = plan.context.checkpoint_id
        title = f"round {plan.context.round}" + (f", checkpoint {checkpoint}" if checkpoint is not None else "")
        with self._errors(title):
            self._sc.setJobGroup(self._group, title, interruptOnCancel=True)
            if self._pool is not None:
                self._sc.setLocalProperty(_POOL, self._pool)
            rows = self._collect(self._rdd(plan, self._spec))
            acks: list[Ack] = [pickle.loads(payload) for _, payload in rows]
            self._count_stages_run_again(acks)
            if self._homes is not None:
                self._homes.settle(acks, {chain for chain, _ in self._spec.partitions[0]})
        return acks

    def _count_stages_run_again(self, acks: list[Ack]) -> None:
        """Count a new attempt of a stage in its acks. After a loss of shuffle files Spark runs a *stage* again, and its tasks count
        their attempts from 0. Spark learns this from events, but it does so before the first task starts, so before the round
        ends."""
        for stage in {ack.run.stage for ack in acks}:
            if was_run_again(self._sc, stage):
                for ack in acks:
                    ack.run = ack.run._replace(attempt=ack.run.attempt + 1)

    def _collect(self, last: RDD[Any]) -> list[Any]:
        try:
            return collect(last)
        finally:
            self._release_shuffles(last)
            self._runs += 1
            if self._runs % _COLLECT_EVERY == 0:
                # RDD objects are in reference cycles. Until Python collects them, the JVM keeps its part of each round.
                del last
                gc.collect()

    def _open(self) -> SparkContext:
        faults.point("spark.opening")
        try:
            context = self._open_context()
        except _SPARK_ERRORS as error:
            self._failed_starts += 1
            kind, cure = RoundError, "no action is needed if the restart strategy allows another attempt"
            if self._failed_starts >= _STARTS:
                kind, cure = EngineUnavailableError, "read what Spark has printed, and check that java -version works"
            raise kind(
                "Spark does not start",
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
                    "The Spark context was lost while the job ran",
                    where=where,
                    found=f"its JVM has ended or the context was stopped: {_cause(error)}",
                    cure="start the program again if the restart strategy allows no further attempt: with a fixed "
                    "tidegate.job-id the job continues from its last checkpoint",
                ) from error
            cause = _cause(error)
            if _NO_PYTHON.search(cause):
                self._setup = None  # the next attempt looks at all executors again, and names the host
            final = raised_in_task(cause)
            if final is not None:
                raise final.located(where) from error
            raise RoundError(
                "A Spark job failed, and so did all its retries", where=where, found=cause, cure=_cure(cause)
            ) from error

    def _is_lost(self) -> bool:
        return self._context is not None and is_lost(self._context)

    def _rdd(self, plan: RoundPlan, spec: JobSpec) -> RDD[Any]:
        context = pickle.dumps(plan.context, 5)
        assert self._setup is not None
        rdd: RDD[Any] = self._seed
        counts = [self._tasks(width) for width in spec.widths]
        for level, subtasks in enumerate(plan.tasks):
            if level:
                rdd = rdd.partitionBy(counts[level], identity)
                if self._homes is not None:
                    rdd = self._homes.prefer(rdd, counts[level])
            plans = [pickle.dumps(subtasks[task :: counts[level]], 5) for task in range(counts[level])]
            rdd = rdd.mapPartitionsWithIndex(
                LevelTask(spec.attempt, self._program, level, context, plans, counts, self._setup)
            )
        return rdd

    def _tasks(self, width: int) -> int:
        """Return how many Spark tasks run a level. More than some for each core only cost their start."""
        return min(width, self._most_tasks)

    def _warn_of_shared_tasks(self, width: int) -> None:
        if width > self._most_tasks and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a level has %d subtasks and Spark %d cores: %d tasks share them. More parallelism than cores does not run "
                "faster, and every subtask costs a round some milliseconds, even without records",
                width,
                self._sc.defaultParallelism,
                self._most_tasks,
            )

    def _release_shuffles(self, rdd: RDD[Any]) -> None:
        try:
            release_shuffles(rdd)
        except (*_SPARK_ERRORS, AttributeError):
            return  # the context is being stopped, and deletes its files

    def cancel(self) -> None:
        if self._group and not self._is_lost():
            self._sc.cancelJobGroup(self._group)

    def stop(self) -> None:
        spec = self._spec
        if self._context is None or spec is None or self._is_lost():
            return  # its broadcasts are lost with the context
        if self._setup is None:
            return  # the executors were never prepared, so they hold nothing of the job
        forget = ForgetJob(spec.settings)
        hosts = max(1, self._sc.defaultParallelism)
        self._sc.setJobGroup(f"{self._group}-end", "release local state", interruptOnCancel=False)
        everywhere: RDD[Any] = self._sc.parallelize(range(hosts), hosts)
        if self._homes is not None:
            everywhere = self._homes.included(everywhere)
        everywhere.mapPartitions(forget).count()
        if self._homes is not None:
            self._homes.forget()
        self._forget_program()

    def _forget_program(self) -> None:
        if self._program is not None:
            self._program.destroy()
            self._program = None


def _most_tasks(context: SparkContext) -> int:
    """Return the limit for a level. The cores of a cluster change, and not all are known when a job starts: there is no limit."""
    return _TASKS_PER_CORE * max(1, context.defaultParallelism) if _is_local(context) else sys.maxsize


def _is_local(context: SparkContext) -> bool:
    return (context.master or "").partition("[")[0] == "local"


_NO_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH|No module named|Cannot run program")
"""In a cause: an executor that has come later lacks what the others have."""
_CURES = [
    (
        "StackOverflowError",
        "let more operators be chained (fewer key_by, rebalance and disable_chaining between them), because Spark visits the "
        "levels of a program recursively; or give threads of the driver's JVM larger stacks: "
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
"""A text that occurs in the cause, and the cure."""


def _cure(found: str) -> str:
    known = (cure for sign, cure in _CURES if sign in found)
    return next(known, "start the program again if the restart strategy allows no further attempt")


def raised_in_task(cause: str) -> TidegateError | None:
    """Return the error of Tidegate that has ended a task, if its class says that no restart helps; else None.

    Errors of functions come in acks, as objects. An error outside of functions comes as text, in the message of the failed Spark
    job.
    """
    name, _, text = cause.partition(": ")
    kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None)
    if not (isinstance(kind, type) and issubclass(kind, TidegateError)) or kind.restart_helps:
        return None
    parts = _PARTS.split(text)
    error: TidegateError = kind.__new__(kind)
    TidegateError.__init__(error, parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True)))
    return error


_PARTS = re.compile(r"\n  (where|found|cure): ")
"""In the message of a ``TidegateError``, after its rule."""


def _cause(error: Exception) -> str:
    """Return the useful part of a Spark error: the last lines of the Python traceback in it, else Spark's first line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    raised = _raised_in_python(lines)
    if raised:
        return "\n".join(raised)
    for line in lines:
        if line.startswith(": "):  # py4j: the Java exception, after the name of the called method
            return line.removeprefix(": ")
    return lines[0] if lines else repr(error)


def _raised_in_python(lines: list[str]) -> list[str]:
    """Return the text after the frames of the last of the first tracebacks in Spark's message. Chained exceptions give several."""
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
