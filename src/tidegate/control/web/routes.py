"""The paths of the page: its files, and its own API below ``/tidegate/page``. All answers are JSON, events or files."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import tidegate
from tidegate.base.errors import (
    ConfigurationError,
    JobOverError,
    LeaseError,
    NoTargetError,
    RefusedError,
    RestoreError,
    SnapshotError,
    SnapshotInUseError,
    StorageError,
    TidegateError,
    UnknownJobError,
    UnreachableError,
)
from tidegate.checkpoint.metadata import CHECKPOINT, SAVEPOINT
from tidegate.control.jobs import problem_of
from tidegate.control.messages import CancelRequest, Code, Operation, Problem, SavepointRequest, StopRequest
from tidegate.control.shown import CheckpointPage, JobCard, Me, Sample, ShownJob, ShownJobs
from tidegate.control.web import snapshots
from tidegate.control.web.actions import ACTIONS, Asked, Will, will
from tidegate.control.web.cards import card_without_time, in_order, job_page, without_time
from tidegate.control.web.findings import why
from tidegate.control.web.live import Feeds, Shown
from tidegate.control.web.login import SESSION
from tidegate.control.web.logs import LogStream, read_log
from tidegate.control.web.programs import LARGEST_PROGRAM, Programs, RunRequest
from tidegate.control.web.restarts import RescaleRequest, Restarts

log = logging.getLogger(__name__)

T = TypeVar("T")
LONGEST_WAIT_S = 25.0
_LARGEST_BODY = 64 << 10
_MOST_WAITING = 64
CARD_S = 5.0
"""A list that takes longer helps nobody. Drivers answer within milliseconds, storage within a second."""
STATIC = Path(__file__).parent / "static"
_PAGE = "/tidegate/page"
_JOB = f"{_PAGE}/jobs/{{job_id}}"


class PageProblem(HTTPException):
    """Ends a request with a problem."""

    def __init__(self, status: int, code: Code, message: str) -> None:
        super().__init__(status, message)
        self.problem = Problem(code, message)


class _Dispose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request without parameters."""


class _Snapshots(msgspec.Struct, frozen=True):
    """The parameters of paths about snapshots."""

    path: str = ""
    operator: str = ""
    state: str = ""
    key: str = ""
    before: str = ""
    after: str = ""


def page_routes(
    jobs: ShownJobs,
    *,
    server: str = "driver",
    programs: Programs | None = None,
    restarts: Restarts | None = None,
    static: Path = STATIC,
) -> list[Route]:
    """Return the paths of the page for these jobs. ``server``: ``driver`` or ``installation``. ``programs``: where uploads go;
    None: nobody may upload. ``restarts`` starts programs again; None: this server cannot."""
    return _PageRoutes(jobs, server, programs, restarts, static).routes()


class _PageRoutes:
    """Handlers run in the server's event loop. What waits for storage, a driver or a job runs in a thread beside the loop."""

    def __init__(
        self, jobs: ShownJobs, server: str, programs: Programs | None, restarts: Restarts | None, static: Path
    ) -> None:
        self._jobs, self._server, self._programs, self._restarts = jobs, server, programs, restarts
        self._feeds = Feeds()
        self._looking: dict[str, asyncio.Task[JobCard | None]] = {}
        self._last: dict[str, JobCard] = {}
        self._files = _files_of(static)
        self._waiting: anyio.CapacityLimiter | None = None

    def routes(self) -> list[Route]:
        table: tuple[tuple[str, str, Callable[[Request], Awaitable[Response]]], ...] = (
            ("GET", "/", self.index),
            ("GET", "/assets/{file:path}", self.asset),
            ("GET", f"{_PAGE}/me", self.me),
            ("GET", f"{_PAGE}/jobs", self.cards),
            ("GET", f"{_PAGE}/events", self.cards_live),
            ("GET", _JOB, self.job),
            ("GET", f"{_JOB}/events", self.job_live),
            ("GET", f"{_JOB}/checkpoints/{{number}}", self.checkpoint),
            ("GET", f"{_JOB}/rounds/{{number}}/story", self.round_story),
            ("GET", f"{_JOB}/operations", self.operations),
            ("GET", f"{_JOB}/operations/{{operation}}", self.operation),
            ("POST", f"{_JOB}/checkpoints", self.command("checkpoints", _Nothing)),
            ("POST", f"{_JOB}/savepoints", self.command("savepoints", SavepointRequest)),
            ("POST", f"{_JOB}/stop", self.command("stop", StopRequest)),
            ("POST", f"{_JOB}/cancel", self.command("cancel", CancelRequest)),
            ("POST", f"{_JOB}/rescale", self.rescale),
            ("GET", f"{_JOB}/will", self.will),
            ("GET", f"{_JOB}/log", self.log),
            ("GET", f"{_JOB}/log/events", self.log_live),
            ("GET", f"{_JOB}/metrics", self.metrics),
            ("GET", f"{_JOB}/snapshots", self.snapshots),
            ("GET", f"{_PAGE}/snapshots/operators", self.snapshot_operators),
            ("GET", f"{_PAGE}/snapshots/entries", self.snapshot_entries),
            ("GET", f"{_PAGE}/snapshots/difference", self.snapshot_difference),
            ("POST", f"{_PAGE}/snapshots/dispose", self.dispose),
            ("GET", f"{_PAGE}/programs", self.programs),
            ("POST", f"{_PAGE}/programs", self.upload),
            ("DELETE", f"{_PAGE}/programs/{{program}}", self.delete_program),
            ("POST", f"{_PAGE}/programs/{{program}}/run", self.run_program),
        )
        return [Route(path, _answered(handler), methods=[method]) for method, path, handler in table]

    # -- files ---------------------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        return self._file(request, "index.html")

    async def asset(self, request: Request) -> Response:
        return self._file(request, request.path_params["file"])

    def _file(self, request: Request, name: str) -> Response:
        """Answer with a file of the table that was made at the start: a path that is not in it leads nowhere."""
        found = self._files.get(name)
        if found is None:
            raise PageProblem(404, Code.UNKNOWN, "The page has no such file.")
        content, kind, etag = found
        headers = {"etag": etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def me(self, request: Request) -> Response:
        session = request.scope.get(SESSION)
        return _json(
            Me(
                csrf="" if session is None else session.csrf,
                can_submit=self._programs is not None,
                version=tidegate.__version__,
                server=self._server,
            )
        )

    async def cards(self, request: Request) -> Response:
        return _json(await self._all_cards())

    async def _all_cards(self) -> list[JobCard]:
        """Look at all jobs at once. A job whose storage hangs is shown as it was, and keeps no other job from being shown."""
        every = {job.run: job for job in await run_in_threadpool(self._jobs.all)}
        for run, job in every.items():
            if run not in self._looking:
                self._looking[run] = asyncio.create_task(run_in_threadpool(_card, job))
        looking = {run: self._looking[run] for run in every}  # several people look at the same time
        if looking:
            await asyncio.wait(looking.values(), timeout=CARD_S)
        self._last = {run: card for run, card in self._last.items() if run in every}
        for run, task in looking.items():
            if task.done():
                self._looking.pop(run, None)
                if (card := task.result()) is not None:
                    self._last[run] = card
        return in_order(list(self._last.values()))

    async def cards_live(self, request: Request) -> Response:
        async def make() -> Shown:
            cards = await self._all_cards()
            return Shown("jobs", [card_without_time(card) for card in cards], msgspec.json.encode(cards))

        return self._feeds.stream("jobs", make)

    async def job(self, request: Request) -> Response:
        return _json(await run_in_threadpool(job_page, await self._found(request)))

    async def job_live(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]

        def look() -> Shown:
            job = self._jobs.get(job_id)
            if job is None:
                problem = _unknown()
                return Shown("gone", problem, msgspec.json.encode(problem), last=True)
            page = job_page(job)
            return Shown("job", without_time(page), msgspec.json.encode(page))

        return self._feeds.stream(f"job {job_id}", lambda: run_in_threadpool(look))

    async def checkpoint(self, request: Request) -> Response:
        number, job = _number(request, "checkpoint"), await self._found(request)

        def look() -> CheckpointPage | None:
            view = job.checkpoint(number)
            if view is None:
                return None
            details, _ = job.details()
            kind = view.kind if view.kind in (CHECKPOINT, SAVEPOINT) else CHECKPOINT
            story = tuple(job.story(kind, number))
            return CheckpointPage(view=view, why=why(view, details.checkpoints, details), story=story)

        page = await run_in_threadpool(look)
        if page is None:
            raise PageProblem(404, Code.UNKNOWN, f"The job shows no checkpoint {number}: it never was, or is too old.")
        return _json(page)

    async def round_story(self, request: Request) -> Response:
        job = await self._found(request)
        return _json(await run_in_threadpool(job.story, "round", _number(request, "round")))

    async def operations(self, request: Request) -> Response:
        job = await self._found(request)
        own = [] if self._restarts is None else self._restarts.operations(job.job_id)
        every = [*await run_in_threadpool(job.operations), *own]
        return _json(sorted(every, key=lambda operation: operation.started_ms))

    async def operation(self, request: Request) -> Response:
        id, seconds = request.path_params["operation"], _wait(request)
        if self._waiting is None:
            self._waiting = anyio.CapacityLimiter(_MOST_WAITING)
        own = None if self._restarts is None else self._restarts.operation(id)
        if own is not None and self._restarts is not None:
            look = functools.partial(self._restarts.wait, id, seconds)
        else:
            look = functools.partial((await self._found(request)).operation, id, seconds)
        found = await anyio.to_thread.run_sync(look, limiter=self._waiting)
        if found is None:
            raise PageProblem(404, Code.UNKNOWN, "The job knows no such operation.")
        return _json(found)

    # -- actions -------------------------------------------------------------------------------------------------------

    def command(self, name: str, kind: type[msgspec.Struct]) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Response:
            asked = await _body(request, kind)
            job = await self._found(request)
            given = None if isinstance(asked, _Nothing) else asked
            return _json(await run_in_threadpool(job.begin, name, given), 202)

        return act

    async def rescale(self, request: Request) -> Response:
        asked = await _body(request, RescaleRequest)
        job, restarts = await self._found(request), self._restarts

        def begin() -> Operation:
            refusal = _cannot_start(restarts, job)
            shown = will(job, Asked(action="rescale", target=asked.target, parallelism=asked.parallelism), refusal)
            if not shown.allowed or restarts is None:
                raise RefusedError(shown.problem or "The job cannot be rescaled")
            return restarts.rescale(job, asked)

        return _json(await run_in_threadpool(begin), 202)

    async def will(self, request: Request) -> Response:
        asked, job = _query(request, Asked), await self._found(request)
        if asked.action not in ACTIONS:
            raise PageProblem(400, Code.BAD_REQUEST, f"action is one of {', '.join(ACTIONS)}.")

        def say() -> Will:
            return will(job, asked, _cannot_start(self._restarts, job) if asked.action == "rescale" else None)

        return _json(await run_in_threadpool(say))

    # -- logs and figures ----------------------------------------------------------------------------------------------

    async def log(self, request: Request) -> Response:
        path = await self._log_file(request)
        return _json(await run_in_threadpool(read_log, path, _from(request)))

    async def log_live(self, request: Request) -> Response:
        return LogStream(self._feeds, await self._log_file(request), _from(request))

    async def _log_file(self, request: Request) -> Path:
        path = await run_in_threadpool((await self._found(request)).log_file)
        if path is None:
            raise PageProblem(
                404,
                Code.UNKNOWN,
                "The driver of the job has no log file. Only a driver in the background has one: tidegate run -d.",
            )
        return path

    async def metrics(self, request: Request) -> Response:
        job = await self._found(request)
        return _json(await run_in_threadpool(lambda: _metrics(job.metrics_text())))

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def snapshots(self, request: Request) -> Response:
        return _json(await run_in_threadpool(snapshots.snapshots_of, await self._found(request)))

    async def snapshot_operators(self, request: Request) -> Response:
        asked = _query(request, _Snapshots)
        return _json(await run_in_threadpool(lambda: snapshots.operators_of(snapshots.opened(self._jobs, asked.path))))

    async def snapshot_entries(self, request: Request) -> Response:
        asked, limit = _query(request, _Snapshots), _limit(request)

        def look() -> snapshots.Entries:
            reader = snapshots.opened(self._jobs, asked.path)
            after = snapshots.cursor(asked.after)
            return snapshots.entries_of(reader, asked.operator, asked.state, key=asked.key, limit=limit, after=after)

        return _json(await run_in_threadpool(look))

    async def snapshot_difference(self, request: Request) -> Response:
        asked, limit = _query(request, _Snapshots), _limit(request)

        def look() -> snapshots.Difference:
            before, after = (snapshots.opened(self._jobs, path) for path in (asked.before, asked.after))
            return snapshots.difference_of(before, after, asked.operator, asked.state, limit=limit)

        return _json(await run_in_threadpool(look))

    async def dispose(self, request: Request) -> Response:
        asked = await _body(request, _Dispose)
        await run_in_threadpool(snapshots.dispose_of, self._jobs, asked.path)
        return _json({"disposed": asked.path})

    # -- programs ------------------------------------------------------------------------------------------------------

    async def programs(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._uploads().all))

    async def upload(self, request: Request) -> Response:
        uploads = self._uploads()
        name = request.query_params.get("name", "")
        uploads.check_name(name)
        content = await _content(request, LARGEST_PROGRAM, "A program")
        return _json(await run_in_threadpool(uploads.add, name, content), 201)

    async def delete_program(self, request: Request) -> Response:
        await run_in_threadpool(self._uploads().delete, request.path_params["program"])
        return _json({})

    async def run_program(self, request: Request) -> Response:
        uploads = self._uploads()
        asked = await _body(request, RunRequest)
        program = uploads.get(request.path_params["program"])
        assert self._restarts is not None
        return _json(await run_in_threadpool(self._restarts.start, program, asked), 202)

    def _uploads(self) -> Programs:
        if self._programs is None:
            raise PageProblem(
                403,
                Code.REFUSED,
                "This server takes no programs. Start it with tidegate web --allow-submit: whoever can log in can then run code as "
                "the user of the server.",
            )
        return self._programs

    # -- ---------------------------------------------------------------------------------------------------------------

    async def _found(self, request: Request) -> ShownJob:
        job = await run_in_threadpool(self._jobs.get, request.path_params["job_id"])
        if job is None:
            raise PageProblem(404, Code.UNKNOWN, _unknown().message)
        return job


def _unknown() -> Problem:
    return Problem(Code.UNKNOWN, "There is no job with this id. It never ran here, or ended long ago.")


def _card(job: ShownJob) -> JobCard | None:
    """Return None for a job that cannot be shown, whatever its driver answers: the others are."""
    try:
        return job_page(job).card
    except Exception as error:
        log.debug("job %s is not listed: %s: %s", job.job_id, type(error).__name__, error)
        return None


def _cannot_start(restarts: Restarts | None, job: ShownJob) -> str | None:
    if restarts is None:
        return "A driver cannot start its own job again. Open the page of all jobs: tidegate web."
    return restarts.why_not(job)


def _metrics(text: str) -> list[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    return [
        Sample(
            name=sample.name,
            operator=sample.labels.get("operator"),
            kind=family.type,
            value=sample.value,
            labels={k: v for k, v in sample.labels.items() if k not in ("job_id", "job_name", "operator")},
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _files_of(static: Path) -> Mapping[str, tuple[bytes, str, str]]:
    """Read the files of the page: some hundred kB. The answer to a path is looked up, never opened."""
    found = {}
    for path in sorted(static.rglob("*")) if static.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            content = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if path.suffix in (".js", ".mjs"):
                kind = "text/javascript"
            if kind.startswith("text/"):
                kind += "; charset=utf-8"
            found[path.relative_to(static).as_posix()] = (
                content,
                kind,
                f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            )
    return found


# -- requests and answers --------------------------------------------------------------------------------------------------


def _json(value: Any, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value), status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def _answered(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Make every error a problem with a status, also where the application around has no handlers of its own."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except PageProblem as error:
            return _json(error.problem, error.status_code)
        except TidegateError as error:
            status, problem = described(error)
            return _json(problem, status)
        except HTTPException as error:
            code = Code.UNKNOWN if error.status_code == HTTPStatus.NOT_FOUND else Code.BAD_REQUEST
            return _json(Problem(code, error.detail), error.status_code)
        except Exception as error:
            return _json(problem_of(error), 500)

    return answer


def handlers() -> dict[Any, Any]:
    """Return the handlers of an application whose other paths answer with problems too."""

    async def http_error(request: Request, error: HTTPException) -> Response:
        is_unknown = error.status_code == HTTPStatus.NOT_FOUND
        text = "There is nothing at this path." if is_unknown else error.detail
        answer = _json(Problem(Code.UNKNOWN if is_unknown else Code.BAD_REQUEST, text), error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    async def broken(request: Request, error: Exception) -> Response:
        return _json(problem_of(error), 500)

    return {HTTPException: http_error, Exception: broken}


_STATUSES: tuple[tuple[type[TidegateError], int, Code], ...] = (
    (UnknownJobError, 404, Code.UNKNOWN),
    (NoTargetError, 409, Code.NO_TARGET),
    (JobOverError, 409, Code.ENDED),
    (UnreachableError, 503, Code.FAILED),
    (SnapshotInUseError, 409, Code.REFUSED),
    (RefusedError, 409, Code.REFUSED),
    (LeaseError, 409, Code.REFUSED),
    (ConfigurationError, 409, Code.REFUSED),
    (SnapshotError, 404, Code.UNKNOWN),
    (RestoreError, 404, Code.UNKNOWN),
    (StorageError, 500, Code.FAILED),
)
"""The first class that fits decides."""


def described(error: TidegateError) -> tuple[int, Problem]:
    """Return the status and the problem of an error."""
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, Problem(code, str(error))
    problem = problem_of(error)
    return 500, problem


async def _content(request: Request, most: int, what: str) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise PageProblem(413, Code.BAD_REQUEST, f"{what} may have {most:,} bytes at most.")
    return bytes(content)


async def _body(request: Request, kind: type[T]) -> T:
    """Read the body. An empty one counts as ``{}``."""
    content = await _content(request, _LARGEST_BODY, "The request body")
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PageProblem(400, Code.BAD_REQUEST, f"The request body is invalid: {error}") from None


def _query(request: Request, kind: type[T]) -> T:
    try:
        given = {key: value for key, value in request.query_params.items() if value != ""}
        return msgspec.convert(given, kind, strict=False)
    except msgspec.MsgspecError as error:
        raise PageProblem(400, Code.BAD_REQUEST, f"The parameters are invalid: {error}") from None


def _number(request: Request, what: str) -> int:
    text = request.path_params["number"]
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise PageProblem(404, Code.UNKNOWN, f"A {what} has a number.")
    return int(text)


def _from(request: Request) -> int | None:
    text = request.query_params.get("from", "")
    if text and re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise PageProblem(400, Code.BAD_REQUEST, "from is a number of bytes.")
    return int(text) if text else None


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if re.fullmatch(r"[0-9]{1,6}", text) is None or not 1 <= int(text) <= snapshots.MOST_ENTRIES:
        raise PageProblem(400, Code.BAD_REQUEST, f"limit is a number between 1 and {snapshots.MOST_ENTRIES}.")
    return int(text)


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    if re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,6})?", text) is None or float(text) > LONGEST_WAIT_S:
        raise PageProblem(400, Code.BAD_REQUEST, f"wait is a number of seconds between 0 and {LONGEST_WAIT_S:.0f}.")
    return float(text)
