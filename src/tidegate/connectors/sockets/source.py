"""Lines of text from a socket.

The driver holds the connection, not a task: tasks come and go with every round, and two attempts of a task would each take a part
of the lines. The driver numbers the received lines, and a round reads a range of numbers. A task gets the lines with the plan of
the round (in memory) or from files (write-ahead).
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ProgramError, ServiceError, TidegateError
from tidegate.connectors.sockets.received_lines import LinesInMemory, LinesOnStorage, ReceivedLines, read_log_file
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Lag,
    Source,
    SourceContext,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

log = logging.getLogger(__name__)

_SPLIT = "socket"
_PAUSE_S = 0.5
_MOST_LINES = 50_000
"""Lines of a round. The lines of a source without a log travel with the plan of the round."""
_CONNECT_S = 10.0
_PIECE, _TOGETHER = 1 << 16, 1 << 20
"""Bytes of one call, and bytes that are taken at most before lines are handed on."""


class SocketSource(Source):
    """Read lines from a socket in one subtask.

    The source finishes when the sender has closed the connection and ``max_retry`` connections after it (-1: never). Without
    ``write_ahead`` a failure of the job loses received lines that are in no checkpoint.
    """

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED
    can_stop = False
    maximum_limit = _MOST_LINES
    to_raise = "socket_text_stream(..., write_ahead=True)"
    gives_time = False

    def __init__(
        self, hostname: str, port: int, delimiter: str = "\n", max_retry: int = 0, *, write_ahead: bool = False
    ) -> None:
        expect_text("socket_text_stream", hostname, "for example 'localhost'")
        expect_text("socket_text_stream", delimiter, "for example '\\n'")
        expect_int("socket_text_stream", port, "a port the sender listens at")
        if not 0 < port < 1 << 16 or expect_int("socket_text_stream", max_retry, "-1: for ever") < -1:
            raise ProgramError(
                "The port of a socket source is not between 1 and 65535, or its max_retry is below -1",
                where="socket_text_stream",
                found=f"port {port}, max_retry {max_retry}",
                cure="correct the arguments; max_retry=-1 connects again forever",
            )
        self.address = Address(hostname, port, delimiter, max_retry, _PAUSE_S)
        self.write_ahead = self.can_replay = bool(write_ahead)

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        """Keep lines in memory: outside of a job there is no storage for a log."""
        return self._enumerator(LinesInMemory(restored["offset"] if restored else 0), restored)

    def create_enumerator_in(self, context: SourceContext, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if not self.write_ahead:
            return self.create_enumerator(parallelism, restored)
        logged = restored if restored is None or "log" in restored else None
        return self._enumerator(LinesOnStorage(context.directory, context.lease, context.retained, logged), restored)

    def _enumerator(self, lines: ReceivedLines, restored: Any | None) -> SplitEnumerator:
        ended = lines.ended or bool(restored and restored["ended"])
        return _SocketEnumerator(self.address, lines, restored["offset"] if restored else 0, ended)

    def create_reader(self, subtask: int) -> SplitReader:
        return _SocketReader()


class _SocketEnumerator(SplitEnumerator):
    """Plan received lines. ``ended``: the sender finished in an earlier attempt."""

    def __init__(self, address: Address, lines: ReceivedLines, offset: int, ended: bool) -> None:
        self._lines, self._offset, self._ended = lines, offset, ended
        self._receiver = None if ended else Receiver(address, lines)

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self._lines.release(self._offset)
        ended = self._ended or self._lines.ended  # asked before ``end``: no line follows once this is true
        end = self._lines.end
        if self._receiver is not None and self._receiver.error is not None and self._offset == end:
            raise self._receiver.error
        start, self._offset = self._offset, min(end, self._offset + max(1, limit))
        finished = ended and self._offset == end
        intervals = []
        if start < self._offset:
            taken = self._lines.take(start, self._offset)
            intervals.append(SplitInterval(_SPLIT, 0, taken, self._offset, self._offset - start, last=finished))
        return SourcePlan(intervals, backlog=self._offset < end, finished=finished)

    @property
    def lag(self) -> Lag:
        return Lag({0: max(0, self._lines.end - self._offset)})

    def snapshot(self) -> Any:
        position = self._lines.position(self._offset)
        return {**position, "ended": position["ended"] or (self._ended and self._offset == self._lines.end)}

    def rewind(self, position: Any) -> bool:
        """Return to the position. The lines of a discarded round are still available, and the connection stays open."""
        self._offset = position["offset"]
        return True

    def checkpoint_complete(self, position: Any) -> None:
        self._lines.completed(position["offset"])

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()


class _SocketReader(SplitReader):
    interleaves = True

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        taken: dict[str, Any] = interval.start
        for lines in self._pieces(taken):
            for start in range(0, len(lines), BATCH_SIZE):
                yield Batch(lines[start : start + BATCH_SIZE])

    def _pieces(self, taken: dict[str, Any]) -> Iterator[list[str]]:
        if "lines" in taken:
            yield taken["lines"]
        for file, start, end in taken.get("files", ()):
            yield read_log_file(file)[start:end]


@dataclass(frozen=True)
class Address:
    """Where to connect. ``retries``: how often to connect again after the sender has closed the connection; -1: forever."""

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
                "A socket source cannot connect to its sender",
                where=str(self),
                found=f"{type(error).__name__}: {error}",
                cure="start the sender before the job; check host and port",
            ) from error
        connection.settimeout(None)
        return connection


class Receiver:
    """Take lines from the connection in a thread, as fast as there is room for them.

    The constructor connects, so a wrong address is reported at once. ``error`` is the reason of an early end.
    """

    def __init__(self, address: Address, lines: ReceivedLines) -> None:
        self._address, self._lines = address, lines
        self._closing = threading.Event()
        self._connection = address.connect()
        self.error: TidegateError | None = None
        self._thread = threading.Thread(target=self._run, name=f"tidegate-socket-{address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop receiving. Lines that have arrived are still handed on."""
        self._closing.set()
        self._lines.close()
        self._shut()
        self._thread.join()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the sender may have closed the connection before
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
                cure="check the sender and the network; the restart strategy decides whether the job connects again",
            )
        finally:
            self._connection.close()

    def _receive(self) -> None:
        """Receive until the last connection is closed.

        As in Flink, the next connection continues text after the last delimiter. After the last connection the text is a line.
        """
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
        """Connect again, with pauses for the sender. Return False if the source is closed meanwhile."""
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
                may_end_in_cr = self._address.delimiter == "\n"
                self._lines.append([line.removesuffix("\r") for line in lines] if may_end_in_cr else lines)
            if not data:
                return rest

    def _take(self) -> bytes:
        """Return the bytes that have arrived, after waiting for the first. Empty: the connection is closed."""
        pieces = [self._connection.recv(_PIECE)]
        size, more = len(pieces[0]), select.poll()  # select() cannot take descriptors above 1023
        more.register(self._connection, select.POLLIN)
        while pieces[-1] and size < _TOGETHER and more.poll(0):
            pieces.append(self._connection.recv(_PIECE))
            size += len(pieces[-1])
        if not pieces[-1] and size:
            pieces.pop()  # the next call sees the end again
        return b"".join(pieces)
