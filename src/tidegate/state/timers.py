"""Timers of a subtask: those of this round over those of the store, in the order of time, with one seek when none is due."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.base.arguments import wrong
from tidegate.state.context import slot_of, split
from tidegate.state.key_groups import group_of
from tidegate.state.keys import encode_form, form_of
from tidegate.state.layout import split_local_timer, time_bytes, timer_key, timer_to_local
from tidegate.state.single import Changes

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

_DOMAINS = ("event", "processing")
FIRST_SLICE, MAX_SLICE = 1, 1024
_LAST = (1 << 63) - 1


class StoredTimers(Protocol):
    """The timers of the accepted files, as a local store gives them (``store.py``)."""

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]: ...

    def has_timer(self, key: bytes) -> bool: ...


class TimersInMemory:
    """All timers of the accepted files, in local order: for subtasks with few timers, which need no store for them."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        self._sorted: list[bytes] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def apply(self, flat: list[Any]) -> None:
        """Apply a part of a file: timers in canonical order of bytes, each with an empty value, or None if it is deleted."""
        keys, values = list(map(timer_to_local, flat[::2])), flat[1::2]
        if None in values:
            gone = {key for key, value in zip(keys, values, strict=True) if value is None}
            self._sorted = [key for key in self._sorted if key not in gone]
            keys = [key for key in keys if key not in gone]
        if keys:
            self._sorted = sorted({*self._sorted, *keys})

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        start = bisect_right(self._sorted, after)
        found = self._sorted[start : start + limit]
        return found, found[-1] if found else after

    def has_timer(self, key: bytes) -> bool:
        at = bisect_left(self._sorted, key)
        return at < len(self._sorted) and self._sorted[at] == key


class TimerQueue:
    """The timers of one domain. A timer is a time and a slot (a key, with or without a namespace); a duplicate is one timer.

    ``_added``: time -> slots registered in this round and not fired or deleted since. ``_fired``, ``_deleted``: timers of the store
    that are gone. The store is read forward only, in slices: every timer before the read position has been seen. ``_snapshot``: of
    the store, or of the backend's memory (``TimersInMemory``).
    """

    __slots__ = (
        "_added",
        "_backend",
        "_buffer",
        "_deleted",
        "_domain",
        "_ended",
        "_fired",
        "_position",
        "_slice",
        "_snapshot",
        "_times",
    )

    def __init__(self, backend: KeyedBackend, domain: int) -> None:
        self._backend = backend
        self._domain = domain
        self._added: dict[int, dict[Any, None]] = {}
        self._times: list[int] = []
        self._deleted: set[tuple[int, Any]] = set()
        self._fired: set[tuple[int, Any]] = set()
        self.reset(None)

    def reset(self, snapshot: StoredTimers | None) -> None:
        """Begin a round, or with None end one."""
        self._added.clear()
        self._times.clear()
        self._deleted.clear()
        self._fired.clear()
        self._buffer: list[tuple[int, Any]] = []  # read and not fired yet, the next one last
        self._position: bytes | None = bytes([self._domain])
        self._slice = FIRST_SLICE
        self._snapshot = snapshot
        self._ended = False

    def register(self, timestamp: int) -> None:
        """Register a timer of the current key. Functions get this method as it is, with its parameter's name."""
        if self._ended:
            return
        time = timestamp if type(timestamp) is int else _exact(timestamp)
        slots = self._added.get(time)
        if slots is None:
            slots = self._added[time] = {}
            heappush(self._times, time)
        try:
            slots[self._backend.context.slot] = None
        except TypeError as error:
            raise self._backend.refuse_access(self._where) from error

    def delete(self, timestamp: int) -> None:
        """Delete a timer of the current key. It may be missing."""
        time = timestamp if type(timestamp) is int else _exact(timestamp)
        slot = self._backend.context.slot
        try:
            self._deleted.add((time, slot))
        except TypeError as error:
            raise self._backend.refuse_access(self._where) from error
        self._added.get(time, {}).pop(slot, None)

    def next_time(self) -> int | None:
        """Return the time of the earliest timer; None if there is none."""
        added, stored = self._next_added(), self._next_stored()
        if added is None or stored is None:
            return stored if added is None else added
        return min(added, stored)

    def due(self, up_to: int) -> Iterator[tuple[int, Any, bytes]]:
        """Yield the timers up to and including a time, in order, as time, key in the engine's form, and namespace.

        Timers that are registered meanwhile are included; timers that are deleted meanwhile are not.
        """
        while True:
            added, stored = self._next_added(), self._next_stored()
            if stored is not None and (added is None or stored <= added):
                if stored > up_to:
                    return
                yield stored, *split(self._fire_stored())
            elif added is not None and added <= up_to:
                yield added, *split(self._fire_added(added))
            else:
                return

    def remaining(self) -> Iterator[tuple[int, Any, bytes]]:
        """Yield all timers, at the end of time. Timers registered meanwhile are ignored; timers deleted meanwhile do not fire."""
        self._ended = True
        return self.due(_LAST)

    def resume(self) -> None:
        """Accept timers again: time continues for other keys."""
        self._ended = False

    def stored_slots(self, most: int) -> set[Any] | None:
        """Return the slots that had timers when the round began; None if they are more than ``most``."""
        if self._snapshot is None:
            return set()
        found, _ = self._snapshot.timers(bytes([self._domain]), most + 1)
        own = [split_local_timer(timer) for timer in found if timer[0] == self._domain]
        return {slot_of(form_of(key), namespace) for _, namespace, key in own} if len(own) <= most else None

    def pending(self) -> list[tuple[int, Any]]:
        """Return all timers as time and slot, in the order of time: for tests and tools, since it reads the whole store."""
        found = {(time, slot) for time, slots in self._added.items() for slot in slots}
        if self._snapshot is not None:
            position: bytes | None = bytes([self._domain])
            while position is not None:
                timers, position = self._snapshot.timers(position, MAX_SLICE)
                own = [split_local_timer(timer) for timer in timers if timer[0] == self._domain]
                stored = {(time, slot_of(form_of(key), namespace)) for time, namespace, key in own}
                found |= stored - self._fired - self._deleted
                if len(own) < MAX_SLICE:
                    break
        return sorted(found, key=operator.itemgetter(0))

    def has_changes(self) -> bool:
        return bool(self._fired or self._deleted or any(self._added.values()))

    def flush(self, changes: Changes) -> None:
        """Add the changes of the round."""
        added, deleted = self._added, self._deleted
        for time, slots in added.items():
            moment = time_bytes(time)
            for slot in slots:
                self._emit(changes, *self._path(moment, slot), b"")
        for time, slot in self._fired:
            if slot not in added.get(time, ()):
                self._emit(changes, *self._path(time_bytes(time), slot), None)
        for time, slot in deleted - self._fired:
            if slot not in added.get(time, ()):
                self._emit_if_stored(changes, *self._path(time_bytes(time), slot))

    @property
    def _where(self) -> str:
        return f"{_DOMAINS[self._domain]}-time timers of operator {self._backend.operator_name!r}"

    def _next_added(self) -> int | None:
        times, added = self._times, self._added
        while times:
            time = times[0]
            if added[time]:
                return time
            del added[time]
            heappop(times)
        return None

    def _next_stored(self) -> int | None:
        """Return the time of the store's next timer that is not deleted; it is then the last of the buffer."""
        while True:
            buffer = self._buffer
            while buffer:
                if buffer[-1] not in self._deleted:
                    return buffer[-1][0]
                buffer.pop()
            if self._position is None:
                return None
            self._read_slice()

    def _read_slice(self) -> None:
        if self._snapshot is None or self._position is None:
            self._position = None
            return
        found, self._position = self._snapshot.timers(self._position, self._slice)
        own = [timer for timer in found if timer[0] == self._domain]
        self._buffer.clear()
        if len(own) < self._slice:
            self._position = None
        self._slice = min(MAX_SLICE, self._slice * 32)
        for timer in reversed(own):
            time, namespace, key = split_local_timer(timer)
            self._buffer.append((time, slot_of(form_of(key), namespace)))
        self._backend.trim_caches()  # many timers may have read much

    def _fire_stored(self) -> Any:
        timer = self._buffer.pop()
        self._fired.add(timer)
        time, slot = timer
        self._added.get(time, {}).pop(slot, None)  # registered again before it fired: one timer
        return slot

    def _fire_added(self, time: int) -> Any:
        # All timers of the store with this time have fired before, so this one is not in the store.
        slots = self._added[time]
        slot = next(iter(slots))
        del slots[slot]
        return slot

    def _path(self, moment: bytes, slot: Any) -> tuple[int, bytes]:
        """Group and canonical key of a timer."""
        key, namespace = split(slot)
        encoded = encode_form(key)
        group = group_of(key, self._backend.max_parallelism, encoded)
        return group, timer_key(group, self._domain, moment, namespace, encoded)

    def _emit(self, changes: Changes, group: int, timer: bytes, value: bytes | None) -> None:
        changes.groups[group] += (timer, value)
        changes.deletes |= value is None

    def _emit_if_stored(self, changes: Changes, group: int, timer: bytes) -> None:
        """Write a deletion only if the store has the timer: most deleted timers were registered in the same round."""
        if self._snapshot is not None and self._snapshot.has_timer(timer_to_local(timer)):
            self._emit(changes, group, timer, None)


def _exact(time: Any) -> int:
    """Convert an int of another class (numpy's, say) to Python's int, which cannot overflow."""
    if isinstance(time, bool) or not hasattr(time, "__index__"):
        raise wrong("A timer", "a whole number", time, "use milliseconds as int")
    return operator.index(time)
