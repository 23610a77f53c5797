"""Slices: pieces of time that aligned windows have in common, so that a record is aggregated once however many windows it is in.

Windows of ``size`` start every ``slide``. Between two of these starts time is cut once more, where windows end: so every window
is a number of whole slices. Tumbling windows are slices themselves. Of windows with many slices neighbours are a group, two groups
are one of the next level, and so on: the windows that have it whole have in common what it comes to, and a window is a few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_FEW = 16
"""Starts in a window, up to which groups are not worth it."""


class Slice(NamedTuple):
    start: int
    end: int


class Group(NamedTuple):
    """The slices between ``2 ** level`` starts of windows, counted from the epoch: they do not depend on what was seen."""

    level: int
    number: int


class Slices:
    """The arithmetic; all times in milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self._slide, self._offset = size, slide, offset
        self._cut = size % slide
        """Where windows end between two starts; 0: at a start."""
        self._starts = size // slide
        self._levels = self._starts.bit_length() - 1 if self._starts > _FEW else 0

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
        return [slice_ for piece in self.pieces_of(start, levels=0) for slice_ in piece]

    def pieces_of(self, start: int, levels: int | None = None) -> Iterator[Group | list[int]]:
        """A window in order, in as few pieces as there are: groups that lie in it whole, and the starts of slices in between."""
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
        """What a group is made of."""
        level, numbers = group.level - 1, (2 * group.number, 2 * group.number + 1)
        return [Group(level, number) if level else self._between_starts(number) for number in numbers]

    def groups_of(self, start: int) -> list[Group]:
        """Those that the slice from ``start`` on belongs to."""
        number = (start - self._offset) // self._slide
        return [Group(level, number >> level) for level in range(1, self._levels + 1)]

    def _between_starts(self, number: int) -> list[int]:
        first = number * self._slide + self._offset
        return [first, first + self._cut] if self._cut else [first]

    def last_of(self, start: int) -> list[int]:
        """The starts of the slices whose last window is the one from ``start`` on."""
        cut, end = start + self._cut, min(start + self._slide, start + self.size)
        return [start, cut] if start < cut < end else [start]


def _twos(number: int) -> int:
    """How often it can be halved."""
    return (number & -number).bit_length() - 1
