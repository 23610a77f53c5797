"""Remembers the latest committables a committer has handled, so that a repeated commit has no effect."""

from __future__ import annotations

from collections import OrderedDict


class Once:
    """Keeps the latest ``capacity`` ids: only commits that are not yet confirmed are ever repeated, and those are
    recent.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[str, None] = OrderedDict()

    def first(self, identity: str) -> bool:
        """True the first time an id is seen."""
        if identity in self._ids:
            return False
        self._ids[identity] = None
        if len(self._ids) > self._capacity:
            self._ids.popitem(last=False)
        return True
