"""What a driver in a container prints, kept in the job's directory, so that ``tidegate logs`` shows it from anywhere.

The output goes to the container's own log too. Parts are files of at most ``_PART`` bytes; the newest one is replaced while it
grows, at most every ``_EVERY_S``. The oldest parts are deleted: about 16 MB stay.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator

from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.control.place import DIRECTORY

log = logging.getLogger(__name__)

_PART, _MOST_PARTS = 256 << 10, 64
_FIRST_S, _EVERY_S = 1.0, 5.0
_LAST_S = 10.0
_END = "end"
"""Sorted after the numbers of parts: an empty file says that the driver of this attempt has printed its last."""


def _directory(launch: str) -> str:
    return f"{DIRECTORY}/log-{launch}"


class Printing:
    """Copies standard output and error of this process and its children from now on, until ``close``. ``attempt`` is the attempt of
    the cluster: output of later attempts follows that of earlier ones."""

    def __init__(self, files: Files, launch: str, attempt: int) -> None:
        self._files, self._prefix = files, f"{_directory(launch)}/{attempt:04d}-"
        self._lock = threading.Lock()
        self._full: list[bytes] = []
        self._part = bytearray()
        self._number = 0
        self._over = threading.Event()
        self._kept = {number: os.dup(number) for number in (1, 2)}
        reading, writing = os.pipe()
        _flush()
        for number in self._kept:
            os.dup2(writing, number)
        os.close(writing)
        _show_each_line()
        self._copying = threading.Thread(target=self._copy, args=(reading,), name="tidegate-printed", daemon=True)
        self._storing = threading.Thread(target=self._store_often, name="tidegate-printed-parts", daemon=True)
        self._copying.start()
        self._storing.start()

    def close(self) -> None:
        """Store the rest. Output goes to the container's log alone from now on."""
        _flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
        self._copying.join(1.0)  # a child process may still hold the pipe
        self._over.set()
        self._storing.join(_LAST_S)
        with contextlib.suppress(StorageError):
            self._files.replace(f"{self._prefix}{_END}", b"")

    def _copy(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as source:
            while data := source.read(1 << 16):
                with contextlib.suppress(OSError):
                    os.write(self._kept[2], data)
                with self._lock:
                    self._part += data
                    while len(self._part) >= _PART:
                        self._full.append(bytes(self._part[:_PART]))
                        del self._part[:_PART]
                    del self._full[:-_MOST_PARTS]

    def _store_often(self) -> None:
        pause, stored = _FIRST_S, b""
        while True:
            over = self._over.wait(pause)
            try:
                stored = self._store(stored)
            except StorageError as error:
                log.debug("output is not stored: %s", error)
            if over:
                return
            pause = _EVERY_S

    def _store(self, stored: bytes) -> bytes:
        """Write the parts that have changed. Return the content of the newest one."""
        with self._lock:
            full, self._full = self._full, []
            newest = bytes(self._part)
        for part in full:
            self._files.replace(self._name(self._number), part)
            self._number += 1
            if self._number >= _MOST_PARTS:
                self._files.delete(self._name(self._number - _MOST_PARTS))
        if newest and newest != stored:
            self._files.replace(self._name(self._number), newest)
        return newest

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:08d}"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _show_each_line() -> None:
    """Python keeps back what it prints to a pipe: ``logs -f`` would show nothing for long, and lines of children first."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


class Printed:
    """Reads what the drivers of a launch have printed, in order, and what they print meanwhile."""

    def __init__(self, files: Files, launch: str) -> None:
        self._files, self._directory = files, _directory(launch)
        self._at, self._read = "", 0
        self.is_complete = False
        """The latest attempt had printed its last when ``rest`` was called."""

    def rest(self) -> Iterator[bytes]:
        """Yield what was printed since the last call."""
        names = [name for name in self._files.list_names(self._directory) if not name.startswith(".")]
        self.is_complete = bool(names) and names[-1].endswith(_END)
        for name in names:
            if name < self._at or name.endswith(_END):
                continue
            content = self._files.read_if_exists(f"{self._directory}/{name}") or b""
            new = content[self._read :] if name == self._at else content
            self._at, self._read = name, len(content)
            if new:
                yield new
