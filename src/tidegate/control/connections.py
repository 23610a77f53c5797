"""Connections to a driver's endpoint. One that sends nothing is closed soon, and can never keep another one out."""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S, BODY_S = 5.0, 10.0
MOST_WAITED_FOR, MOST_AT_ONCE, BACKLOG = 64, 256, 128
"""TCP connections that have sent no whole request yet, after a moment and at any time. Any user of the host can open these, and
each takes a file descriptor of the driver."""
_MOMENT_S = 0.1
LIMITS = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}


class Connection(H11Protocol):
    """Limits the time for the head and for the body of each request. Where too many TCP connections have not sent theirs, the
    oldest of these is closed: a request that has been sent whole is always answered."""

    _opened = 0.0
    _waits_for: object = None
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._watch()
        self._make_room(MOST_AT_ONCE)
        self.loop.call_later(
            _MOMENT_S, self._make_room, MOST_WAITED_FOR
        )  # by then a request that was sent has been read

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _make_room(self, most: int) -> None:
        waited_for = [each for each in self.connections if isinstance(each, Connection) and each._is_waited_for()]
        if len(waited_for) > most:
            for oldest in sorted(waited_for, key=lambda each: each._opened)[:-most]:
                oldest._drop()

    def _is_waited_for(self) -> bool:
        over_tcp = self.transport.get_extra_info("socket").family != socket.AF_UNIX
        return over_tcp and self.conn.their_state in LIMITS and not self.transport.is_closing()

    def _watch(self) -> None:
        """The limit counts from the beginning of a head or body, however slowly the rest of it comes."""
        if self.conn.their_state is not self._waits_for:
            self._stop_watching()
            self._waits_for = self.conn.their_state
            seconds = LIMITS.get(self._waits_for)
            if seconds is not None:
                self._limit = self.loop.call_later(seconds, self._drop)

    def _stop_watching(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _drop(self) -> None:
        self.transport.abort()
