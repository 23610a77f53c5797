"""A terminal whose last line changes, while other output appears above that line."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from tidegate.base.plain_text import plain_line

_ERASE, _DIM, _PLAIN = "\r\x1b[2K", "\x1b[2m", "\x1b[0m"
_TRIES, _TRY_S = 10, 0.005
_NARROWEST = 20


class Terminal:
    """Usable from any thread. ``live``: the terminal can erase a line."""

    def __init__(self, out: TextIO, others: list[TextIO], *, live: bool, colours: bool) -> None:
        """``others`` are streams to the same terminal, including ``out`` if programs write to it too."""
        self._out, self._live, self._colours = out, live, colours
        self._write = out.write
        self._lock = threading.RLock()
        self._shown = False
        self._at_margin = True
        self._guarded: list[TextIO] = []
        self._guard(others)

    @staticmethod
    def of(environment: Mapping[str, str]) -> Terminal | None:
        """Return standard error if it is a terminal, else None."""
        if not is_terminal(sys.stderr):
            return None
        live = environment.get("TERM", "dumb") != "dumb" and not environment.get("CI")
        streams = [stream for stream in (sys.stdout, sys.stderr) if is_terminal(stream)]
        return Terminal(sys.stderr, streams, live=live, colours=live and not environment.get("NO_COLOR"))

    def say(self, text: str) -> None:
        """Print a line that stays. Wait a moment while another line is incomplete: ``print`` writes its line feed separately."""
        for _ in range(_TRIES):
            if self._at_margin:
                break
            time.sleep(_TRY_S)
        with self._lock:
            self.erase()
            if not self._at_margin:
                self._write("\n")
            self._write(f"{plain_line(text)}\n")
            self._out.flush()
            self._at_margin = True

    def show(self, text: str) -> None:
        """Replace the changing line. Do nothing while another line is incomplete."""
        with self._lock:
            if not (self._live and self._at_margin):
                return
            room, text = self._width() - 1, plain_line(text)
            line = text if len(text) <= room else f"{text[: room - 3]}..."
            self._write(_ERASE + (f"{_DIM}{line}{_PLAIN}" if self._colours else line))
            self._out.flush()
            self._shown = True

    def erase(self) -> None:
        with self._lock:
            if self._shown:
                self._shown = False
                self._write(_ERASE)
                self._out.flush()

    def close(self) -> None:
        """Restore the terminal and its streams."""
        self.erase()
        for stream in self._guarded:
            with contextlib.suppress(AttributeError):
                del stream.write
        self._guarded.clear()

    def _width(self) -> int:
        try:
            return max(_NARROWEST, os.get_terminal_size(self._out.fileno()).columns)
        except (OSError, ValueError):
            return 80

    def _guard(self, streams: list[TextIO]) -> None:
        """Replace the ``write`` method of the streams, not the streams: a log handler may hold a stream already."""
        for stream in streams:
            try:
                stream.write = self._guarding(stream.write)  # type: ignore[method-assign]
            except AttributeError:  # a stream with fixed attributes
                self._live = False
                return
            self._guarded.append(stream)

    def _guarding(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def guarded(text: str) -> int:
            with self._lock:
                self.erase()
                if text:
                    self._at_margin = text.endswith("\n")
                return write(text)

        return guarded


def is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # closed
        return False
