"""How a driver serves HTTP: uvicorn with limits on connections, and a guard before every path.

Other users of the host can reach a port of the loopback address, and so can every web page that is open in the user's browser: by a
name whose owner lets it point at 127.0.0.1 (the ``Host`` of such a request is that name), or from another origin.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.control.messages import Code, Problem, body_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

METRICS = "/metrics"
_HEAD_S, _BODY_S = 5.0, 10.0
_MOST_PENDING, _MOST_AT_ONCE, _BACKLOG = 64, 256, 128
"""TCP connections without a complete request: after a moment, and at any time. Any user of the host can open them, and each takes
a file descriptor of the driver."""
_MOMENT_S = 0.1
_READ_S = 20.0
"""A client that reads none of its answer for this long is gone, or holds memory of the driver on purpose."""
_CLOSE_S = 1
_MOST_UNREAD = 1 << 20
LIMITS = {h11.IDLE: _HEAD_S, h11.SEND_BODY: _BODY_S}
_JSON, _CLOSE = (b"content-type", b"application/json"), (b"connection", b"close")
_OVER_UNIX = re.compile(b"localhost")


def server_of(app: App, tls: tuple[str, str] | None = None) -> uvicorn.Server:
    """Make a server that logs nothing and has the limits of ``Connection``. ``tls``: files with the certificate and its key."""
    return uvicorn.Server(
        uvicorn.Config(
            _reads_whole_requests(app),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_CLOSE_S,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
    )


def _reads_whole_requests(app: App) -> App:
    """Let the rest of a request's body be read after an answer that did not wait for it, such as a refusal, and only then close.

    TCP resets a connection that is closed while bytes of the client are unread, and the client may then never see the answer.
    """

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        more = any(_all(scope.get("headers", []), name) for name in (b"content-length", b"transfer-encoding"))

        async def watched() -> MutableMapping[str, Any]:
            nonlocal more
            message = await receive()
            more = bool(message.get("more_body"))
            return message

        async def answer(message: MutableMapping[str, Any]) -> None:
            if not more or message["type"] != "http.response.body" or message.get("more_body"):
                return await send(message)
            await send({**message, "more_body": True})
            unread = 0
            while more and unread < _MOST_UNREAD:
                unread += len((await watched()).get("body", b""))
            return await send({"type": "http.response.body"})

        await app(scope, watched, answer)

    return whole


class Connection(H11Protocol):
    """Limit the time for the head and for the body of each request.

    A connection that sends nothing is closed soon and never keeps another connection out. Where too many TCP connections have not
    sent a complete request, the oldest of them are closed. A complete request is always answered.
    """

    _opened = 0.0
    _awaited_part: object = None
    _limit: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._watch()
        self._make_room(_MOST_AT_ONCE)
        # After a moment, a request that was sent has been read.
        self.loop.call_later(_MOMENT_S, self._make_room, _MOST_PENDING)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(_READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_read()

    def _has_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._has_read()
        super().connection_lost(exc)

    def _make_room(self, most: int) -> None:
        pending = [each for each in self.connections if isinstance(each, Connection) and each._is_pending()]
        if len(pending) > most:
            for oldest in sorted(pending, key=lambda each: each._opened)[:-most]:
                oldest.transport.abort()

    def _is_pending(self) -> bool:
        over_tcp = self.transport.get_extra_info("socket").family != socket.AF_UNIX
        return over_tcp and self.conn.their_state in LIMITS and not self.transport.is_closing()

    def _watch(self) -> None:
        """Count the limit from the start of a head or body, however slowly the rest arrives."""
        if self.conn.their_state is not self._awaited_part:
            self._stop_watching()
            self._awaited_part = self.conn.their_state
            seconds = LIMITS.get(self._awaited_part)
            if seconds is not None:
                self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class Guard:
    """Refuse a request before any path sees it, also a path that does not exist.

    ``host`` matches the ``Host`` of a request over TCP. ``origin`` matches the ``Origin`` of a web page that may ask; None: no
    page's origin is looked at. ``token`` is required in each request; None: no token is required. ``scrapers`` returns the tokens
    that open ``METRICS`` as well, and nothing else.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str,
        origin: str | None = None,
        token: str | None,
        scrapers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._scrapers = scrapers
        self._app = app
        self._host = re.compile(host.encode(), re.IGNORECASE)
        self._origin = None if origin is None else re.compile(origin.encode(), re.IGNORECASE)
        self._expected = None if token is None else f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # web sockets are not served
            return None
        over_unix = scope["server"] is not None and scope["server"][1] is None
        refusal = self._refusal(scope["headers"], _OVER_UNIX if over_unix else self._host, scope["path"] == METRICS)
        if refusal is None:
            return await self._app(scope, receive, send)
        status, message = refusal
        headers = [_JSON, _CLOSE, (b"www-authenticate", b"Bearer")] if status == 401 else [_JSON, _CLOSE]
        body = msgspec.json.encode(body_of(scope["path"], Problem(Code.UNAUTHORIZED, message)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(
        self, headers: list[tuple[bytes, bytes]], host: re.Pattern[bytes], is_scrape: bool
    ) -> tuple[int, str] | None:
        named = _all(headers, b"host")
        if len(named) != 1 or host.fullmatch(named[0].strip()) is None:
            return 403, "The Host of a request must be the address the driver listens at."
        if self._origin is not None and not all(map(self._origin.fullmatch, _all(headers, b"origin"))):
            return 403, "Requests from web pages of another origin are refused."
        given = _all(headers, b"authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # Compared as a whole and in constant time: the duration says nothing about the token.
        credentials = scheme.lower() + b" " + token.strip()
        if self._expected is not None and not secrets.compare_digest(credentials, self._expected):
            more = [f"bearer {one}".encode() for one in self._scrapers()] if is_scrape else []
            if any(secrets.compare_digest(credentials, one) for one in more):
                return None
            return 401, "Every request needs the token: Authorization: Bearer <token>."
        return None


def _all(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]
