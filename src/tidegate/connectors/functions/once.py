"""Remembers what a committer has handled, so that a repeated commit has no effect."""

from __future__ import annotations

from collections.abc import Iterable


class Once:
    """Keeps the ids of the latest commit, however many they are. Only that one is ever repeated: by a retry, or
    because the checkpoint it belongs to is restored in the same process. All of it comes again then.
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def begin(self, ids: Iterable[str]) -> None:
        """A commit of these ids begins: others will not come again and are forgotten."""
        self._ids.intersection_update(ids)

    def first(self, identity: str) -> bool:
        """True the first time an id is seen."""
        if identity in self._ids:
            return False
        self._ids.add(identity)
        return True
