"""The windows of a key that may be merged: which of them there are, and in whose namespace each has its contents.

When windows become one, the contents of all but one move; that one's namespace stays the place of the contents, so a session that
grows with every record moves nothing. The map from window to that namespace is state of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate.operators.windows.assigner import MergingWindowAssigner
from tidegate.operators.windows.window import Window
from tidegate.state.descriptors import ValueStateDescriptor

MERGING_SET = ValueStateDescriptor("merging-window-set", None)

OnMerge = Callable[[Window, list[Window], bytes, list[bytes]], None]
"""(the new window, those that became it, where its contents are, where else contents lie that belong to it)"""


Stored = list[tuple[bytes, bytes]]
"""Pairs of a window's bytes and the namespace of its contents."""


class MergingWindows:
    """The set of the current key. Made for one call, on the value of its state."""

    def __init__(
        self, assigner: MergingWindowAssigner[object, Window], stored: Stored | None, read: Callable[[bytes], Window]
    ) -> None:
        """``stored``: what ``to_store`` gave; None: there are none. ``read``: bytes -> window."""
        self._assigner = assigner
        self._places: dict[Window, bytes] = {read(window): place for window, place in stored or ()}
        self.changed = False

    def to_store(self, write: Callable[[Window], bytes]) -> Stored | None:
        """Pairs of a window and the namespace of its contents; None if there are none."""
        return [(write(window), place) for window, place in self._places.items()] or None

    def place_of(self, window: Window) -> bytes | None:
        """Where the contents of a window are; None: it is not in the set."""
        return self._places.get(window)

    def retire(self, window: Window) -> None:
        self.changed |= self._places.pop(window, None) is not None

    def add(self, window: Window, write: Callable[[Window], bytes], on_merge: OnMerge) -> Window:
        """Add a record's window. Returns the window that the record is in now."""
        if window in self._places:
            return window
        results: list[tuple[Window, list[Window]]] = []
        self._assigner.merge_windows([*self._places, window], _Callback(results))
        actual, merged_new = window, False
        for result, merged in results:
            if window in merged:
                merged.remove(window)
                actual, merged_new = result, True
            if merged:
                self._merge(result, merged, on_merge)
        if not merged_new or actual not in self._places:
            self._places.setdefault(actual, write(actual))
            self.changed = True
        return actual

    def _merge(self, result: Window, merged: list[Window], on_merge: OnMerge) -> None:
        places = [self._places.pop(window) for window in merged]
        self._places[result] = places[0]
        if merged != [result]:  # else a record has come to a window that it does not change
            self.changed = True
            on_merge(result, merged, places[0], places[1:])


class _Callback(MergingWindowAssigner.MergeCallback[Window]):
    def __init__(self, results: list[tuple[Window, list[Window]]]) -> None:
        self._results = results

    def merge(self, to_be_merged: Iterable[Window], merge_result: Window) -> None:
        self._results.append((merge_result, list(dict.fromkeys(to_be_merged))))
