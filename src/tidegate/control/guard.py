"""Who may talk to a driver: the holder of its token, and no web page that a browser of the user's has open.

Beside a unix socket the endpoint listens on loopback, which other users of the machine can reach, and so can every page in a
browser: by a name that its owner lets point at 127.0.0.1 (the ``Host`` of such a request is that name), or from another origin.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from tidegate.control.messages import Code, Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON, _CLOSE = (b"content-type", b"application/json"), (b"connection", b"close")


class Guard:
    """Stands before every path, also those that are not there."""

    def __init__(self, app: App, token: str, port: int) -> None:
        self._app, self._expected = app, f"bearer {token}".encode()
        names = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._local_hosts = {b"localhost"}
        self._hosts = {name.encode() for name in names}
        self._origins = {f"http://{name}".encode() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a web socket: nothing here speaks that
            return
        over_unix = scope["server"] is not None and scope["server"][1] is None
        refusal = self._refusal(scope["headers"], self._local_hosts if over_unix else self._hosts)
        if refusal is None:
            return await self._app(scope, receive, send)
        status, message = refusal
        headers = [_JSON, _CLOSE, (b"www-authenticate", b"Bearer")] if status == 401 else [_JSON, _CLOSE]
        body = msgspec.json.encode(Problem(Code.UNAUTHORIZED, message))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, headers: list[tuple[bytes, bytes]], hosts: set[bytes]) -> tuple[int, str] | None:
        if [value.lower() in hosts for value in _all(headers, b"host")] != [True]:
            return 403, "The Host of a request must be the address the driver listens at."
        if not all(value.lower() in self._origins for value in _all(headers, b"origin")):
            return 403, "Requests from web pages of another origin are refused."
        given = _all(headers, b"authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # Compared whole and in constant time: how long it takes tells nothing of the token.
        if not secrets.compare_digest(scheme.lower() + b" " + token.strip(), self._expected):
            return 401, "Every request needs the token of the driver: Authorization: Bearer <token>."
        return None


def _all(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]
