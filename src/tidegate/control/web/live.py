"""Live updates by server-sent events: one producer for all open pages of a job, and none while no page is open.

A page that reads slowly gets only the newest state. ``serving.Connection`` closes one that reads nothing at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from tidegate.control.messages import Code, Problem
from tidegate.control.serving import Receive, Scope, Send
from tidegate.control.web.login import SESSION, Session

PERIOD_S = 1.0
MOST_PAGES = 100
"""Open pages of one server. Each costs a connection, and some bytes a second."""
_ALIVE_S = 15.0
"""Proxies close a connection that is silent for a minute."""


class Shown(NamedTuple):
    """``same``: equal for two states that need no update between them. ``last``: nothing comes after this event."""

    event: str
    same: object
    data: bytes
    last: bool = False


Make = Callable[[], Awaitable[Shown]]


class PageFeed:
    """What the open pages of one key show. Belongs to the event loop."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self.readers = 0
        self.version = 0
        self.shown: Shown | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self.readers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._produce())

    def close(self) -> bool:
        """Return whether this was the last reader."""
        self.readers -= 1
        if self.readers == 0 and self._task is not None:
            self._task.cancel()
            self._task = None
        return self.readers == 0

    async def _produce(self) -> None:
        while True:
            try:
                shown = await self._make()
            except Exception as error:
                problem = Problem(Code.FAILED, f"{type(error).__name__}: {error}")
                shown = Shown("failed", problem, msgspec.json.encode(problem))
            if self.shown is None or (shown.event, shown.same) != (self.shown.event, self.shown.same):
                self.shown, self.version = shown, self.version + 1
                self._changed.set()
                self._changed = asyncio.Event()
            if shown.last:
                return
            await asyncio.sleep(PERIOD_S)

    async def newer(self, version: int) -> bool:
        """Wait for a newer version. Return False if there was none for a while."""
        if self.version == version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _ALIVE_S)
        return self.version != version


class Feeds:
    """The feeds of one server by key."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._most = most
        self._feeds: dict[str, PageFeed] = {}
        self.readers = 0

    def stream(self, key: str, make: Make) -> Response:
        """Return the answer that sends the feed of this key until the page is closed."""
        return FeedStream(self, key, make)

    def enter(self) -> bool:
        """Count one more open page. Return False if too many are open."""
        if self.readers >= self._most:
            return False
        self.readers += 1
        return True

    def leave(self) -> None:
        self.readers -= 1

    def open(self, key: str, make: Make) -> PageFeed:
        feed = self._feeds.setdefault(key, PageFeed(make))
        feed.open()
        return feed

    def close(self, key: str, feed: PageFeed) -> None:
        if feed.close() and self._feeds.get(key) is feed:
            del self._feeds[key]


class EventStream(Response):
    """One open page. It ends when the page is closed."""

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = Problem(Code.REFUSED, "Too many pages are open. Close some of them.")
        refusal = Response(msgspec.json.encode(problem), 503, media_type="application/json")
        await refusal(scope, receive, send)

    async def until_left(self, scope: Scope, receive: Receive, sending: Coroutine[Any, Any, None]) -> None:
        """Send until the end of what is sent, until the page is closed, or until its session has ended."""
        tasks = {asyncio.create_task(part) for part in (sending, _closed(receive), _logged_out(scope.get(SESSION)))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class FeedStream(EventStream):
    """One open page of a feed."""

    def __init__(self, feeds: Feeds, key: str, make: Make) -> None:
        self._feeds, self._key, self._make = feeds, key, make
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._feeds.enter():
            return await self.refuse(scope, receive, send)
        feed = self._feeds.open(self._key, self._make)
        try:
            await self.until_left(scope, receive, _send(feed, send))
        finally:
            self._feeds.close(self._key, feed)
            self._feeds.leave()
        return None


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _logged_out(session: Session | None) -> None:
    while session is None or not session.over:  # noqa: ASYNC110 (any thread may end a session)
        await asyncio.sleep(PERIOD_S)


async def start_of_events(send: Send) -> None:
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # nginx would hold the events back
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(feed: PageFeed, send: Send) -> None:
    await start_of_events(send)
    version = 0
    while True:
        if await feed.newer(version):
            version, shown = feed.version, feed.shown
            assert shown is not None
            text = b"event: " + shown.event.encode() + b"\nid: " + str(version).encode() + b"\ndata: " + shown.data
            await send({"type": "http.response.body", "body": text + b"\n\n", "more_body": not shown.last})
            if shown.last:
                return
        else:
            await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
