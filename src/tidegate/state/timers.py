"""Timers of a subtask: the round's own over those of the store, in the order of time, one seek when none is due."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import xxhash

from tidegate.common.arguments import expect_int
from tidegate.state.codecs import decode_key, encode_key
from tidegate.state.keyed import Changes
from tidegate.state.layout import split_local_timer, time_bytes, timer_key, timer_to_local

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend
    from tidegate.state.store import Snapshot

_DOMAINS = ("event", "processing")
FIRST_SLICE, MAX_SLICE = 1, 1024
_LAST = (1 << 63) - 1


class TimerQueue:
    """The timers of one domain. A timer is a time and a key; registering it twice makes one.

    ``_added``: time -> keys registered in this round and not fired or deleted since. ``_gone``: timers of the store that have
    fired or were deleted. The store is read forward only, in slices: before the read position every timer has been seen.
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

    def reset(self, snapshot: Snapshot | None) -> None:
        """Begin a round, or with None end one."""
        self._added.clear()
        self._times.clear()
        self._deleted.clear()
        self._fired.clear()
        self._buffer: list[tuple[int, Any]] = []  # read and not yet fired, the next one last
        self._position: bytes | None = bytes([self._domain])
        self._slice = FIRST_SLICE
        self._snapshot = snapshot
        self._ended = False

    def register(self, time: int) -> None:
        """Have the current key's timer fire when the time has come."""
        if self._ended:
            return
        if type(time) is not int:
            time = expect_int("register_timer", time, "use milliseconds as int")
        keys = self._added.get(time)
        if keys is None:
            keys = self._added[time] = {}
            heappush(self._times, time)
        try:
            keys[self._backend.key] = None
        except TypeError as error:
            raise self._backend.refuse_key(self._where, error) from error

    def delete(self, time: int) -> None:
        """Forget the current key's timer; a missing one is fine."""
        key = self._backend.key
        try:
            self._deleted.add((time, key))
        except TypeError as error:
            raise self._backend.refuse_key(self._where, error) from error
        self._added.get(time, {}).pop(key, None)

    def next_time(self) -> int | None:
        """The time of the earliest timer; None if there is none."""
        added, stored = self._next_added(), self._next_stored()
        if added is None or stored is None:
            return stored if added is None else added
        return min(added, stored)

    def due(self, up_to: int) -> Iterator[tuple[int, Any]]:
        """The timers up to a time, included, in order: also those registered meanwhile, not those deleted meanwhile."""
        while True:
            added, stored = self._next_added(), self._next_stored()
            if stored is not None and (added is None or stored <= added):
                if stored > up_to:
                    return
                yield self._fire_stored()
            elif added is not None and added <= up_to:
                yield self._fire_added(added)
            else:
                return

    def remaining(self) -> Iterator[tuple[int, Any]]:
        """All timers, at the end of time: those registered meanwhile are ignored, those deleted meanwhile do not fire."""
        self._ended = True
        return self.due(_LAST)

    def has_changes(self) -> bool:
        return bool(self._fired or self._deleted or any(self._added.values()))

    def flush(self, changes: Changes) -> None:
        """Add the changes of the round."""
        added, deleted = self._added, self._deleted
        for time, keys in added.items():
            moment = time_bytes(time)
            for key in keys:
                self._emit(changes, moment, key, b"")
        for time, key in self._fired:
            if key not in added.get(time, ()):
                self._emit(changes, time_bytes(time), key, None)
        for time, key in deleted - self._fired:
            if key not in added.get(time, ()):
                self._emit_if_stored(changes, time_bytes(time), key)

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
        """The time of the next timer of the store that is still to fire; it is then the last of the buffer."""
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
        if len(own) < self._slice:
            self._position = None
        self._slice = min(MAX_SLICE, self._slice * 32)
        split = map(split_local_timer, reversed(own))
        self._buffer = [(time, decode_key(key)) for time, key in split]

    def _fire_stored(self) -> tuple[int, Any]:
        timer = self._buffer.pop()
        self._fired.add(timer)
        time, key = timer
        self._added.get(time, {}).pop(key, None)  # registered again before it fired: still one timer
        return timer

    def _fire_added(self, time: int) -> tuple[int, Any]:
        # the store's timers of this time have all fired before, so this one is not among them
        keys = self._added[time]
        key = next(iter(keys))
        del keys[key]
        return time, key

    def _emit(self, changes: Changes, moment: bytes, key: Any, value: bytes | None) -> None:
        encoded = encode_key(key)
        group = xxhash.xxh3_64_intdigest(encoded) % self._backend.max_parallelism
        changes.groups[group] += (timer_key(group, self._domain, moment, encoded), value)
        changes.deletes |= value is None

    def _emit_if_stored(self, changes: Changes, moment: bytes, key: Any) -> None:
        """Most deleted timers were registered in the same round: no trace of them is needed."""
        encoded = encode_key(key)
        group = xxhash.xxh3_64_intdigest(encoded) % self._backend.max_parallelism
        timer = timer_key(group, self._domain, moment, encoded)
        if self._snapshot is not None and self._snapshot.has_timer(timer_to_local(timer)):
            changes.groups[group] += (timer, None)
            changes.deletes = True
