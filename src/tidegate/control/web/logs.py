"""The log of a driver in parts, and live."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool

from tidegate.control.serving import Receive, Scope, Send
from tidegate.control.web.live import EventStream, Feeds, start_of_events

_PART = 64 << 10
_LOOK_S = 0.5
_ALIVE_LOOKS = 30


class LogPart(msgspec.Struct, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """Bytes ``from`` to ``to`` of the log as text."""

    begin: int
    end: int
    text: str


def read_log(path: Path, begin: int | None) -> LogPart:
    """Read at most 64 kB from a byte on; None: the last 64 kB. A character is never cut, except where the log itself is damaged."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        whole = begin is not None or size <= _PART
        start = min(begin, size) if begin is not None else max(0, size - _PART)
        file.seek(start)
        content = file.read(_PART)
    if not whole and (line := content.find(b"\n")) >= 0:
        start, content = start + line + 1, content[line + 1 :]
    content = content[: len(content) - _unfinished(content)]
    return LogPart(begin=start, end=start + len(content), text=content.decode(errors="replace"))


def _unfinished(content: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character."""
    for length in range(1, min(4, len(content) + 1)):
        byte = content[-length]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length if length < needed else 0
        if byte < 0x80:
            return 0
    return 0


class LogStream(EventStream):
    """One page that follows a log. It counts as an open page."""

    def __init__(self, feeds: Feeds, path: Path, begin: int | None) -> None:
        self._feeds, self._path, self._begin = feeds, path, begin
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._feeds.enter():
            return await self.refuse(scope, receive, send)
        try:
            await self.until_left(scope, receive, self._send(send))
        finally:
            self._feeds.leave()
        return None

    async def _send(self, send: Send) -> None:
        await start_of_events(send)
        begin, silent, first = self._begin, 0, True
        while True:
            part = await run_in_threadpool(read_log, self._path, begin)
            if part.text or first:
                event = b"event: lines\ndata: " + msgspec.json.encode(part) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
                begin, silent, first = part.end, 0, False
                if part.text:
                    continue
            silent += 1
            if silent % _ALIVE_LOOKS == 0:
                await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
            await asyncio.sleep(_LOOK_S)
