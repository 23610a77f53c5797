"""Where the lines of a socket wait until they are read: in the driver's memory, or in files that outlive it."""

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

_VERSION = 1
_MOST_WAITING = 1 << 26
"""Bytes that may wait in memory; above it nothing more is taken from the socket, so its sender waits."""


class ReceivedLines(ABC):
    """Lines are numbered from the first one that was ever received. One thread appends, another reads."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Number of the line that comes next."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """No line follows the last one, ever."""

    @abstractmethod
    def append(self, lines: list[str]) -> None:
        """From here on they count as received. May wait until there is room."""

    @abstractmethod
    def finish(self) -> None:
        """The sender has ended."""

    @abstractmethod
    def take(self, start: int, end: int) -> dict[str, Any]:
        """What a reader in another process needs for the lines ``[start, end)``, as plain data."""

    @abstractmethod
    def release(self, start: int) -> None:
        """Lines before this one are not asked for again while the job runs."""

    def position(self, offset: int) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"offset": offset, "ended": self.ended and offset == self.end}

    def completed(self, offset: int) -> None:
        """A checkpoint at this line is complete."""

    def close(self) -> None:
        """Nobody waits for room any more."""


class LinesInMemory(ReceivedLines):
    """Lost with the driver, and with every restart of the job."""

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
            self._room.wait_for(lambda: self._bytes < _MOST_WAITING or self._closed)
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
class _Segment:
    """A file with the lines ``[first, end)``; ``file``: its full address."""

    file: str
    first: int
    end: int
    lease: int
    last: bool = False

    @staticmethod
    def name(lease: int, first: int, end: int, last: bool) -> str:
        return f"lines-{lease:08d}-{first:015d}-{end:015d}{'-last' if last else ''}"

    @staticmethod
    def of(directory: Files, name: str) -> _Segment | None:
        parts = name.split("-")
        if parts[0] != "lines" or len(parts) not in (4, 5):
            return None
        lease, first, end = map(int, parts[1:4])
        return _Segment(directory.location(name), first, end, lease, len(parts) == 5)


class LinesOnStorage(ReceivedLines):
    """A write-ahead log: a line is in a durable file before anybody reads it, so it can be read again.

    Files are never changed. An attempt goes on behind all that was there when it began; what an older one, not yet dead, still
    writes has the same numbers and a smaller lease, and does not count.
    """

    def __init__(self, directory: str, lease: int, retained: int, restored: dict[str, Any] | None) -> None:
        self._files, self._lease = Files(directory), lease
        self._lock = threading.Lock()
        self._completed: deque[int] = deque(maxlen=retained)
        places = dict.fromkeys([restored["log"], self._files.root] if restored else [self._files.root])
        found = [segment for place in places for segment in _found(Files(place))]
        start = restored["offset"] if restored else 0
        self._segments = deque(s for s in _counting(found) if s.end > start or s.last)
        self._ended = bool(restored and restored["ended"]) or any(s.last for s in self._segments)
        self._end = max((s.end for s in self._segments), default=start)
        self._check_whole(start)

    def _check_whole(self, start: int) -> None:
        expected = start
        for segment in self._segments:
            if segment.first > expected:
                raise RestoreError(
                    "A socket source continues with what it has logged",
                    where=self._files.root,
                    found=f"lines {expected} to {segment.first - 1} are gone",
                    cure="restore a later checkpoint, or give the source another uid to go on without them",
                )
            expected = segment.end

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
        """Written down too: who restores this must not look for a sender that has said all."""
        self._write([], last=True)
        self._ended = True

    def _write(self, lines: list[str], *, last: bool) -> None:
        first, end = self._end, self._end + len(lines)
        name = _Segment.name(self._lease, first, end, last)
        faults.point("socket.log", first=first, end=end)
        self._files.publish(name, msgspec.msgpack.encode({"version": _VERSION, "lines": lines}))
        faults.point("socket.logged", first=first, end=end)
        with self._lock:
            self._segments.append(_Segment(self._files.location(name), first, end, self._lease, last))
            self._end = end

    def take(self, start: int, end: int) -> dict[str, Any]:
        with self._lock:
            within = [s for s in self._segments if s.first < end and s.end > start]
        pieces = [[s.file, max(start, s.first) - s.first, min(end, s.end) - s.first] for s in within]
        return {"offset": start, "files": pieces}

    def release(self, start: int) -> None:
        """Not while the job runs, but when no checkpoint that is kept can ask for them."""

    def position(self, offset: int) -> dict[str, Any]:
        return {**super().position(offset), "log": self._files.root}

    def completed(self, offset: int) -> None:
        self._completed.append(offset)
        if len(self._completed) < (self._completed.maxlen or 1):
            return
        with self._lock:
            old = [s for s in self._segments if s.end <= self._completed[0] and not s.last]
            self._segments = deque(s for s in self._segments if s not in old)
        own = f"{self._files.location()}/"
        for segment in old:
            if segment.file.startswith(own):
                self._files.delete(segment.file.removeprefix(own))


def _found(directory: Files) -> list[_Segment]:
    return [segment for name in directory.list_names() if (segment := _Segment.of(directory, name)) is not None]


def _counting(found: list[_Segment]) -> list[_Segment]:
    """Of what several attempts wrote: each goes on where it began, whatever an older one wrote from there on."""
    counting: list[_Segment] = []
    for lease in sorted({segment.lease for segment in found}):
        own = sorted((s for s in found if s.lease == lease), key=lambda s: (s.first, s.end))
        counting = [s for s in counting if s.first < own[0].first or s.end <= own[0].first] + own
    return counting


def read_segment(file: str) -> list[str]:
    """The lines of one file of the log."""
    directory, _, name = file.rpartition("/")
    content = msgspec.msgpack.decode(Files(directory).read_bytes(name))
    if content["version"] != _VERSION:
        raise CorruptFileError(
            "A log of received lines is read by the version that wrote it, or a later one",
            where=file,
            found=f"version {content['version']}",
        )
    return content["lines"]  # type: ignore[no-any-return]
