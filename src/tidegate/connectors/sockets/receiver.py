"""The driver's end of a socket: takes lines from the connection, in a thread of its own, as fast as there is room for them."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from codecs import getincrementaldecoder
from dataclasses import dataclass

from tidegate.base.errors import ServiceError, TidegateError
from tidegate.connectors.sockets.received_lines import ReceivedLines

log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_PIECE, _TOGETHER = 1 << 16, 1 << 20
"""Bytes taken in one call, and at most before lines are handed over."""


@dataclass(frozen=True)
class Address:
    """``retries``: how often to connect again when the sender has closed the connection; -1: for ever."""

    host: str
    port: int
    delimiter: str
    retries: int
    pause_s: float

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> socket.socket:
        try:
            connection = socket.create_connection((self.host, self.port), timeout=_CONNECT_S)
        except OSError as error:
            raise ServiceError(
                "A socket source needs somebody who listens",
                where=str(self),
                found=f"{type(error).__name__}: {error}",
                cure="start the sender first, and check host and port",
            ) from error
        connection.settimeout(None)
        return connection


class Receiver:
    """Connects when it is made, so that a wrong address is told at once. ``error``: why it has ended too early."""

    def __init__(self, address: Address, lines: ReceivedLines) -> None:
        self._address, self._lines = address, lines
        self._closing = threading.Event()
        self._connection = address.connect()
        self.error: TidegateError | None = None
        self._thread = threading.Thread(target=self._run, name=f"tidegate-socket-{address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """What has arrived is still handed over."""
        self._closing.set()
        self._lines.close()
        self._shut()
        self._thread.join()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the sender was first
            self._connection.shutdown(socket.SHUT_RD)

    def _run(self) -> None:
        try:
            self._receive()
        except TidegateError as error:
            self.error = error
        except Exception as error:
            self.error = ServiceError(
                "A socket source lost its connection",
                where=str(self._address),
                found=f"{type(error).__name__}: {error}",
            )
        finally:
            self._connection.close()

    def _receive(self) -> None:
        """As Flink: text behind the last delimiter is a line when nothing follows for good, and is gone on when the next
        connection begins."""
        rest, connected = "", 0
        while True:
            rest = self._until_closed(rest)
            connected += 1
            again = self._address.retries < 0 or connected <= self._address.retries
            if self._closing.is_set() or not again or not self._reconnected():
                break
        if not self._closing.is_set():
            if rest:
                self._lines.append([rest])
            self._lines.finish()

    def _reconnected(self) -> bool:
        """Whether there is a connection again; the sender may need some time."""
        self._connection.close()
        tries = 0
        while not self._closing.wait(self._address.pause_s):
            try:
                self._connection = self._address.connect()
                return True
            except ServiceError as error:
                tries += 1
                log.warning("socket %s: not connected again yet: %s", self._address, error.found)
                if 0 <= self._address.retries <= tries:
                    raise
        return False

    def _until_closed(self, rest: str) -> str:
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        while True:
            data = self._take()
            rest += decoder.decode(data, final=not data)
            *lines, rest = rest.split(self._address.delimiter)
            if lines:
                cut = self._address.delimiter == "\n"
                self._lines.append([line.removesuffix("\r") for line in lines] if cut else lines)
            if not data:
                return rest

    def _take(self) -> bytes:
        """What is there, at least a byte; nothing: the connection has been closed."""
        pieces = [self._connection.recv(_PIECE)]
        size, more = len(pieces[0]), select.poll()  # select() itself ends at descriptor 1023
        more.register(self._connection, select.POLLIN)
        while pieces[-1] and size < _TOGETHER and more.poll(0):
            pieces.append(self._connection.recv(_PIECE))
            size += len(pieces[-1])
        if not pieces[-1] and size:
            pieces.pop()  # the end is met again by the next call
        return b"".join(pieces)
