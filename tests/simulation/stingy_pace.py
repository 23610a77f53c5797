"""Subtasks that stop after a few records, whatever the clock says: rounds are cut short everywhere. A test tool."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegate.operators.flow import feeds


class StingyPace:
    """In place of ``Pace``: a few pieces of a few records, by the seed."""

    dice = random.Random(0)
    most = 3

    def __init__(self, deadline_ms: int, now_ms: Callable[[], int]) -> None:
        self._pieces = self.dice.randint(1, self.most)

    def is_over(self) -> bool:
        return self._pieces <= 0

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end and not self.is_over():
            upto = min(end, start + self.dice.randint(1, 2))
            self._pieces -= 1
            yield start, upto
            start = upto


@contextmanager
def stingy(seed: int, most: int = 3) -> Iterator[None]:
    """``most``: pieces of a subtask in a round. Only rounds with a deadline are cut: checkpoints must be unaligned."""
    before = vars(feeds)["Pace"]
    vars(feeds)["Pace"] = type("SeededPace", (StingyPace,), {"dice": random.Random(seed), "most": most})
    try:
        yield
    finally:
        vars(feeds)["Pace"] = before
