"""Prepares a Spark worker for a job: makes dependencies importable, and sends its logging to stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark import SparkFiles

from tidegate.base.errors import DependencyError
from tidegate.base.plain_text import PlainFormatter
from tidegate.base.process import quiet_libraries
from tidegate.operators.contracts import contexts
from tidegate.spark.bundle import Unpacked, unpacked

_OFF = logging.CRITICAL + 10
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

    def enter(self, setup: WorkerSetup) -> None:
        self._directory = self._directory or os.getcwd()
        _log_to_stderr(setup.log_level)
        self.place = setup.job_name
        found = Unpacked((), {}, None) if setup.bundle is None else unpacked(SparkFiles.get(setup.bundle))
        sys.path[:] = [*found.python_path, *(entry for entry in sys.path if entry not in self._path)]
        self._path = found.python_path
        if found.work is None:
            os.chdir(self._directory)
        elif os.path.isabs(SparkFiles.getRootDirectory()):
            os.chdir(found.work)
        else:
            _link(found.work)
        contexts.arrived(setup.job_id, found.cached)
        self.current = setup


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
