"""Keep the windows of a key that may be merged, and the namespace that holds the contents of each window.

When windows become one, the contents of all but one window move. The namespace of that one stays the place of the
contents, so a session that grows with every record moves nothing. The map from window to namespace is state of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate.operators.windows.assigner import MergingWindowAssigner
from tidegate.operators.windows.window import Window
from tidegate.state.descriptors import ValueStateDescriptor

MERGING_SET = ValueStateDescriptor("merging-window-set", None)

OnMerge = Callable[[Window, list[Window], bytes, list[bytes]], None]
"""(the new window, the windows that became it, the namespace of its contents, other namespaces with contents that
belong to it)"""


Stored = list[tuple[bytes, bytes]]
"""Pairs of a window's bytes and the namespace of its contents."""


class MergingWindows:
    """Hold the windows of the current key. The object is made for one call, from the value of its state."""

    def __init__(
        self, assigner: MergingWindowAssigner[object, Window], stored: Stored | None, read: Callable[[bytes], Window]
    ) -> None:
        """Take the stored windows. ``stored``: a result of ``to_store``; None: there are no windows. ``read``: bytes ->
        window."""
        self._assigner = assigner
        self._places: dict[Window, bytes] = {read(window): place for window, place in stored or ()}
        self.changed = False

    def to_store(self, write: Callable[[Window], bytes]) -> Stored | None:
        """Return pairs of a window and the namespace of its contents; None if there are no windows."""
        return [(write(window), place) for window, place in self._places.items()] or None

    def place_of(self, window: Window) -> bytes | None:
        """Return the namespace of a window's contents; None: the window is not in the set."""
        return self._places.get(window)

    def retire(self, window: Window) -> None:
        self.changed |= self._places.pop(window, None) is not None

    def add(self, window: Window, write: Callable[[Window], bytes], on_merge: OnMerge) -> Window:
        """Add a record's window. Return the window that contains the record now."""
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
        if merged != [result]:  # otherwise the record's window lies in a window that it does not change
            self.changed = True
            on_merge(result, merged, places[0], places[1:])


class _Callback(MergingWindowAssigner.MergeCallback[Window]):
    def __init__(self, results: list[tuple[Window, list[Window]]]) -> None:
        self._results = results

    def merge(self, to_be_merged: Iterable[Window], merge_result: Window) -> None:
        self._results.append((merge_result, list(dict.fromkeys(to_be_merged))))
