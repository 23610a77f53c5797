"""Until when a subtask takes input, and how much of it at once. Only where checkpoints may be unaligned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

GRACE_MS = 50
"""A subtask works at least so long. Stages come one after the other, so those behind a slow operator may begin past the deadline:
mostly this is enough for all they get. And whatever clocks say, every round gets on."""

_FIRST, _MOST = 8, 1 << 20
_SHORT_MS, _LONG_MS = 50, 200


class Pace:
    """Between pieces of a chunk the subtask looks at the clock. Pieces grow while they are quick, so that a slow function is
    stopped in time, and a quick one is hardly ever interrupted."""

    def __init__(self, deadline_ms: int, now_ms: Callable[[], int]) -> None:
        self._deadline_ms, self._now_ms = deadline_ms, now_ms
        self._began_ms: int | None = None
        self._size, self._is_over = _FIRST, False

    def is_over(self) -> bool:
        """Not before the first piece is through; and once it is, it is, whatever the clock says."""
        if not self._is_over and self._began_ms is not None:
            self._is_over = self._now_ms() >= max(self._deadline_ms, self._began_ms + GRACE_MS)
        return self._is_over

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The records from ``start`` to ``end``, bit by bit, for as long as there is time."""
        while start < end and not self.is_over():
            began = self._now_ms()
            upto = min(end, start + self._size)
            yield start, upto
            start = upto
            if self._began_ms is None:
                self._began_ms = began
            self._adapt(self._now_ms() - began)

    def _adapt(self, took_ms: int) -> None:
        if took_ms < _SHORT_MS:
            self._size = min(_MOST, self._size * 2)
        elif took_ms > _LONG_MS:
            self._size = max(1, self._size // 2)
