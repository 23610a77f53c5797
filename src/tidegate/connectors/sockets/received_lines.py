"""Lines of a socket that wait to be read: in the driver's memory, or in files that outlive the driver."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, RestoreError
from tidegate.base.files import Files
from tidegate.connectors.staged_file import file_at

_VERSION = 1
MOST_WAITING = 1 << 26
"""Bytes that may wait in memory. Above this limit nothing more is taken from the socket, so the sender waits."""


class ReceivedLines(ABC):
    """Keep received lines. They are numbered from the first one ever received. One thread appends, another reads."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Number of the next line."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no line will ever follow."""

    @abstractmethod
    def append(self, lines: list[str]) -> None:
        """Take the lines; they count as received when this returns. May wait until there is room."""

    @abstractmethod
    def finish(self) -> None:
        """Note that the sender has finished."""

    @abstractmethod
    def take(self, start: int, end: int) -> dict[str, Any]:
        """Return, as plain data, what a reader in another process needs for the lines ``[start, end)``."""

    @abstractmethod
    def release(self, start: int) -> None:
        """Release the lines before this one. The running job does not ask for them again."""

    def position(self, offset: int) -> dict[str, Any]:
        """Return the position for a checkpoint."""
        return {"offset": offset, "ended": self.ended and offset == self.end}

    def completed(self, offset: int) -> None:
        """Note that a checkpoint at this line is complete."""

    def close(self) -> None:
        """Let ``append`` wait for room no longer."""


class LinesInMemory(ReceivedLines):
    """Keep lines in memory. They are lost with the driver and with every restart of the job."""

    def __init__(self, first: int) -> None:
        self._first, self._lines, self._bytes = first, deque[str](), 0
        self._ended = self._closed = False
        self._room = threading.Condition()

    @property
    def end(self) -> int:
        with self._room:
            return self._first + len(self._lines)

    @property
    def ended(self) -> bool:
        return self._ended

    def append(self, lines: list[str]) -> None:
        with self._room:
            self._room.wait_for(lambda: self._bytes < MOST_WAITING or self._closed)
            self._lines += lines
            self._bytes += sum(map(len, lines))

    def finish(self) -> None:
        self._ended = True

    def take(self, start: int, end: int) -> dict[str, Any]:
        with self._room:
            return {"offset": start, "lines": list(islice(self._lines, start - self._first, end - self._first))}

    def release(self, start: int) -> None:
        with self._room:
            while self._first < start:
                self._bytes -= len(self._lines.popleft())
                self._first += 1
            self._room.notify_all()

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()


@dataclass(frozen=True)
class _LogFile:
    """A file of the log with the lines ``[first, end)``. ``file`` is its full address."""

    file: str
    first: int
    end: int
    lease: int
    last: bool = False

    @staticmethod
    def name(lease: int, first: int, end: int, last: bool) -> str:
        return f"lines-{lease:08d}-{first:015d}-{end:015d}{'-last' if last else ''}"

    @staticmethod
    def of(directory: Files, name: str) -> _LogFile | None:
        parts = name.split("-")
        if parts[0] != "lines" or len(parts) not in (4, 5):
            return None
        lease, first, end = map(int, parts[1:4])
        return _LogFile(directory.location(name), first, end, lease, len(parts) == 5)


class LinesOnStorage(ReceivedLines):
    """Keep lines in a write-ahead log. A line is in a durable file before it is read, so it can be read again.

    Files are never changed. An attempt continues after all lines that were in the log at its start. An older attempt that is still
    alive may write lines with the same numbers. They have a smaller lease, and do not count.
    """

    def __init__(self, directory: str, lease: int, retained: int, restored: dict[str, Any] | None) -> None:
        self._files, self._lease = Files(directory), lease
        self._lock = threading.Lock()
        self._completed: deque[int] = deque(maxlen=retained)
        places = dict.fromkeys([restored["log"], self._files.root] if restored else [self._files.root])
        found = [logged for place in places for logged in _found(Files(place))]
        start = restored["offset"] if restored else 0
        self._log = deque(s for s in _counting(found) if s.end > start or s.last)
        self._ended = bool(restored and restored["ended"]) or any(s.last for s in self._log)
        self._end = max((s.end for s in self._log), default=start)
        self._check_whole(start)

    def _check_whole(self, start: int) -> None:
        expected = start
        for logged in self._log:
            if logged.first > expected:
                raise RestoreError(
                    "The log of a socket source is incomplete, so the source cannot continue",
                    where=self._files.root,
                    found=f"lines {expected} to {logged.first - 1} are missing",
                    cure="restore a later checkpoint, or give the source another uid to continue without these lines",
                )
            expected = logged.end

    @property
    def end(self) -> int:
        with self._lock:
            return self._end

    @property
    def ended(self) -> bool:
        return self._ended

    def append(self, lines: list[str]) -> None:
        self._write(lines, last=False)

    def finish(self) -> None:
        """Log the end too: a restored job must not connect to a sender that has finished."""
        self._write([], last=True)
        self._ended = True

    def _write(self, lines: list[str], *, last: bool) -> None:
        first, end = self._end, self._end + len(lines)
        name = _LogFile.name(self._lease, first, end, last)
        faults.point("socket.log", first=first, end=end)
        self._files.publish(name, msgspec.msgpack.encode({"version": _VERSION, "lines": lines}))
        faults.point("socket.logged", first=first, end=end)
        with self._lock:
            self._log.append(_LogFile(self._files.location(name), first, end, self._lease, last))
            self._end = end

    def take(self, start: int, end: int) -> dict[str, Any]:
        with self._lock:
            within = [s for s in self._log if s.first < end and s.end > start]
        pieces = [[s.file, max(start, s.first) - s.first, min(end, s.end) - s.first] for s in within]
        return {"offset": start, "files": pieces}

    def release(self, start: int) -> None:
        """Keep the files until no retained checkpoint needs them (``completed``)."""

    def position(self, offset: int) -> dict[str, Any]:
        return {**super().position(offset), "log": self._files.root}

    def completed(self, offset: int) -> None:
        self._completed.append(offset)
        if len(self._completed) < (self._completed.maxlen or 1):
            return
        with self._lock:
            old = [s for s in self._log if s.end <= self._completed[0] and not s.last]
            self._log = deque(s for s in self._log if s not in old)
        own = f"{self._files.location()}/"
        for logged in old:
            if logged.file.startswith(own):
                self._files.delete(logged.file.removeprefix(own))


def _found(directory: Files) -> list[_LogFile]:
    return [logged for name in directory.list_names() if (logged := _LogFile.of(directory, name)) is not None]


def _counting(found: list[_LogFile]) -> list[_LogFile]:
    """Select the files that count among those of several attempts: an attempt overrules older ones from its first line on."""
    counting: list[_LogFile] = []
    for lease in sorted({logged.lease for logged in found}):
        own = sorted((s for s in found if s.lease == lease), key=lambda s: (s.first, s.end))
        counting = [s for s in counting if s.first < own[0].first or s.end <= own[0].first] + own
    return counting


def read_log_file(file: str) -> list[str]:
    """Read the lines of one file of the log."""
    files, name = file_at(file)
    content = msgspec.msgpack.decode(files.read_bytes(name))
    if content["version"] != _VERSION:
        raise CorruptFileError(
            "A log of received lines has an unknown version",
            where=file,
            found=f"version {content['version']}, expected {_VERSION}",
            cure="run the version of Tidegate that wrote the log, or a later one",
        )
    return content["lines"]  # type: ignore[no-any-return]
