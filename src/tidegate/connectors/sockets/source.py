"""Lines of text from a socket.

The connection is the driver's, not a task's: tasks come and go with every round, and two attempts of one would each take a part of
the lines. What the driver has received is numbered, a round reads a range of numbers, and what a task gets of it is in the plan of
the round (in memory) or in files (write-ahead).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ProgramError
from tidegate.connectors.sockets.received_lines import LinesInMemory, LinesOnStorage, ReceivedLines, read_segment
from tidegate.connectors.sockets.receiver import Address, Receiver
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Source,
    SourceContext,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)

_SPLIT = "socket"
_PAUSE_S = 0.5
_MOST_LINES = 50_000
"""In a round: those of a source without a log travel with its plan."""


class SocketSource(Source):
    """One subtask; ends when the sender closes the connection and ``max_retry`` connections after it have been closed too (-1:
    never). Without ``write_ahead`` lines that were received and are in no checkpoint are lost with a failure of the job."""

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
                "A socket source needs a port between 1 and 65535, and -1 or more retries",
                where="socket_text_stream",
                found=f"port {port}, max_retry {max_retry}",
            )
        self.address = Address(hostname, port, delimiter, max_retry, _PAUSE_S)
        self.write_ahead = self.can_replay = bool(write_ahead)

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        """Outside of a job there is no storage for a log."""
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
    """``ended``: the sender has said all, in an attempt before this one."""

    def __init__(self, address: Address, lines: ReceivedLines, offset: int, ended: bool) -> None:
        self._lines, self._offset, self._ended = lines, offset, ended
        self._receiver = None if ended else Receiver(address, lines)

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        self._lines.release(self._offset)
        ended = self._ended or self._lines.ended  # before the end is asked for: lines come first
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

    def snapshot(self) -> Any:
        position = self._lines.position(self._offset)
        return {**position, "ended": position["ended"] or (self._ended and self._offset == self._lines.end)}

    def rewind(self, position: Any) -> bool:
        """The connection goes on: what a discarded round has read is still there."""
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
            yield read_segment(file)[start:end]
