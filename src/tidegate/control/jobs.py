"""The jobs of this process that take commands, their operations and permitted directories, and the job as JSON.

The operations are those that commands begin. A command may name only a permitted directory. The endpoint shows a job
from its ``JobView``.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from tidegate.base.errors import (
    ConfigurationError,
    JobCancelledError,
    JobSuspendedError,
    NoTargetError,
    RefusedError,
    TidegateError,
)
from tidegate.base.hashing import new_token
from tidegate.checkpoint.history import CheckpointList
from tidegate.common.job_status import JobStatus
from tidegate.control.messages import Code, Operation, OperationStatus, Problem
from tidegate.runtime.commands import (
    Cancel,
    CancelWithSavepoint,
    Command,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
)
from tidegate.runtime.commits import CommitRetry
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.statistics import MetricView, RoundStatistics
from tidegate.runtime.view import AttemptView, CheckpointView, ExceptionView, JobView, OperatorView, SubtaskView, Totals

_MOST_ENDED = 50
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Jobs:
    """Jobs by id. Of several runs of one id, the latest that has not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[ControlledJob] = []

    def add(self, job: ControlledJob) -> None:
        with self._lock:
            self._jobs.append(job)

    def remove(self, job: ControlledJob) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)

    def get(self, job_id: str) -> ControlledJob | None:
        return next((job for job in reversed(self.all()) if job.handle.job_id == job_id), None)

    def all(self) -> list[ControlledJob]:
        with self._lock:
            return list(self._jobs)


class ControlledJob:
    """A job as the endpoint sees it. Every method returns at once, with the operation that it has begun. It raises if the command
    itself is invalid; the job then does not receive the command."""

    def __init__(self, handle: StartedJob) -> None:
        self.handle = handle
        self.operations = Operations(lambda: handle.status().is_terminal_state())

    def trigger_checkpoint(self) -> Operation:
        return self._begin("checkpoint", TriggerCheckpoint())

    def trigger_savepoint(self, target: str | None) -> Operation:
        return self._begin("savepoint", TriggerSavepoint(self._checked(target)))

    def stop(self, target: str | None, drain: bool) -> Operation:
        return self._begin("stop", StopWithSavepoint(self._checked(target), drain=drain))

    def cancel(self, target: str | None, savepoint: bool) -> Operation:
        if not savepoint and target is not None:
            raise ConfigurationError(
                "A directory is given without a savepoint", found=target, cure="set savepoint to true"
            )
        if savepoint:
            return self._begin("cancel", CancelWithSavepoint(self._checked(target)))
        return self._begin("cancel", Cancel())

    def _begin(self, kind: str, command: Command[Any]) -> Operation:
        return self.operations.begin(kind, self.handle.submit(command).answer)

    def _checked(self, target: str | None) -> str | None:
        settings = self.handle.settings
        return None if target is None else checked_target(target, settings.control_dirs, settings.savepoint_dir)


# -- operations ------------------------------------------------------------------------------------------------------------


class Operations:
    """The operations of one job. Usable from any thread. Answers come in the job's own thread, which never waits here."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._known: dict[str, Operation] = {}
        self._waits: dict[str, threading.Event] = {}

    def begin(self, kind: str, answer: Future[Any]) -> Operation:
        begun = Operation(id=new_token(), kind=kind, status=OperationStatus.RUNNING, started_ms=_now_ms())
        with self._lock:
            self._known[begun.id] = begun
            self._waits[begun.id] = threading.Event()
            for old in [id for id, known in self._known.items() if known.ended_ms is not None][:-_MOST_ENDED]:
                del self._known[old], self._waits[old]
        answer.add_done_callback(lambda future: self._answered(begun, future))
        return begun

    def get(self, id: str) -> Operation | None:
        return self._known.get(id)

    def wait(self, id: str, seconds: float) -> Operation | None:
        """Return the operation when it has ended, or after ``seconds``."""
        waiting = self._waits.get(id)
        if waiting is not None:
            waiting.wait(seconds)
        return self.get(id)

    @property
    def latest(self) -> list[Operation]:
        """Oldest first."""
        with self._lock:
            return list(self._known.values())

    def _answered(self, begun: Operation, future: Future[Any]) -> None:
        error = future.exception() if not future.cancelled() else TidegateError("Nobody waits for the answer any more")
        if error is None:
            result = future.result()
            text = result.name if isinstance(result, JobStatus) else str(result)
            changes: dict[str, Any] = {"status": OperationStatus.SUCCEEDED, "result": text}
        else:
            changes = {"status": OperationStatus.FAILED, "problem": problem_of(error, ended=self._ended())}
        with self._lock:
            self._known[begun.id] = msgspec.structs.replace(begun, ended_ms=_now_ms(), **changes)
            self._waits[begun.id].set()


def problem_of(error: BaseException, *, ended: bool = False) -> Problem:
    """Describe an error to the client. ``ended``: the job has ended, and therefore did not carry out the command."""
    if isinstance(error, NoTargetError):
        code = Code.NO_TARGET
    elif isinstance(error, RefusedError | ConfigurationError):
        code = Code.REFUSED
    elif isinstance(error, JobCancelledError | JobSuspendedError):
        code = Code.ENDED
    else:
        code = Code.ENDED if ended else Code.FAILED
    return Problem(code, str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- directories -----------------------------------------------------------------------------------------------------------


def checked_target(target: str, allowed: tuple[str, ...] | None, configured: str | None) -> str:
    """Return the directory as it was given. Raise ConfigurationError if commands may not name it.

    ``allowed`` None: the holder of the token may name any directory. The driver runs as the same user, who could write there
    without the driver. Links are followed before paths are compared.
    """
    if reason := _why_malformed(target):
        raise _refused(target, reason, "give an absolute path, or an address with its scheme (s3://bucket/savepoints)")
    if allowed is not None:
        places = [place for place in (*allowed, configured) if place]
        if not any(lies_below(target, place) for place in places):
            listed = ", ".join(places) or "none"
            raise _refused(
                target,
                f"it is not below an allowed one: {listed}",
                "name a directory below an allowed one, or add the directory to tidegate.control.allowed-dirs",
            )
    return target


def _why_malformed(target: str) -> str | None:
    if not target.strip() or any(ord(c) < 32 or ord(c) == 127 for c in target):
        return "it is empty or has control characters"
    if "::" in target:  # fsspec would open one file system inside another
        return "it names more than one file system"
    if not (target.startswith("/") or _SCHEME.match(target)):
        return "it is not absolute"
    return "it has .. in it" if _climbs(target) else None


def _climbs(text: str) -> bool:
    """Return whether ``..`` is a part of the path, also where it is encoded, once or more: a store that fsspec opens might decode
    the path."""
    for _ in range(4):
        if ".." in re.split(r"[/\\]", text):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return True


def lies_below(target: str, place: str) -> bool:
    return (resolved(target) + "/").startswith(resolved(place).rstrip("/") + "/")


def resolved(address: str) -> str:
    """Return a local path without links, and any other address as it is."""
    if address.startswith("file://"):
        address = address.removeprefix("file://")
    return address if _SCHEME.match(address) else os.path.realpath(address)


def _refused(target: str, found: str, cure: str) -> ConfigurationError:
    return ConfigurationError(
        "The directory of the savepoint is not one that commands may name", where=repr(target), found=found, cure=cure
    )


_ROUNDS = 100


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    name: str
    state: str
    started_ms: int


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Every list is oldest first and holds only the latest entries. Times are wall clock times in milliseconds."""

    job_id: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None
    directory: str
    is_temporary: bool
    checkpoint_interval_ms: int | None
    guarantee: str | None
    paths: tuple[dict[str, str | None], ...]
    """From each source to each sink that it reaches: the guarantee, its reason, and what would raise it."""
    finished_before: bool
    totals: Totals
    records_per_second: float
    operators: tuple[OperatorView, ...]
    attempts: tuple[AttemptView, ...]
    rounds: tuple[RoundStatistics, ...]
    checkpoints: tuple[CheckpointView, ...]
    exceptions: tuple[ExceptionView, ...]
    subtasks: tuple[SubtaskView, ...] = ()
    configuration: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    commit_retry: CommitRetry | None = None
    metrics: tuple[MetricView, ...] = ()
    """What functions measure."""

    @staticmethod
    def of(view: JobView, now_ms: int) -> JobDetails:
        return JobDetails(
            job_id=view.job_id,
            name=view.name,
            state=view.status.name,
            started_ms=view.created_ms,
            ended_ms=view.ended_ms,
            directory=view.directory,
            is_temporary=view.is_temporary,
            checkpoint_interval_ms=view.checkpoint_interval_ms,
            guarantee=None if view.guarantee is None else str(view.guarantee),
            paths=() if view.guarantee is None else tuple(path.facts() for path in view.guarantee.paths),
            finished_before=view.finished_before,
            totals=view.totals,
            records_per_second=view.records_per_second(now_ms),
            operators=view.operators,
            attempts=view.attempts,
            rounds=view.rounds[-_ROUNDS:],
            checkpoints=_with_latest_figures(view.checkpoints),
            exceptions=view.exceptions,
            subtasks=view.subtasks,
            configuration=view.configuration,
            environment=view.environment,
            commit_retry=view.commit_retry,
            metrics=tuple(filter(_has_numbers, view.metrics.values())),
        )


def _has_numbers(metric: MetricView) -> bool:
    """JSON has no NaN and no infinite number: nobody could read the job. Prometheus still gets such a value."""
    values = (metric.value, metric.rate, metric.least, metric.greatest)
    try:
        return all(value is None or math.isfinite(value) for value in values)
    except OverflowError:  # a whole number beyond floating point
        return False


_FIGURES = 3


def _with_latest_figures(checkpoints: tuple[CheckpointView, ...]) -> tuple[CheckpointView, ...]:
    """Leave the figures of subtasks to the latest checkpoints: those of all would be megabytes, every second.
    ``ShownJob.checkpoint`` has them."""
    older = [replace(each, subtasks=()) if each.subtasks else each for each in checkpoints[:-_FIGURES]]
    return (*older, *checkpoints[-_FIGURES:])


class Checkpoints(CheckpointList, frozen=True, kw_only=True):
    """The list of ``tidegate checkpoints --json``. ``latest`` holds the checkpoints of this run that the driver knows, complete or
    not, with the times at which they passed each step."""

    latest: tuple[CheckpointView, ...]
