"""The page's files and its API with the data of ``shown_data``: what the front-end is developed and tested with. Every answer has
the type of the real server's.

``python -m tests.web.page_server`` serves it until Ctrl+C.
"""

from __future__ import annotations

import asyncio
import mimetypes
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import tidegate
from tests.servers.server import free_port
from tests.web import shown_data
from tidegate.control.messages import Code, Operation, OperationStatus, Problem
from tidegate.control.shown import CheckpointPage, JobPage, Me, Sample
from tidegate.control.web.actions import Will
from tidegate.control.web.logs import LogPart
from tidegate.control.web.programs import Program
from tidegate.control.web.snapshots import (
    Changed,
    Difference,
    Entries,
    Entry,
    OperatorFigures,
    Snapshot,
    StateFigures,
)
from tidegate.runtime.view import Note, Outcome

STATIC = f"{tidegate.__path__[0]}/control/web/static"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
_CSRF = "fixture-csrf"
_SECOND_S = 1.0


class PageServer:
    """``pages`` may be changed while it serves: open pages see it within a second. ``posted``: the commands that came."""

    def __init__(self) -> None:
        self.port = free_port()
        self.pages = shown_data.pages(_now())
        self.posted: list[tuple[str, Any]] = []
        self.refuse: Problem | None = None
        self.fail: Problem | None = None
        """How commands are refused, and how operations end: None: well."""
        self.cuts_log = False
        """Whether each connection for the log ends after one part, as a proxy may do."""
        self.odd = shown_data.HOSTILE
        """A name of a metric, a key, a line of the log ..."""
        self._operations: dict[str, Operation] = {}
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        config = uvicorn.Config(self._application(), port=self.port, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            self._thread.join(0.01)

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join()

    def _application(self) -> Starlette:
        job = "/tidegate/page/jobs/{job}"
        get = (
            ("/", self._file),
            ("/assets/{file:path}", self._file),
            ("/tidegate/page/me", self._me),
            ("/tidegate/page/events", self._cards),
            (f"{job}/events", self._job),
            (f"{job}/checkpoints/{{number:int}}", self._checkpoint),
            (f"{job}/rounds/{{number:int}}/story", self._story),
            (f"{job}/operations", self._listed),
            (f"{job}/operations/{{id}}", self._operation),
            (f"{job}/will", self._will),
            (f"{job}/snapshots", self._snapshots),
            (f"{job}/log", self._log),
            (f"{job}/log/events", self._lines),
            (f"{job}/metrics", self._metrics),
            ("/tidegate/page/snapshots/operators", self._operators),
            ("/tidegate/page/snapshots/entries", self._entries),
            ("/tidegate/page/snapshots/difference", self._difference),
            ("/tidegate/page/programs", self._programs),
        )
        routes = [Route(path, handler) for path, handler in get]
        routes += [
            Route(f"{job}/{{command}}", self._command, methods=["POST"]),
            Route("/tidegate/page/{rest:path}", self._plain, methods=["POST", "DELETE"]),
        ]
        return Starlette(routes=routes)

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        content = await run_in_threadpool(Path(f"{STATIC}/{name}").read_bytes)
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        return Response(
            content, media_type=kind, headers={"content-security-policy": POLICY, "cache-control": "no-cache"}
        )

    async def _me(self, request: Request) -> Response:
        return _json(Me(csrf=_CSRF, can_submit=True, version="0", server="installation"))

    async def _cards(self, request: Request) -> Response:
        return _events("jobs", lambda: [page.card for page in self.pages.values()])

    async def _job(self, request: Request) -> Response:
        name = request.path_params["job"]

        def look() -> Any:
            page = self.pages.get(name)
            if page is None:
                return Problem(Code.UNKNOWN, f"There is no job {name!r}.")
            self.pages[name] = later = shown_data.later(page, _now()) if page.answers else page
            return later

        return _events("job" if name in self.pages else "gone", look)

    def _page(self, request: Request) -> JobPage:
        return self.pages[request.path_params["job"]]

    async def _checkpoint(self, request: Request) -> Response:
        details = self._page(request).details
        number = request.path_params["number"]
        view = next((c for c in details.checkpoints if c.checkpoint_id == number), None)
        if view is None:
            return _json(
                Problem(Code.UNKNOWN, f"The job shows no checkpoint {number}: it never was, or is too old."), 404
            )
        slow = view.entry is not None and view.entry.duration_ms > 2_000
        why = "Subtask 3/8 of totals took 3.4 of 3.6 s: it stored 61 % of the bytes." if slow else None
        if view.status is Outcome.FAILED:
            why = "Step 7 failed: s3://checkpoints/orders did not answer for 60 s."
        story = (
            Note(view.passed_ms[1], 1, "checkpoint", number, "Triggered"),
            Note(view.passed_ms[1] + 500, 1, "checkpoint", number, "Cut", "round 5985"),
        )
        return _json(CheckpointPage(view=shown_data.with_subtasks(view, details.operators), why=why, story=story))

    async def _story(self, request: Request) -> Response:
        number = request.path_params["number"]
        return _json(
            [
                Note(_now() - 900, 1, "round", number, "planned", "48,000 records"),
                Note(_now(), 1, "round", number, "accepted"),
            ]
        )

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _will(self, request: Request) -> Response:
        action = request.query_params["action"]
        sentences = (f"The job carries out: {action}.", "All output is committed, and the job is FINISHED.")
        return _json(Will(sentences=sentences, allowed=True))

    async def _command(self, request: Request) -> Response:
        command, body = request.path_params["command"], msgspec.json.decode(await request.body())
        if request.headers.get("x-tidegate-csrf") != _CSRF:
            return _json(Problem(Code.UNAUTHORIZED, "The CSRF token is missing."), 403)
        self.posted.append((command, body))
        if self.refuse is not None:
            return _json(self.refuse, 409)
        return self._begun(command)

    def _begun(self, kind: str) -> Response:
        begun = Operation(id=f"op{len(self.posted)}", kind=kind, status=OperationStatus.RUNNING, started_ms=_now())
        self._operations[begun.id] = begun
        return _json(begun, 202)

    async def _operation(self, request: Request) -> Response:
        known = self._operations[request.path_params["id"]]
        await asyncio.sleep(0.05)
        if self.fail is not None:
            ended = msgspec.structs.replace(known, status=OperationStatus.FAILED, ended_ms=_now(), problem=self.fail)
        else:
            result = {"checkpoints": "1200", "run": "payments"}.get(known.kind, "s3://savepoints/savepoint-5f21-77aa")
            ended = msgspec.structs.replace(known, status=OperationStatus.SUCCEEDED, ended_ms=_now(), result=result)
        self._operations[known.id] = ended
        return _json(ended)

    async def _listed(self, request: Request) -> Response:
        return _json(list(self._operations.values()))

    async def _plain(self, request: Request) -> Response:
        if request.headers.get("x-tidegate-csrf") != _CSRF:
            return _json(Problem(Code.UNAUTHORIZED, "The CSRF token is missing."), 403)
        raw = await request.body()
        self.posted.append((request.path_params["rest"], raw.decode()))
        return self._begun("run") if request.url.path.endswith("/run") else _json({})

    # -- state, logs, metrics ------------------------------------------------------------------------------------------

    async def _snapshots(self, request: Request) -> Response:
        name = request.path_params["job"]
        return _json(
            [
                Snapshot(
                    path=f"s3://checkpoints/{name}/chk-{n}",
                    kind="checkpoint",
                    checkpoint_id=n,
                    at_ms=_now() - (1_200 - n) * 10_000,
                    size=790_000_000 + n,
                    kept=True,
                )
                for n in (1_198, 1_197, 1_196)
            ]
        )

    async def _operators(self, request: Request) -> Response:
        def state(name: str, kind: str, size: int, entries: int | None) -> StateFigures:
            return StateFigures(name=name, kind=kind, type="int", scope="keyed", bytes=size, entries=entries)

        return _json(
            [
                OperatorFigures(
                    operator="h4",
                    uid="totals",
                    name="totals",
                    parallelism=8,
                    bytes=812_000_000,
                    states=(
                        state("window-contents", "reducing", 700_000_000, 1_204_331),
                        state("timers", "timers", 112_000_000, None),
                    ),
                ),
                OperatorFigures(
                    operator="h5",
                    uid="per-customer",
                    name=self.odd if "hacked" in str(request.url) else "per customer",
                    parallelism=8,
                    bytes=96_000_000,
                    states=(state("seen", "map", 96_000_000, 90_113),),
                ),
            ]
        )

    async def _entries(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        rows = [
            Entry(
                key=f"'customer-{4700 + i}'",
                namespace="[2026-05-17 10:00, 11:00)",
                value=f"Total(orders={i * 17}, sum={i * 12.5})",
            )
            for i in range(60)
        ]
        rows.append(Entry(key=self.odd, namespace=self.odd, value=self.odd))
        return _json(Entries(entries=tuple(row for row in rows if key in row.key), next=None))

    async def _difference(self, request: Request) -> Response:
        entries = (
            Changed(key="'customer-4711'", before="Total(orders=11)", after="Total(orders=17)"),
            Changed(key="'customer-9'", before=None, after="Total(orders=1)"),
            Changed(key=self.odd, before=self.odd, after=None),
        )
        return _json(Difference(added=1, removed=1, changed=1, entries=entries))

    async def _log(self, request: Request) -> Response:
        text = (
            "".join(
                f"2026-11-18 10:{i // 60:02}:{i % 60:02} {'WARN' if i % 40 == 7 else 'ERROR' if i == 90 else 'INFO'} "
                f"tidegate.runtime round {9000 + i} accepted, 48,210 records\n"
                for i in range(120)
            )
            + self.odd
            + "\n"
        )
        return _json(LogPart(begin=0, end=len(text), text=text))

    async def _lines(self, request: Request) -> Response:
        begin = int(request.query_params["from"])
        text = f"2026-11-18 10:02:00 INFO tidegate.runtime read from {begin}\n"
        return _events("lines", lambda: LogPart(begin=begin, end=begin + len(text), text=text), ends=self.cuts_log)

    async def _metrics(self, request: Request) -> Response:
        wave = _now() // 100 % 100

        def metric(name: str, operator: str | None, kind: str, value: float, **labels: str) -> Sample:
            return Sample(name=name, operator=operator, kind=kind, value=value, labels=labels)

        return _json(
            [
                metric("orders.parsed", "parse", "counter", _now() // 20 % 100_000_000, operator_id="1"),
                metric("orders.rejected", "parse", "counter", 312, operator_id="1"),
                metric("cache.size", "totals", "gauge", 900 + wave, operator_id="3"),
                metric("tidegate_subtask_busy_ratio", "totals", "gauge", 0.25, operator_id="3", subtask="0"),
                metric("tidegate_subtask_busy_ratio", "totals", "gauge", 0.75, operator_id="3", subtask="1"),
                metric(self.odd, "hostile", "distribution", 4.5, operator_id="5"),
            ]
        )

    async def _programs(self, request: Request) -> Response:
        uploaded = _now() - 90_000
        return _json(
            [Program(id="ab12cd34", name="orders.py", size=8_123, uploaded_ms=uploaded, entries=("orders.py",))]
        )


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _events(name: str, look: Any, *, ends: bool = False) -> StreamingResponse:
    async def stream() -> AsyncIterator[bytes]:
        while True:
            yield b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(look()) + b"\n\n"
            if ends:
                return
            await asyncio.sleep(_SECOND_S)

    return StreamingResponse(stream(), media_type="text/event-stream")


def _now() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def served() -> Iterator[PageServer]:
    server = PageServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    with served() as shown:
        print(shown.address, flush=True)
        threading.Event().wait()
