"""Slices: pieces of time that aligned windows have in common, so that a record is aggregated once however many windows it is in.

Windows of ``size`` start every ``slide``. Between two of these starts time is cut once more, where windows end: so every window
is a number of whole slices. Tumbling windows are slices themselves.
"""

from __future__ import annotations

from typing import NamedTuple


class Slice(NamedTuple):
    start: int
    end: int


class Slices:
    """The arithmetic; all times in milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self._slide, self._offset = size, slide, offset
        self._cut = size % slide
        """Where windows end between two starts; 0: at a start."""

    @property
    def are_windows(self) -> bool:
        """Each slice is a window of its own."""
        return self.size == self._slide

    def around(self, time: int) -> Slice:
        """The slice that a time lies in."""
        start = time - (time - self._offset) % self._slide
        cut = start + self._cut
        if time < cut:
            return Slice(start, cut)
        return Slice(cut, start + self._slide)

    def windows_of(self, start: int) -> range:
        """The starts of the windows that the slice from ``start`` on belongs to, the latest first. None: it lies in a gap."""
        last = start - (start - self._offset) % self._slide
        return range(last, start - self.size, -self._slide)

    def of_window(self, start: int) -> list[int]:
        """The starts of the slices of a window, in order."""
        found: list[int] = []
        for first in range(start, start + self.size, self._slide):
            found.append(first)
            if self._cut and first + self._cut < start + self.size:
                found.append(first + self._cut)
        return found

    def last_of(self, start: int) -> list[int]:
        """The starts of the slices whose last window is the one from ``start`` on."""
        cut, end = start + self._cut, min(start + self._slide, start + self.size)
        return [start, cut] if start < cut < end else [start]
