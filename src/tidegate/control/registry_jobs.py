"""The jobs of the installation as servers show them: those of other drivers, and those that have ended or died.

A living driver is asked, at most once a second for all who look. What it said last, and after it what the job stored, is shown
when the driver does not answer.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from tidegate.base.errors import RefusedError, TidegateError, UnreachableError
from tidegate.base.files import Files
from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, ListedCheckpoint, list_checkpoints
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.checkpoint.owner import is_here
from tidegate.control import registry
from tidegate.control.client import _ERRORS, _UnixConnection, elsewhere, over
from tidegate.control.jobs import JobDetails
from tidegate.control.launch import log_of
from tidegate.control.messages import Operation, Problem
from tidegate.control.registry import DriverLife, JobRecord, read_token
from tidegate.control.shown import CheckpointPage, ShownJob
from tidegate.runtime.prometheus import prometheus_text
from tidegate.runtime.stored_view import StoredView, read_view
from tidegate.runtime.view import CheckpointView, ExceptionView, Note, Outcome, Totals

T = TypeVar("T")
ASKED_EVERY_S = 1.0
ANSWER_S = 2.0
"""A driver answers within milliseconds. One that takes longer is said not to answer."""
COMMAND_S = 30.0
_STORED_EVERY_S = 5.0
"""The stored view of a driver that does not answer, or is elsewhere, may be written again."""


class RegistryJob:
    """A run of the registry (``ShownJob``). Usable from any thread; the methods wait for the driver or for storage."""

    def __init__(self, record: JobRecord, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.record, self._now_ms = record, now_ms
        self._lock = threading.Lock()
        self._told: tuple[JobDetails, int] | None = None
        self._asked = float("-inf")
        self._stored: StoredView | None = None
        self._listed: tuple[ListedCheckpoint, ...] = ()
        self._read = float("-inf")
        self._read_for: DriverLife | None = None

    @property
    def job_id(self) -> str:
        return self.record.job_id

    @property
    def run(self) -> str:
        return self.record.run

    @property
    def life(self) -> DriverLife:
        return self.record.life()

    # -- figures -------------------------------------------------------------------------------------------------------

    def details(self) -> tuple[JobDetails, int]:
        with self._lock:
            life = self.life
            if life is DriverLife.LIVE:
                self._ask_again()
                if self._told is not None:
                    return self._told
            return self._from_storage(life)

    def _ask_again(self) -> None:
        if time.monotonic() - self._asked < ASKED_EVERY_S:
            return
        with contextlib.suppress(OSError, TidegateError):  # the age of what is shown says it
            self._told = self._ask("GET", "", JobDetails), self._now_ms()
        self._asked = time.monotonic()

    def _from_storage(self, life: DriverLife) -> tuple[JobDetails, int]:
        self._read_again(life)
        told = self._told
        if self._stored is not None and (told is None or self._stored.as_of_ms >= told[1]):
            as_of_ms = self._stored.as_of_ms
            shown = JobDetails.of(self._stored.view, as_of_ms)
            return _with_end(shown, self.record, self._listed), as_of_ms
        if told is not None:
            return _with_end(told[0], self.record, self._listed), told[1]
        return _from_record(self.record, self._listed), self.record.ended_ms or self.record.started_ms

    def _read_again(self, life: DriverLife) -> None:
        settled = life in (DriverLife.ENDED, DriverLife.DIED) and self._read_for is life
        if settled or (self._read_for is life and time.monotonic() - self._read < _STORED_EVERY_S):
            return
        if self.record.directory:
            files = Files(self.record.directory)
            try:
                stored = read_view(files)
                # A later run of the job writes to the same directory.
                is_own = stored is not None and abs(stored.view.created_ms - self.record.started_ms) < 1000
                self._stored = stored if is_own else None
                begun, ended = self.record.started_ms, self.record.ended_ms
                self._listed = tuple(
                    each
                    for each in list_checkpoints(files).checkpoints
                    if each.trigger_ms >= begun and (ended is None or each.trigger_ms <= ended)
                )
            except TidegateError:
                pass  # storage is away: what is known stays shown
        self._read_for, self._read = life, time.monotonic()

    def checkpoint(self, checkpoint_id: int) -> CheckpointView | None:
        if self.life is DriverLife.LIVE:
            with contextlib.suppress(OSError, TidegateError):
                place = f"/tidegate/page/jobs/{quote(self.job_id, safe='')}/checkpoints/{checkpoint_id}"
                return self._decoded("GET", place, CheckpointPage).view
        with self._lock:
            self._read_again(self.life)
            stored = () if self._stored is None else self._stored.view.checkpoints
        shown = (*stored, *self.details()[0].checkpoints)
        return next((each for each in shown if each.checkpoint_id == checkpoint_id), None)

    def story(self, kind: str, number: int) -> list[Note]:
        if self.life is DriverLife.LIVE:
            try:
                place = f"/tidegate/page/jobs/{quote(self.job_id, safe='')}"
                if kind == "round":
                    return self._decoded("GET", f"{place}/rounds/{number}/story", list[Note])
                return list(self._decoded("GET", f"{place}/checkpoints/{number}", CheckpointPage).story)
            except (OSError, TidegateError):
                pass
        with self._lock:
            self._read_again(self.life)
            stories = {} if self._stored is None else self._stored.stories
        return list(stories.get(f"{kind} {number}", ()))

    def metrics_text(self) -> str:
        if self.life is DriverLife.LIVE:
            status, content = self._exchange("GET", self._path("/metrics"))
            if status == 200:
                return content.decode()
        with self._lock:
            self._read_again(self.life)
            return "" if self._stored is None else prometheus_text(self._stored.view)

    def log_file(self) -> Path | None:
        return log_of(self.record)

    # -- commands ------------------------------------------------------------------------------------------------------

    def begin(self, command: str, request: msgspec.Struct | None = None) -> Operation:
        if self.life in (DriverLife.ENDED, DriverLife.DIED):
            raise over(self.record)
        if command not in ("checkpoints", "savepoints", "stop", "cancel"):
            raise RefusedError("The job does not know this command", found=command)
        try:
            return self._ask("POST", f"/{command}", Operation, request, COMMAND_S)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error

    def operation(self, id: str, wait_s: float = 0.0) -> Operation | None:
        if self.life is DriverLife.LIVE:
            try:
                return self._ask(
                    "GET", f"/operations/{quote(id, safe='')}?wait={wait_s}", Operation, None, wait_s + ANSWER_S
                )
            except (OSError, TidegateError):
                pass  # the job may have ended just now, and the record then has its operations
        latest = registry.read(self.run) or self.record
        return next((each for each in latest.operations if each.id == id), None)

    def operations(self) -> list[Operation]:
        if self.life is DriverLife.LIVE:
            try:
                return self._ask("GET", "/operations", list[Operation])
            except (OSError, TidegateError):
                pass
        return list(self.record.operations)

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"/tidegate/jobs/{quote(self.job_id, safe='')}{path}"

    def _ask(
        self, method: str, path: str, kind: type[T], body: msgspec.Struct | None = None, wait_s: float = ANSWER_S
    ) -> T:
        return self._decoded(method, self._path(path), kind, body, wait_s)

    def _decoded(
        self, method: str, path: str, kind: type[T], body: msgspec.Struct | None = None, wait_s: float = ANSWER_S
    ) -> T:
        status, content = self._exchange(method, path, b"" if body is None else msgspec.json.encode(body), wait_s)
        try:
            if status < 300:
                return msgspec.json.decode(content, type=kind)
            problem = msgspec.json.decode(content, type=Problem)
        except msgspec.MsgspecError as error:
            raise self._silent(error) from error
        raise _ERRORS.get(problem.code, RefusedError)(problem.message)

    def _exchange(self, method: str, path: str, body: bytes = b"", wait_s: float = ANSWER_S) -> tuple[int, bytes]:
        """Ask the driver by its unix socket, else by TCP if it is on this host. Raise OSError or UnreachableError if it does not
        answer in time."""
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._connected(wait_s)
            headers = {
                "Authorization": f"Bearer {read_token(self.record.driver or '')}",
                "Content-Type": "application/json",
            }
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, ValueError) as error:  # an address or a token that is none
            raise self._silent(error) from error
        finally:
            if connection is not None:
                connection.close()

    def _connected(self, wait_s: float) -> http.client.HTTPConnection:
        record = self.record
        if record.socket is not None:
            local = _UnixConnection(record.socket, wait_s)
            try:
                local.connect()
                return local
            except OSError:
                local.close()
        if not is_here(record.owner):
            raise elsewhere(record)
        if record.endpoint is None:
            raise self._silent(ConnectionError("it has not opened its endpoint"))
        connection = http.client.HTTPConnection(record.endpoint, timeout=wait_s)
        connection.connect()
        return connection

    def _silent(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            "The driver of the job does not answer",
            where=f"job {self.record.job_id}, {self.record.owner}",
            found=f"{type(error).__name__}: {error}",
            cure="try again; see the driver's log",
        )


class RegistryJobs:
    """All jobs of the user (``ShownJobs``): the newest run of each id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, RegistryJob] = {}

    def all(self) -> list[ShownJob]:
        newest = registry.newest_runs(registry.records())
        with self._lock:
            known: dict[str, RegistryJob] = {}
            for record in newest:
                job = self._known.get(record.run) or RegistryJob(record)
                job.record = record
                known[record.run] = job
            self._known = known
        return list(known.values())

    def get(self, job_id: str) -> ShownJob | None:
        every = self.all()
        exact = next((job for job in every if job.job_id == job_id), None)
        return exact or next((job for job in every if flink_job_id(job.job_id) == job_id.lower()), None)


# -- without a driver ------------------------------------------------------------------------------------------------------


def _with_end(details: JobDetails, record: JobRecord, listed: tuple[ListedCheckpoint, ...]) -> JobDetails:
    """Add what was stored after the figures: how the job ended, and its last checkpoints."""
    return msgspec.structs.replace(
        details,
        state=record.state if record.has_ended else details.state,
        ended_ms=record.ended_ms if record.has_ended else details.ended_ms,
        checkpoints=_merged(details.checkpoints, listed),
        exceptions=details.exceptions or _exceptions(record),
    )


def _merged(shown: tuple[CheckpointView, ...], listed: tuple[ListedCheckpoint, ...]) -> tuple[CheckpointView, ...]:
    by_id = {each.checkpoint_id: _checkpoint(each) for each in listed if each.checkpoint_id}
    for view in shown:
        stored = by_id.get(view.checkpoint_id)
        if stored is None or view.status is not Outcome.IN_PROGRESS:
            by_id[view.checkpoint_id] = view
    return tuple(by_id[number] for number in sorted(by_id))


def _checkpoint(entry: ListedCheckpoint) -> CheckpointView:
    """Make the view of a checkpoint from the history on storage."""
    complete = entry.status is CheckpointStatus.COMPLETED
    passed = {1: entry.trigger_ms}
    if complete:
        passed[7] = entry.end_ms
        if "commit" in entry.steps_ms:
            passed[8] = entry.end_ms + round(entry.steps_ms["commit"])
    plain = {name: getattr(entry, name) for name in HistoryEntry.__struct_fields__}
    return CheckpointView(
        entry.checkpoint_id,
        entry.kind,
        0,
        Outcome.COMPLETED if complete else Outcome.FAILED,
        passed,
        entry.size,
        None if complete else entry.message or entry.reason,
        HistoryEntry(**plain),
    )


def _from_record(record: JobRecord, listed: tuple[ListedCheckpoint, ...]) -> JobDetails:
    """Make what is known of a job whose view was not stored: it ended before it had one, or an earlier version ran it."""
    checkpoints = _merged((), listed)
    done = [each.kind for each in listed if each.status is CheckpointStatus.COMPLETED]
    failed = Counter(each.reason for each in listed if each.status is CheckpointStatus.FAILED)
    return JobDetails(
        job_id=record.job_id,
        name=record.name,
        state=record.state,
        started_ms=record.started_ms,
        ended_ms=record.ended_ms,
        directory=record.directory,
        is_temporary=record.is_temporary,
        checkpoint_interval_ms=record.checkpoint_interval_ms,
        guarantee=None,
        paths=(),
        finished_before=False,
        totals=Totals(
            checkpoints=done.count(CHECKPOINT),
            savepoints=len(done) - done.count(CHECKPOINT),
            failed_checkpoints=failed,
        ),
        records_per_second=0.0,
        operators=(),
        attempts=(),
        rounds=(),
        checkpoints=checkpoints,
        exceptions=_exceptions(record),
    )


def _exceptions(record: JobRecord) -> tuple[ExceptionView, ...]:
    if record.error is None:
        return ()
    kind, _, message = record.error.partition(": ")
    return (ExceptionView(record.ended_ms or record.started_ms, 0, kind, message),)
