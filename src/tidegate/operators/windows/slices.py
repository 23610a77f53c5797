"""Slices: pieces of time that aligned windows share, so that a record is aggregated once however many windows it is in.

Windows of ``size`` start every ``slide``. Between two starts, time is divided once more, where windows end: so every
window is a number of whole slices. Tumbling windows are slices themselves. In windows with many slices, neighbouring
slices form a group, two groups form a group of the next level, and so on. All windows that contain a group whole share
its result, so a window consists of a few groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_FEW = 16
"""The number of starts in a window up to which groups do not pay off."""


class Slice(NamedTuple):
    start: int
    end: int


class Group(NamedTuple):
    """The slices between ``2 ** level`` starts of windows, counted from the epoch: groups do not depend on the records
    seen."""

    level: int
    number: int


class Slices:
    """Compute slices and windows; all times are in milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self._slide, self._offset = size, slide, offset
        self._cut = size % slide
        """Where windows end between two starts; 0: at a start."""
        self._starts = size // slide
        self._levels = self._starts.bit_length() - 1 if self._starts > _FEW else 0

    @property
    def are_windows(self) -> bool:
        """Tell whether each slice is a window of its own."""
        return self.size == self._slide

    def around(self, time: int) -> Slice:
        """Return the slice that contains a time."""
        start = time - (time - self._offset) % self._slide
        cut = start + self._cut
        if time < cut:
            return Slice(start, cut)
        return Slice(cut, start + self._slide)

    def windows_of(self, start: int) -> range:
        """Return the starts of the windows that contain the slice at ``start``, the latest first. Empty: the slice lies
        in a gap."""
        last = start - (start - self._offset) % self._slide
        return range(last, start - self.size, -self._slide)

    def of_window(self, start: int) -> list[int]:
        """Return the starts of the slices of a window, in order."""
        return [slice_ for piece in self.pieces_of(start, levels=0) for slice_ in piece]

    def pieces_of(self, start: int, levels: int | None = None) -> Iterator[Group | list[int]]:
        """Yield a window in order, in as few pieces as possible: groups that lie in it whole, and the starts of slices
        in between."""
        number = (start - self._offset) // self._slide
        end = number + self._starts
        highest = self._levels if levels is None else levels
        while number < end:
            level = min(highest, (end - number).bit_length() - 1, _twos(number) if number else highest)
            yield Group(level, number >> level) if level else self._between_starts(number)
            number += 1 << level
        if self._cut:
            yield [end * self._slide + self._offset]

    def halves(self, group: Group) -> list[Group | list[int]]:
        """Return the parts of a group."""
        level, numbers = group.level - 1, (2 * group.number, 2 * group.number + 1)
        return [Group(level, number) if level else self._between_starts(number) for number in numbers]

    def groups_of(self, start: int) -> list[Group]:
        """Return the groups that contain the slice at ``start``."""
        number = (start - self._offset) // self._slide
        return [Group(level, number >> level) for level in range(1, self._levels + 1)]

    def _between_starts(self, number: int) -> list[int]:
        first = number * self._slide + self._offset
        return [first, first + self._cut] if self._cut else [first]

    def last_of(self, start: int) -> list[int]:
        """Return the starts of the slices whose last window is the window at ``start``."""
        cut, end = start + self._cut, min(start + self._slide, start + self.size)
        return [start, cut] if start < cut < end else [start]


def _twos(number: int) -> int:
    """Return how often the number can be halved."""
    return (number & -number).bit_length() - 1
