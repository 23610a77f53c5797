"""The client of the endpoint: finds a job by its id, asks its driver, waits for operations."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from tidegate.base.errors import (
    AmbiguousJobError,
    CommandFailedError,
    DriverDiedError,
    JobOverError,
    NoTargetError,
    RefusedError,
    StorageError,
    TidegateError,
    UnknownJobError,
    UnreachableError,
)
from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.owner import is_here
from tidegate.control import registry
from tidegate.control.letters import PostedDriver
from tidegate.control.messages import Code, Operation, OperationStatus, Problem
from tidegate.control.place import JobPlace, is_address, job_at, refreshed
from tidegate.control.registry import DriverLife, JobRecord, read_token

if TYPE_CHECKING:
    from tidegate.control.jobs import JobDetails

T = TypeVar("T")
_TIMEOUT_S = 30.0
_POLL_S = 1.0
_ENDPOINT_S = 10.0
_MOST_SHOWN = 200
_ERRORS: dict[Code, type[TidegateError]] = {
    Code.UNAUTHORIZED: UnreachableError,
    Code.ENDED: JobOverError,
    Code.UNKNOWN: JobOverError,
    Code.NO_TARGET: NoTargetError,
    Code.FAILED: CommandFailedError,
}


def find(text: str) -> JobRecord:
    """Return the job whose id is the text, or starts with it: the run that lives, else the newest run. The text may also be the
    32 digits that Flink's clients show, the job's directory on storage, or the id of its application on a cluster."""
    if is_address(text):
        return job_at(text)
    return refreshed(_registered(text))


def _registered(text: str) -> JobRecord:
    every = registry.records()
    newest = registry.newest_runs(every)
    exact = [record for record in newest if text in (record.job_id, record.application)]
    exact = exact or [record for record in newest if flink_job_id(record.job_id) == text.lower()]
    found = exact or [record for record in newest if text and record.job_id.startswith(text)]
    if len(found) > 1:
        raise AmbiguousJobError(
            "Several job ids start with this text",
            where=text,
            found="".join(f"\n    {record.job_id}  {record.name}, {record.state}" for record in found),
            cure="give more characters of the id",
        )
    if not found:
        raise UnknownJobError(
            "There is no job with this id",
            where=text,
            found=f"{len(newest)} registered jobs, none of them",
            cure="see tidegate list -a for all jobs; set TIDEGATE_HOME if the job was started with another one; give the job's "
            "directory instead of its id if it was started elsewhere (tidegate list --dir)",
        )
    runs = [record for record in every if record.job_id == found[0].job_id]
    return next((record for record in reversed(runs) if record.life() is DriverLife.LIVE), runs[-1])


def driver_of(record: JobRecord) -> DriverClient | PostedDriver:
    """Return the way to the driver of a run: a connection on this host, else files in the job's directory. Raise JobOverError or
    UnreachableError if no driver can answer."""
    record = refreshed(record)
    known = registry.read(record.run)
    if known is not None:
        record = msgspec.structs.replace(record, endpoint=known.endpoint, socket=known.socket, driver=known.driver)
    if record.place is None or _listens(record.socket) or (known is not None and is_here(record.owner)):
        return DriverClient(record)
    if record.life() in (DriverLife.ENDED, DriverLife.DIED):
        raise over(record)
    try:
        token = read_token(record.driver or "")
    except OSError as error:
        raise UnreachableError(
            "The token of the job's driver is not in this TIDEGATE_HOME, and commands are signed with it",
            where=f"job {record.job_id} ('{record.name}'), {record.owner}, {registry.home()}",
            found=f"{type(error).__name__}: {error}" if record.driver else "the driver does not take commands yet",
            cure="run the command as the user and with the TIDEGATE_HOME from which the job was started, or set "
            f"{registry.TOKEN_VARIABLE} to the file with the token that the driver was given",
        ) from error
    return PostedDriver(record, token)


class DriverClient:
    """Talks to the driver of one run."""

    def __init__(self, record: JobRecord) -> None:
        """Raise JobOverError or UnreachableError if no driver can answer."""
        self.record = _reachable(record)

    def details(self) -> JobDetails:
        from tidegate.control.jobs import JobDetails  # imports the runtime, which other commands do not need

        return self._ask("GET", "", JobDetails)

    def begin(self, command: str, body: msgspec.Struct | None = None) -> Operation:
        return self._ask("POST", f"/{command}", Operation, body)

    def wait(self, begun: Operation, show: Callable[[float], None] = lambda seconds: None) -> Operation:
        """Wait until the operation has ended. The driver may end first. ``show`` is called about every second."""
        started, operation = time.monotonic(), begun
        while operation.status is OperationStatus.RUNNING:
            show(time.monotonic() - started)
            try:
                operation = self._ask("GET", f"/operations/{begun.id}?wait={_POLL_S}", Operation)
            except (JobOverError, UnreachableError) as error:
                operation = self._recorded(begun, error)
        if operation.problem is not None:
            raise_problem(operation.problem)
        return operation

    def _recorded(self, begun: Operation, error: TidegateError) -> Operation:
        """Return the operation from the job's record: the driver ended before it could answer, and wrote the record."""
        record = _read(self.record)
        for operation in record.operations if record is not None else ():
            if operation.id == begun.id:
                return operation
        raise error

    def _ask(self, method: str, path: str, kind: type[T], body: Any = None) -> T:
        status, content = self._exchange(method, path, b"" if body is None else msgspec.json.encode(body))
        try:
            if status < 300:
                return msgspec.json.decode(content, type=kind)
            problem = msgspec.json.decode(content, type=Problem)
        except msgspec.MsgspecError as error:
            shown = content[:_MOST_SHOWN].decode(errors="replace")
            raise self._unreachable(
                f"HTTP status {status} with a body that no driver sends: {shown!r}",
                "check with 'tidegate list --json' whether another program uses this port, and see the driver's log",
            ) from error
        raise_problem(problem)

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._connected()
            token = read_token(self.record.driver or "")
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, f"/tidegate/jobs/{quote(self.record.job_id, safe='')}{path}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            if connection is not None:
                connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        """Connect by the unix socket, which leads to a process of this user on this host or to none. Else connect by TCP, but only
        to a driver of this host: for a driver of another host, a stranger may listen on that loopback port here."""
        if self.record.socket is not None:
            local = _UnixConnection(self.record.socket)
            try:
                local.connect()
                return local
            except OSError:
                local.close()
        if not is_here(self.record.owner):
            raise elsewhere(self.record)
        assert self.record.endpoint is not None
        connection = http.client.HTTPConnection(self.record.endpoint, timeout=_TIMEOUT_S)  # never through a proxy
        connection.connect()
        return connection

    def _gone(self, error: Exception) -> TidegateError:
        """Say why the driver does not answer: it may have ended a moment ago, with its jobs."""
        record = _settled(self.record)
        if record.life() in (DriverLife.ENDED, DriverLife.DIED):
            return over(record)
        return self._unreachable(f"{type(error).__name__}: {error}")

    def _unreachable(self, found: str, cure: str = "try again; see the driver's log") -> UnreachableError:
        return UnreachableError(
            "The driver of the job does not answer at its endpoint",
            where=f"job {self.record.job_id}, {self.record.owner}, http://{self.record.endpoint}",
            found=found,
            cure=cure,
        )


def raise_problem(problem: Problem) -> NoReturn:
    raise _ERRORS.get(problem.code, RefusedError)(problem.message)


def _read(record: JobRecord) -> JobRecord | None:
    """Return what the driver of the run has written last: into the registry of this user, or into the job's directory."""
    known = registry.read(record.run)
    if known is not None or record.place is None:
        return known
    with contextlib.suppress(StorageError):
        return JobPlace(record.place).read(record.run)
    return None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, if a process of the same user listens there."""

    def __init__(self, path: str, timeout: float = _TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if hasattr(socket, "SO_PEERCRED"):
            _, user, _ = struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.geteuid():
                raise PermissionError(f"user {user} listens at {self._path}")


def _listens(path: str | None) -> bool:
    """Return whether a process of this user listens: a driver in a container that shares a directory with this one."""
    if path is None or not os.path.exists(path):
        return False
    local = _UnixConnection(path)
    try:
        local.connect()
    except OSError:
        return False
    finally:
        local.close()
    return True


def elsewhere(record: JobRecord) -> UnreachableError:
    """Make the error for a driver on another host."""
    here = socket.gethostname()
    return UnreachableError(
        "The driver runs on another host, and takes commands only there",
        where=f"job {record.job_id} ('{record.name}'), {record.owner}",
        found=f"this is host {here}"
        if here != record.owner.host
        else f"this host is called {here} too, but has been restarted since, or is another host or container",
        cure=f"run the command on {record.owner.host}"
        if record.place is None
        else f"use the command line, which leaves commands in the job's directory, for example tidegate stop {record.job_id}",
    )


def over(record: JobRecord) -> JobOverError:
    """Make the error for a job that has ended."""
    where = f"job {record.job_id} ('{record.name}')"
    if record.life() is DriverLife.DIED:
        return DriverDiedError(
            "The driver of the job has died, so the job takes no commands",
            where=where,
            found=f"{record.owner} ended without a report (state {record.state})",
            cure="start the program again with the same tidegate.job-id; tidegate checkpoints shows where it continues",
        )
    return JobOverError("The job has ended, so it takes no commands", where=where, found=f"it is {record.state}")


def _reachable(record: JobRecord) -> JobRecord:
    """Return the record once its driver listens. The driver of a new job may not listen yet."""
    deadline = time.monotonic() + _ENDPOINT_S
    while True:
        if record.life() in (DriverLife.ENDED, DriverLife.DIED):
            raise over(record)
        if record.endpoint is not None:
            return record
        if not is_here(record.owner):
            raise elsewhere(record)
        if time.monotonic() > deadline:
            raise UnreachableError(
                "The driver of the job has not opened its endpoint",
                where=f"job {record.job_id}, {record.owner}",
                found=f"no address after {_ENDPOINT_S:.0f} seconds",
                cure="see the driver's log",
            )
        time.sleep(0.05)
        record = _read(record) or record


def _settled(record: JobRecord) -> JobRecord:
    """Return what the driver has written last. It may be about to write."""
    deadline = time.monotonic() + _ENDPOINT_S
    while time.monotonic() < deadline:
        latest = _read(record) or record
        if latest.life() in (DriverLife.ENDED, DriverLife.DIED):
            return latest
        time.sleep(0.05)
    return _read(record) or record
