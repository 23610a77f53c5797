"""The paths of a driver's endpoint. ``openapi.py`` describes the same; a test compares the two."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.listing import list_checkpoints
from tidegate.control.details import Checkpoints, JobDetails, JobSummary
from tidegate.control.jobs import ControlledJob, Jobs
from tidegate.control.messages import (
    CancelRequest,
    Code,
    Operation,
    Problem,
    SavepointRequest,
    StopRequest,
)
from tidegate.control.openapi import description
from tidegate.control.operations import problem_of
from tidegate.runtime.prometheus import CONTENT_TYPE, prometheus_text

T = TypeVar("T")
LONGEST_WAIT_S = 25.0
_LARGEST_BODY = 64 << 10
_STATUS = {
    Code.UNAUTHORIZED: 401,
    Code.BAD_REQUEST: 400,
    Code.UNKNOWN: 404,
    Code.ENDED: 409,
    Code.REFUSED: 409,
    Code.NO_TARGET: 409,
    Code.FAILED: 500,
}


class Refused(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Endpoint:
    """Handlers run in the server's event loop: what may wait for storage or for the job is done in a thread beside it."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def application(self) -> Starlette:
        one = "/v1/jobs/{job_id}"
        routes = [
            Route("/openapi.json", _openapi, methods=["GET"]),
            Route("/v1/jobs", self._list, methods=["GET"]),
            Route(one, self._job, methods=["GET"]),
            Route(f"{one}/checkpoints", self._checkpoints, methods=["GET"]),
            Route(f"{one}/checkpoints", self._trigger_checkpoint, methods=["POST"]),
            Route(f"{one}/savepoints", self._trigger_savepoint, methods=["POST"]),
            Route(f"{one}/stop", self._stop, methods=["POST"]),
            Route(f"{one}/cancel", self._cancel, methods=["POST"]),
            Route(f"{one}/operations", self._operations, methods=["GET"]),
            Route(f"{one}/operations/{{operation}}", self._operation, methods=["GET"]),
            Route(f"{one}/metrics", self._metrics, methods=["GET"]),
        ]
        handlers: Any = {Refused: _refused, HTTPException: _not_there, Exception: _broken}
        return Starlette(routes=routes, exception_handlers=handlers)

    # -- looking -----------------------------------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        views = [job.handle.view() for job in self._jobs.all()]
        return _json(
            [JobSummary(job_id=v.job_id, name=v.name, state=v.status.name, started_ms=v.created_ms) for v in views]
        )

    async def _job(self, request: Request) -> Response:
        return _json(JobDetails.of(self._find(request).handle.view(), time.time_ns() // 1_000_000))

    async def _checkpoints(self, request: Request) -> Response:
        view = self._find(request).handle.view()
        listed = await run_in_threadpool(list_checkpoints, Files(view.directory))
        return _json(Checkpoints(directory=listed.directory, checkpoints=listed.checkpoints, latest=view.checkpoints))

    async def _metrics(self, request: Request) -> Response:
        return Response(prometheus_text(self._find(request).handle.view()), media_type=CONTENT_TYPE)

    async def _operations(self, request: Request) -> Response:
        return _json(self._find(request).operations.latest)

    async def _operation(self, request: Request) -> Response:
        job, id, seconds = self._find(request), request.path_params["operation"], _wait(request)
        found = await run_in_threadpool(job.operations.wait, id, seconds) if seconds else job.operations.get(id)
        if found is None:
            raise Refused(Problem(Code.UNKNOWN, f"The job knows no operation {id!r}."))
        return _json(found)

    # -- telling -----------------------------------------------------------------------------------------------------------

    async def _trigger_checkpoint(self, request: Request) -> Response:
        await _body(request, _Nothing)
        return await self._begun(self._find(request).trigger_checkpoint)

    async def _trigger_savepoint(self, request: Request) -> Response:
        asked = await _body(request, SavepointRequest)
        return await self._begun(self._find(request).trigger_savepoint, asked.target)

    async def _stop(self, request: Request) -> Response:
        asked = await _body(request, StopRequest)
        return await self._begun(self._find(request).stop, asked.target, asked.drain)

    async def _cancel(self, request: Request) -> Response:
        asked = await _body(request, CancelRequest)
        return await self._begun(self._find(request).cancel, asked.target, asked.savepoint)

    async def _begun(self, act: Callable[..., Operation], *arguments: Any) -> Response:
        try:
            return _json(await run_in_threadpool(act, *arguments), status=202)
        except TidegateError as error:
            raise Refused(problem_of(error)) from error

    def _find(self, request: Request) -> ControlledJob:
        job = self._jobs.get(request.path_params["job_id"])
        if job is None:
            raise Refused(Problem(Code.UNKNOWN, "The driver runs no job of this id."))
        return job


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that has nothing to say."""


async def _body(request: Request, kind: type[T]) -> T:
    """Nothing at all counts as ``{}``."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _LARGEST_BODY:
            raise HTTPException(413)
    try:
        return msgspec.json.decode(bytes(content) or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Problem(Code.BAD_REQUEST, f"The body is not what it should be: {error}")) from None


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        seconds = msgspec.json.decode(text, type=float)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise Refused(Problem(Code.BAD_REQUEST, f"wait is a number of seconds between 0 and {LONGEST_WAIT_S:.0f}."))
    return seconds


async def _openapi(request: Request) -> Response:
    return _json(description())


def _json(value: Any, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"}
    )


async def _refused(request: Request, error: Refused) -> Response:
    return _json(error.problem, _STATUS[error.problem.code])


async def _not_there(request: Request, error: HTTPException) -> Response:
    code = Code.UNKNOWN if error.status_code == 404 else Code.BAD_REQUEST
    response = _json(Problem(code, error.detail), error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _broken(request: Request, error: Exception) -> Response:
    return _json(problem_of(error), 500)
