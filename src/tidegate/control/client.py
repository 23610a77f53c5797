"""The other side of the endpoint: finds a job by its id, asks its driver, waits for what was begun."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from tidegate.common.errors import (
    AmbiguousJobError,
    CommandFailedError,
    DriverDiedError,
    JobOverError,
    NoTargetError,
    RefusedError,
    TidegateError,
    UnknownJobError,
    UnreachableError,
)
from tidegate.control import registry
from tidegate.control.home import read_token
from tidegate.control.messages import Code, Operation, OperationStatus, Problem
from tidegate.control.registry import JobRecord, Life

if TYPE_CHECKING:
    from tidegate.control.details import JobDetails

T = TypeVar("T")
_TIMEOUT_S = 30.0
_POLL_S = 1.0
_ENDPOINT_S = 10.0
_ERRORS: dict[Code, type[TidegateError]] = {
    Code.UNAUTHORIZED: UnreachableError,
    Code.ENDED: JobOverError,
    Code.UNKNOWN: JobOverError,
    Code.NO_TARGET: NoTargetError,
    Code.FAILED: CommandFailedError,
}


def find(text: str) -> JobRecord:
    """The job whose id is, or begins with, the text; of its runs the one that lives, else the newest."""
    every = registry.records()
    newest = registry.newest_runs(every)
    exact = [record for record in newest if record.job_id == text]
    found = exact or [record for record in newest if text and record.job_id.startswith(text)]
    if len(found) > 1:
        raise AmbiguousJobError(
            "The beginning of a job id must belong to one job",
            where=text,
            found="".join(f"\n    {record.job_id}  {record.name}, {record.state}" for record in found),
            cure="give more of it",
        )
    if not found:
        raise UnknownJobError(
            "A job is named by its id, or the beginning of it",
            where=text,
            found=f"none of {len(newest)} registered jobs has it",
            cure="tidegate list -a shows all; jobs of another TIDEGATE_HOME are not among them",
        )
    runs = [record for record in every if record.job_id == found[0].job_id]
    return next((record for record in reversed(runs) if record.life() is Life.LIVE), runs[-1])


class DriverClient:
    """Talks to the driver of one run."""

    def __init__(self, record: JobRecord) -> None:
        """Raises JobOverError or UnreachableError when nobody can answer."""
        self.record = _reachable(record)

    def details(self) -> JobDetails:
        from tidegate.control.details import (
            JobDetails,
        )  # brings the runtime along, which other commands need not wait for

        return self._ask("GET", "", JobDetails)

    def begin(self, command: str, body: msgspec.Struct | None = None) -> Operation:
        return self._ask("POST", f"/{command}", Operation, body)

    def wait(self, begun: Operation, show: Callable[[float], None] = lambda seconds: None) -> Operation:
        """Until it has come to its end, which may be that of the driver. ``show`` is called about every second."""
        started, operation = time.monotonic(), begun
        while operation.status is OperationStatus.RUNNING:
            show(time.monotonic() - started)
            try:
                operation = self._ask("GET", f"/operations/{begun.id}?wait={_POLL_S}", Operation)
            except (JobOverError, UnreachableError) as error:
                operation = self._left_behind(begun, error)
        if operation.problem is not None:
            self._raise(operation.problem)
        return operation

    def _left_behind(self, begun: Operation, error: TidegateError) -> Operation:
        """The driver went before it could answer, and wrote down what had become of it."""
        record = registry.read(self.record.run)
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
            raise self._unreachable(f"an answer that is none of a driver's: {error}") from error
        self._raise(problem)

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        address, driver = self.record.endpoint, self.record.driver
        assert address is not None and driver is not None
        connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)  # never through a proxy
        try:
            headers = {"Authorization": f"Bearer {read_token(driver)}", "Content-Type": "application/json"}
            connection.request(method, f"/v1/jobs/{quote(self.record.job_id, safe='')}{path}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            connection.close()

    def _gone(self, error: Exception) -> TidegateError:
        """A driver ends beside its jobs, so a moment ago it may have been there."""
        record = _settled(self.record)
        if record.life() in (Life.ENDED, Life.DIED):
            return over(record)
        return self._unreachable(f"{type(error).__name__}: {error}")

    def _unreachable(self, found: str) -> UnreachableError:
        return UnreachableError(
            "The driver of a job takes commands at its endpoint",
            where=f"job {self.record.job_id}, {self.record.owner}, http://{self.record.endpoint}",
            found=found,
            cure="try again; see the driver's log",
        )

    def _raise(self, problem: Problem) -> NoReturn:
        raise _ERRORS.get(problem.code, RefusedError)(problem.message)


def over(record: JobRecord) -> JobOverError:
    """Why a job that is over takes no commands."""
    where = f"job {record.job_id} ('{record.name}')"
    if record.life() is Life.DIED:
        return DriverDiedError(
            "A job takes commands while its driver lives",
            where=where,
            found=f"{record.owner} is gone, and has not said why (state {record.state})",
            cure="start the program again with the same tidegate.job-id; tidegate checkpoints shows what it goes on from",
        )
    return JobOverError("A job takes commands until it has ended", where=where, found=f"it is {record.state}")


def _reachable(record: JobRecord) -> JobRecord:
    """As it is when its driver listens: a job that has just been started may not yet."""
    deadline = time.monotonic() + _ENDPOINT_S
    while True:
        if record.life() in (Life.ENDED, Life.DIED):
            raise over(record)
        if record.endpoint is not None:
            return record
        if time.monotonic() > deadline:
            raise UnreachableError(
                "The driver of a job takes commands at its endpoint",
                where=f"job {record.job_id}, {record.owner}",
                found="it has not opened one",
                cure="see the driver's log",
            )
        time.sleep(0.05)
        record = registry.read(record.run) or record


def _settled(record: JobRecord) -> JobRecord:
    """What the driver has written last; it may be about to."""
    deadline = time.monotonic() + _ENDPOINT_S
    while time.monotonic() < deadline:
        latest = registry.read(record.run) or record
        if latest.life() in (Life.ENDED, Life.DIED):
            return latest
        time.sleep(0.05)
    return registry.read(record.run) or record
