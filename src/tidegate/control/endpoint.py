"""The paths of a driver's endpoint, and their description (OpenAPI 3.1). Both are made from one table.

The description has Flink's paths too. ``scripts/gen_flink_api.py`` makes the file that they are read from.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tidegate
from tidegate.base.errors import RefusedError, TidegateError
from tidegate.base.files import Files
from tidegate.base.hashing import flink_job_id
from tidegate.checkpoint.disposal import dispose as delete_snapshot
from tidegate.checkpoint.history import list_checkpoints
from tidegate.control.flink.routes import flink_routes
from tidegate.control.flink.triggers import Triggers
from tidegate.control.jobs import Checkpoints, ControlledJob, JobDetails, Jobs, JobSummary, checked_target, problem_of
from tidegate.control.messages import (
    CancelRequest,
    Code,
    Operation,
    Problem,
    SavepointRequest,
    StopRequest,
    body_of,
)
from tidegate.control.process_jobs import ProcessJobs
from tidegate.control.registry import directories_in_use
from tidegate.control.web.routes import page_routes
from tidegate.runtime.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.runtime.view import JobView

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


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Endpoint:
    """Handlers run in the server's event loop. What may wait for storage or for the job runs in a thread beside the loop."""

    def __init__(self, jobs: Jobs, triggers: Triggers | None = None) -> None:
        self._jobs, self._triggers = jobs, triggers

    def application(self) -> Starlette:
        routes = [Route(p.path, functools.partial(p.handler, self), methods=[p.method]) for p in _PATHS]
        routes += page_routes(ProcessJobs(self._jobs))  # the page of all jobs asks here for what a driver alone knows
        routes += flink_routes(ProcessJobs(self._jobs), dispose=self._dispose, triggers=self._triggers)
        handlers: Any = {ProblemError: _refused, HTTPException: _http_error, Exception: _broken}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _dispose(self, path: str) -> None:
        """Delete a snapshot, if every job of the driver may name it."""
        jobs = self._jobs.all()
        if not jobs:
            raise RefusedError("The driver runs no job that may name the snapshot", found=path)
        for job in jobs:
            settings = job.handle.settings
            checked_target(path, settings.control_dirs, settings.savepoint_dir)
        delete_snapshot(path, directories_in_use())

    # -- reading -----------------------------------------------------------------------------------------------------------

    async def description(self, request: Request) -> Response:
        return _json(description())

    async def jobs(self, request: Request) -> Response:
        views = [job.handle.view() for job in self._jobs.all()]
        return _json(
            [JobSummary(job_id=v.job_id, name=v.name, state=v.status.name, started_ms=v.created_ms) for v in views]
        )

    async def job(self, request: Request) -> Response:
        return _json(JobDetails.of(self._find(request).handle.view(), time.time_ns() // 1_000_000))

    async def checkpoints(self, request: Request) -> Response:
        view = self._find(request).handle.view()
        listed = await run_in_threadpool(list_checkpoints, Files(view.directory))
        return _json(Checkpoints(directory=listed.directory, checkpoints=listed.checkpoints, latest=view.checkpoints))

    async def metrics(self, request: Request) -> Response:
        return Response(prometheus_text(self._find(request).handle.view()), media_type=CONTENT_TYPE)

    async def operations(self, request: Request) -> Response:
        return _json(self._find(request).operations.latest)

    async def operation(self, request: Request) -> Response:
        job, id, seconds = self._find(request), request.path_params["operation"], _wait(request)
        found = await run_in_threadpool(job.operations.wait, id, seconds) if seconds else job.operations.get(id)
        if found is None:
            raise ProblemError(Problem(Code.UNKNOWN, f"The job knows no operation {id!r}."))
        return _json(found)

    # -- commands ----------------------------------------------------------------------------------------------------------

    async def trigger_checkpoint(self, request: Request) -> Response:
        await _body(request, _Nothing)
        return await self._begun(self._find(request).trigger_checkpoint)

    async def trigger_savepoint(self, request: Request) -> Response:
        asked = await _body(request, SavepointRequest)
        return await self._begun(self._find(request).trigger_savepoint, asked.target)

    async def stop(self, request: Request) -> Response:
        asked = await _body(request, StopRequest)
        return await self._begun(self._find(request).stop, asked.target, asked.drain)

    async def cancel(self, request: Request) -> Response:
        asked = await _body(request, CancelRequest)
        return await self._begun(self._find(request).cancel, asked.target, asked.savepoint)

    async def _begun(self, act: Callable[..., Operation], *arguments: Any) -> Response:
        try:
            return _json(await run_in_threadpool(act, *arguments), status=202)
        except TidegateError as error:
            raise ProblemError(problem_of(error)) from error

    def _find(self, request: Request) -> ControlledJob:
        id = request.path_params["job_id"]
        same = (job for job in reversed(self._jobs.all()) if flink_job_id(job.handle.job_id) == id.lower())
        job = self._jobs.get(id) or next(same, None)
        if job is None:
            raise ProblemError(Problem(Code.UNKNOWN, "The driver runs no job with this id."))
        return job


def metrics_application(view: Callable[[], JobView]) -> Starlette:
    """Serve the figures of one job to Prometheus, and nothing else."""

    async def metrics(request: Request) -> Response:
        return Response(prometheus_text(view()), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route(path, metrics, methods=["GET"]) for path in ("/", "/metrics")])


# -- requests and answers --------------------------------------------------------------------------------------------------


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request without parameters."""


async def _body(request: Request, kind: type[T]) -> T:
    """Read the body. An empty one counts as ``{}``."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _LARGEST_BODY:
            raise HTTPException(413)
    try:
        return msgspec.json.decode(bytes(content) or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(Problem(Code.BAD_REQUEST, f"The request body is invalid: {error}")) from None


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        seconds = msgspec.json.decode(text, type=float)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise ProblemError(
            Problem(Code.BAD_REQUEST, f"wait is a number of seconds between 0 and {LONGEST_WAIT_S:.0f}.")
        )
    return seconds


def _json(value: Any, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"}
    )


async def _refused(request: Request, error: ProblemError) -> Response:
    return _json(error.problem, _STATUS[error.problem.code])


async def _http_error(request: Request, error: HTTPException) -> Response:
    code = Code.UNKNOWN if error.status_code == 404 else Code.BAD_REQUEST
    response = _json(body_of(request.url.path, Problem(code, error.detail)), error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _broken(request: Request, error: Exception) -> Response:
    return _json(body_of(request.url.path, problem_of(error)), 500)


# -- the table of paths ----------------------------------------------------------------------------------------------------


class _Path(NamedTuple):
    """``answer`` is the type of the answer, ``body`` that of the request. ``parameters`` are those of the query."""

    method: str
    path: str
    handler: Callable[[Endpoint, Request], Awaitable[Response]]
    summary: str
    answer: Any
    body: Any = None
    parameters: tuple[dict[str, Any], ...] = ()


_ONE = "/tidegate/jobs/{job_id}"
_WAIT = {
    "name": "wait",
    "in": "query",
    "description": "Answer when the operation has ended, or after this many seconds.",
    "schema": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S},
}
_TEXT = {"description": "Text of Prometheus.", "content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}
_PAGE = {"description": "This page.", "content": {"application/json": {"schema": {"type": "object"}}}}
_PATHS = (
    _Path("GET", "/openapi.json", Endpoint.description, "This description", _PAGE),
    _Path("GET", "/tidegate/jobs", Endpoint.jobs, "Jobs of the driver", list[JobSummary]),
    _Path("GET", _ONE, Endpoint.job, "A job", JobDetails),
    _Path("GET", f"{_ONE}/checkpoints", Endpoint.checkpoints, "Its checkpoints", Checkpoints),
    _Path("POST", f"{_ONE}/checkpoints", Endpoint.trigger_checkpoint, "Take a checkpoint now", Operation),
    _Path("POST", f"{_ONE}/savepoints", Endpoint.trigger_savepoint, "Take a savepoint", Operation, SavepointRequest),
    _Path("POST", f"{_ONE}/stop", Endpoint.stop, "Stop with a savepoint", Operation, StopRequest),
    _Path("POST", f"{_ONE}/cancel", Endpoint.cancel, "Cancel, with a savepoint or without", Operation, CancelRequest),
    _Path("GET", f"{_ONE}/operations", Endpoint.operations, "Its latest operations", list[Operation]),
    _Path(
        "GET", f"{_ONE}/operations/{{operation}}", Endpoint.operation, "One operation", Operation, parameters=(_WAIT,)
    ),
    _Path("GET", f"{_ONE}/metrics", Endpoint.metrics, "Its figures", _TEXT),
)
"""The paths of Flink's API are beside them: ``flink/routes.py``."""


@functools.cache
def description() -> dict[str, Any]:
    """Describe the endpoint as plain data."""
    types = list(
        {str(t): t for p in _PATHS for t in (p.answer, p.body) if t is not None and not isinstance(t, dict)}.values()
    )
    types.append(Problem)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}

    def content(kind: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": of[str(kind)]}}}

    problem = {"description": "Why not.", **content(Problem)}
    paths: dict[str, dict[str, Any]] = {}
    for p in _PATHS:
        names = [part[1:-1] for part in p.path.split("/") if part.startswith("{")]
        in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        good = p.answer if isinstance(p.answer, dict) else {"description": "Done.", **content(p.answer)}
        operation = {
            "summary": p.summary,
            **({"parameters": list(p.parameters)} if p.parameters else {}),
            **({"requestBody": content(p.body)} if p.body is not None else {}),
            "responses": {"202" if p.method == "POST" else "200": good, "default": problem},
        }
        paths.setdefault(p.path, {"parameters": in_path} if in_path else {})[p.method.lower()] = operation
    flink_paths, flink_schemas = _described()
    return {
        "openapi": "3.1.0",
        "info": {"title": "A driver of Tidegate", "version": tidegate.__version__},
        "security": [{"token": []}],
        "paths": paths | flink_paths,
        "components": {
            "schemas": components | flink_schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


# -- Flink's paths -------------------------------------------------------------------------------------------------------

_WAYS = ("get", "put", "post", "delete", "patch")

_EXECUTOR = "/v1/taskmanagers/{taskmanagerid}"
_TEXTS = (
    "/metrics",
    *(f"/v1/jobmanager/{name}" for name in ("log", "stdout", "logs/{filename}")),
    *(f"{_EXECUTOR}/{name}" for name in ("log", "stdout", "logs/{filename}")),
)
"""Paths that Flink's description leaves out, and ours: their answers are texts."""


@functools.cache
def flink_api() -> dict[str, Any]:
    """Return ``paths`` and ``schemas``, as Flink names them: without a prefix."""
    found: dict[str, Any] = msgspec.json.decode(files("tidegate.control.flink").joinpath("api.json").read_bytes())
    return found


def _described() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths below ``/v1`` and their schemas, for an OpenAPI description. Names of schemas begin with ``Flink``."""
    text = msgspec.json.encode(flink_api()).replace(b"#/components/schemas/", b"#/components/schemas/Flink.")
    renamed = msgspec.json.decode(text)
    error = {
        "description": "Why not.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Flink.ErrorResponseBody"}}},
    }
    paths = {}
    for path, methods in renamed["paths"].items():
        for way in _WAYS:
            if way in methods:
                methods[way]["responses"]["default"] = error
                _describe_answers(methods[way])
        paths[f"/v1{path}"] = methods
    for path in _TEXTS:
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        answer = {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
        paths[path] = {"get": {"parameters": parameters, "responses": {"200": answer, "default": error}}}
    paths["/v1/jars/{jarid}/plan"]["get"] = paths["/v1/jars/{jarid}/plan"]["post"] | {"requestBody": {"content": {}}}
    return paths, {f"Flink.{name}": schema for name, schema in renamed["schemas"].items()}


def _describe_answers(operation: dict[str, Any]) -> None:
    for answer in operation["responses"].values():
        answer.setdefault("description", "Done.")
