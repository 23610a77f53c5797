"""Slices: pieces of time that aligned windows have in common, so that a record is aggregated once however many windows it is in.

Windows of ``size`` start every ``slide``. Between two of these starts time is cut once more, where windows end: so every window
is a number of whole slices. Tumbling windows are slices themselves. Of windows with many slices some neighbours are a group: the
windows that have it whole have in common what it comes to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import isqrt
from typing import NamedTuple

_FEW = 16
"""Starts in a window, up to which groups are not worth it."""


class Slice(NamedTuple):
    start: int
    end: int


class Slices:
    """The arithmetic; all times in milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self._slide, self._offset = size, slide, offset
        self._cut = size % slide
        """Where windows end between two starts; 0: at a start."""
        starts = size // slide
        self._in_group = isqrt(starts) if starts > _FEW else 1
        """Starts in a group. They are counted from the epoch: which slices are one does not depend on what was seen."""

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

    def group_of(self, start: int) -> int:
        """The number of the group that the slice from ``start`` on belongs to."""
        return (start - self._offset) // (self._slide * self._in_group)

    def groups_of(self, start: int) -> Iterator[tuple[int | None, list[int]]]:
        """The slices of a window in order: groups that lie in it whole, with their numbers, and in between slices of others."""
        length = self._slide * self._in_group
        for group, slices in groupby(self.of_window(start), self.group_of):
            first = group * length + self._offset
            whole = self._in_group > 1 and start <= first and first + length <= start + self.size
            yield group if whole else None, list(slices)

    def last_of(self, start: int) -> list[int]:
        """The starts of the slices whose last window is the one from ``start`` on."""
        cut, end = start + self._cut, min(start + self._slide, start + self.size)
        return [start, cut] if start < cut < end else [start]
