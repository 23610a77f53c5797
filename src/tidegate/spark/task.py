"""The code inside Spark's Python workers: the setup for a job, one level of one round, and garbage collection.

The setup makes dependencies importable, and sends the logging of the worker to stderr. A task runs one level of one
round. This module also decides when the worker searches for garbage.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import pickle
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext

from tidegate.base.errors import DependencyError
from tidegate.base.plain_text import PlainFormatter
from tidegate.base.process import quiet_libraries
from tidegate.operators.contracts import functions
from tidegate.operators.contracts.operator import Settings
from tidegate.operators.flow.level import JobSpec, close_job, job_in_this_worker
from tidegate.operators.flow.rows import FIRST_RUN, RoundContext, TaskPlan, TaskRun
from tidegate.operators.loop import fast_json
from tidegate.spark.bundle import Unpacked, unpacked
from tidegate.state.local_dir import remove_forgotten, remove_job
from tidegate.state.stores import close_removed_stores

_OFF = logging.CRITICAL + 10
_HADOOP_CONF_DIR = "HADOOP_CONF_DIR"
_LINE = "%(asctime)s %(levelname)s %(name)s [%(place)s] %(message)s"


@dataclass(frozen=True)
class WorkerSetup:
    """It is pickled with every task, so it holds little. ``bundle`` names a file that Spark has brought; None if there is none."""

    job_id: str
    job_name: str
    bundle: str | None
    log_level: str

    def enter(self) -> None:
        """Prepare for the job. Called at the start of every task: a worker runs tasks of several jobs, one at a time."""
        if _worker.current != self:
            _worker.enter(self)

    def prepare(self, rows: Iterable[object]) -> Iterator[tuple[str, str | None]]:
        """Run on every host before the first round. Give the host and, if it cannot run the job, the reason."""
        for _ in rows:
            pass
        try:
            self.enter()
            yield os.uname().nodename, None
        except DependencyError as error:
            yield os.uname().nodename, str(error)


class _Worker:
    """This process. ``place`` names what runs now, for log lines."""

    def __init__(self) -> None:
        self.current: WorkerSetup | None = None
        self.place = ""
        self._directory = ""
        self._path: tuple[str, ...] = ()
        self._hadoop = os.environ.get(_HADOOP_CONF_DIR)

    def enter(self, setup: WorkerSetup) -> None:
        self._directory = self._directory or os.getcwd()
        _log_to_stderr(setup.log_level)
        self.place = setup.job_name
        found = Unpacked((), {}, None) if setup.bundle is None else unpacked(SparkFiles.get(setup.bundle))
        self._configure_hadoop(found.hadoop or self._hadoop)
        sys.path[:] = [*found.python_path, *(entry for entry in sys.path if entry not in self._path)]
        self._path = found.python_path
        if found.work is None:
            os.chdir(self._directory)
        elif os.path.isabs(SparkFiles.getRootDirectory()):
            os.chdir(found.work)
        else:
            _link(found.work)
        functions.arrived(setup.job_id, found.cached)
        self.current = setup

    def _configure_hadoop(self, directory: str | None) -> None:
        """Let ``hdfs:///`` and name services mean here what they mean in the driver. A client reads it when it is made."""
        if directory is not None:
            os.environ[_HADOOP_CONF_DIR] = directory
        else:
            os.environ.pop(_HADOOP_CONF_DIR, None)


def _link(work: str) -> None:
    """Link the content of archives into the working directory. An executor on a cluster must stay in its own directory, because
    Python finds the files that Spark brought by relative paths."""
    for name in os.listdir(work):
        new = f".{name}.{os.getpid()}"
        os.symlink(os.path.join(work, name), new)
        os.replace(new, name)


_worker = _Worker()


def at(place: str) -> None:
    """Name what runs from now on in this worker, for log lines."""
    _worker.place = place


class _Placed(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.place = _worker.place
        return True


def _log_to_stderr(level: str) -> None:
    """Log to stderr, which is the executor's: Spark keeps it with its own logs. A handler that the job's code has set stays."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(PlainFormatter(_LINE))
        handler.addFilter(_Placed())
        root.addHandler(handler)
    root.setLevel(_OFF if level == "OFF" else level)
    quiet_libraries(root.level)
    logging.getLogger("tidegate").setLevel(max(root.level, logging.WARNING))
    logging.getLogger("tidegate.spark.bundle").setLevel(root.level)


def identity(partition: int) -> int:
    """Partition rows by their key, which is the partition."""
    return partition


class LevelTask:
    """The function for ``mapPartitionsWithIndex``. It is pickled with every round, so it holds little.

    ``program`` is the broadcast of the pickled JobSpec. The plans of each task are pickled together, so that a task reads only its
    own.

    ``tasks``: how many tasks each level has. A level with more subtasks has several in each task: partition p of the level runs in
    task p modulo its tasks, where Spark's partitioner sends its rows too. The subtasks of a task run one after the other, each with
    its own token, chunks and ack. They share the barriers of their senders: a sender has one for each task. A retry of the task
    runs all of them again, with new tokens.
    """

    def __init__(
        self,
        attempt: str,
        program: Any,
        level: int,
        context: bytes,
        plans: list[bytes],
        tasks: list[int],
        setup: WorkerSetup,
    ) -> None:
        self.attempt, self.program, self.level, self.setup = attempt, program, level, setup
        self.context, self.plans, self.tasks = context, plans, tasks

    def __call__(self, task: int, rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        begin_task()
        try:
            return self._rows(task, rows)
        except BaseException:
            fast_json.switch(False)  # the worker may run other code next
            raise

    def _rows(self, task: int, rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        self.setup.enter()
        job = job_in_this_worker(self.attempt, self._load)
        fast_json.switch(job.spec.settings.fast_json)
        context: RoundContext = pickle.loads(self.context)
        run, given = _this_run(task), pickle.loads(self.plans[task])
        plans: list[TaskPlan] = [replace(plan, run=run) for plan in given]
        return _then_end_task(job.run_task(self.level, task, context, plans, rows, self.tasks, self._begins))

    def _begins(self, subtask: str) -> None:
        at(f"{self.setup.job_name}: {subtask}")

    def _load(self) -> JobSpec:
        spec: JobSpec = pickle.loads(self.program.value)
        for root in spec.settings.local_roots:
            remove_forgotten(root, time.time(), spec.settings.local_name)
        close_removed_stores()  # of jobs whose end was not announced to this worker
        fast_json.switch(spec.settings.fast_json)  # before user code is unpickled, which may import json.loads by name
        return spec


def _then_end_task(rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    try:
        yield from rows
    finally:
        fast_json.switch(False)
        end_task()


def _this_run(task: int) -> TaskRun:
    here = TaskContext.get()
    return FIRST_RUN if here is None else TaskRun(here.attemptNumber(), here.stageId(), task, _place(os.getpid()))


@functools.lru_cache(maxsize=1)
def _place(pid: int) -> str:
    """Return the host of this worker, and the id of its executor. Spark gives workers no id: it is an argument of the JVM that has
    started the daemon from which this worker was forked. ``pid``: of this worker, because a daemon may have asked before."""
    host = os.uname().nodename
    executor = _executor_id(os.getppid()) or _executor_id(_parent_of(os.getppid()))
    return f"{host}, executor {executor}" if executor else host


def _executor_id(pid: int | None) -> str:
    """Return the executor id in the command of a JVM. Empty if there is none: in local mode the driver is the executor."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return arguments[arguments.index(b"--executor-id") + 1].decode(errors="replace")
    except (OSError, ValueError, IndexError):
        return ""


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


class ForgetJob:
    """Run on every host when a job ends: close its functions in the workers that this reaches, and delete its local state."""

    def __init__(self, settings: Settings) -> None:
        self.local_roots, self.local_name = settings.local_roots, settings.local_name

    def __call__(self, rows: Iterable[Any]) -> Iterator[int]:
        for _ in rows:
            pass
        close_job(self.local_name)
        for root in self.local_roots:
            remove_job(root, self.local_name)
        close_removed_stores()
        unfreeze()  # including what the job had cached
        yield 0


# -- garbage ---------------------------------------------------------------------------------------------------------------

SHARE = 50
_FULL = 2


class _FullSearches:
    """The last full search for garbage: when it ended, how long it took.

    A worker has large caches, and Spark's daemon lets it search all of them after every task. Reference counting frees records,
    which are plain data. Only cycles of user code are left, and they can wait a little. So after a task all objects are frozen
    (``gc.freeze``, which costs nothing) and the daemon finds nothing to search. It searches only if the last search is so long
    ago that all searches together take one fiftieth of the time at most. The next task unfreezes all objects, so the collector
    watches whatever the task allocates.
    """

    def __init__(self) -> None:
        self._begun = self._ended = self._took = 0.0
        self.frozen = False

    @property
    def due(self) -> bool:
        return time.monotonic() - self._ended >= SHARE * self._took

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if self.frozen or info["generation"] != _FULL:
            return
        if phase == "start":
            self._begun = time.monotonic()
        else:
            self._ended = time.monotonic()
            self._took = self._ended - self._begun


_searches = _FullSearches()


def begin_task() -> None:
    """Let the collector look at new objects rarely: its default, every 700 allocations, costs a tenth of a loop over records."""
    if _searches not in gc.callbacks:
        gc.callbacks.append(_searches)
    gc.set_threshold(200_000, 20, 50)
    unfreeze()


def end_task() -> None:
    """Freeze all objects unless a search is due. The daemon searches after this task."""
    if not _searches.due:
        _searches.frozen = True
        gc.freeze()


def unfreeze() -> None:
    """Let the next search include all objects."""
    _searches.frozen = False
    gc.unfreeze()
