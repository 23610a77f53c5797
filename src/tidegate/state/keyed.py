"""Keyed states: value, list, reducing and aggregating state with one stored entry per key, and map state.

This is the path of every record. A state works on a cache (``single.py`` has its invariants): a hit is a dict access, a
miss reads the local store. At the end of the round ``flush`` encodes each change once.

Map state has one stored entry per map key, so that reading an entry of a large map reads no other entry. Map keys have
the same identity as keys (``keys.py``): their bytes decide. The caches hold them in the engine's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidegate.base.errors import ArgumentTypeError, StateFormatError
from tidegate.state.codecs import Codec
from tidegate.state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
)
from tidegate.state.keys import encode_key, form_of, key_identity, visible
from tidegate.state.single import ENTRY_BYTES, Changes, KeyedState, SingleState, TrackedState, weight

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend


class _Cells(dict[Any, Any]):
    """A cache that loads missing values: ``cells[slot]`` is always the state's value of the slot."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[Any], Any]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, slot: Any) -> Any:
        return self._load(slot)


class KeyedValueState(TrackedState, ValueState[Any]):
    """A value state of any type. Generated loops hold ``cells`` and ``wrote``, as those of an ``ImmutableValueState``."""

    __slots__ = ("cells",)

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._cache = self.cells = _Cells(self._load)

    @property
    def wrote(self) -> dict[Any, Any]:
        """Return the values written in this round; the dict lives as long as the state."""
        return self._changed

    value = SingleState._current
    update = TrackedState._store


class ImmutableValueState(SingleState, ValueState[Any]):
    """A value state of numbers, texts or bytes: values stay in memory across rounds.

    ``cells``: the younger generation of the cache; ``wrote``: the values written in this round. Generated loops
    (operators/loop/codegen.py) hold the two dicts for the life of the state, so the dicts are emptied and never replaced.
    ``cells[slot]`` is ``value()``, ``cells[slot] = wrote[slot] = x`` is ``update(x)``. So is ``cells[slot] = x`` alone if the
    slot is in a column passed to ``note`` before: then the cache has the only copy, until ``age`` or the flush copies it.
    """

    __slots__ = ("_noted", "cells", "note", "wrote")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._cache = self.cells = _Cells(self._load)
        self.wrote: dict[Any, Any] = {}
        self._noted: list[npt.NDArray[Any]] = []
        self.note: Callable[[npt.NDArray[Any]], None] = self._noted.append

    value = SingleState._current

    def update(self, value: Any) -> None:
        slot = self._context.slot
        try:
            self.cells[slot] = self.wrote[slot] = value
        except TypeError as error:
            raise self._refuse() from error

    _store = update

    def has_changes(self) -> bool:
        return bool(self.wrote or self._noted)

    def reset(self, keep: bool) -> None:
        super().reset(keep)
        self.wrote.clear()
        self._noted.clear()

    def age(self) -> None:
        if self._noted:
            # Never called within a chunk: every slot that its column notes has been written.
            noted = distinct(self._noted)
            self.wrote.update(zip(noted, map(self.cells.__getitem__, noted), strict=True))
            self._noted.clear()
        super().age()

    def _unflushed(self) -> dict[Any, Any]:
        return self.wrote

    def _written(self) -> tuple[list[Any], list[Any]]:
        if not self._noted:
            return super()._written()
        # The cache has the last value of a noted slot; ``wrote`` has those of other slots.
        noted = distinct(self._noted)
        others = list(self.wrote.keys() - set(noted)) if self.wrote else []
        values = [*map(self.cells.__getitem__, noted), *map(self.wrote.__getitem__, others)]
        return noted + others, values


def distinct(columns: list[npt.NDArray[Any]]) -> list[Any]:
    """Return the numbers in some columns, each once. Numbers that are close together are ticked off, others are sorted."""
    low, high = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    if high - low > 8 * sum(map(len, columns)):
        return list(map(int, np.unique(np.concatenate(columns)).tolist()))
    seen = np.zeros(high - low + 1, np.bool_)
    for column in columns:
        seen[column.astype(np.int64) - low] = True
    found: list[Any] = (np.flatnonzero(seen) + low).tolist()
    return found


class KeyedListState(TrackedState, ListState[Any]):
    """The whole list is one entry."""

    __slots__ = ()

    def get(self) -> list[Any]:
        values = self._current()
        return [] if values is None else values.copy()

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        current = self._current()
        if current is None:
            self.update(values)
        else:
            current += values
            self._store(current)

    def update(self, values: Iterable[Any]) -> None:
        self._store(list(values) or None)

    def _merged(self, value: Any, other: Any) -> Any:
        return value + other


class KeyedReducingState(TrackedState, ReducingState[Any]):
    __slots__ = ("_reduce",)

    def __init__(self, backend: KeyedBackend, descriptor: ReducingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        return self._current()

    def add(self, value: Any) -> None:
        current = self._current()
        self._store(value if current is None else self._reduce(current, value))

    def _merged(self, value: Any, other: Any) -> Any:
        return self._reduce(value, other)


class KeyedAggregatingState(TrackedState, AggregatingState[Any, Any]):
    """The entry is the accumulator."""

    __slots__ = ("_function",)

    def __init__(self, backend: KeyedBackend, descriptor: AggregatingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._function = descriptor.get_agg_function()

    def get(self) -> Any:
        accumulator = self._current()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            return self.clear()
        accumulator = self._current()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._store(self._function.add(value, accumulator))

    def _merged(self, value: Any, other: Any) -> Any:
        return self._function.merge(value, other)


ABSENT = object()
"""In a cached map: known to be missing. A map may contain None."""
_SAMPLE = 32
_MAP_BYTES = 500
"""About the size of an empty cached map."""


class CachedMap(dict[Any, Any]):
    """The known entries of one key's map: map key in the engine's form -> value or ``ABSENT``.

    ``complete``: the store has no other entries. ``cleared``: the store's entries will be deleted.
    """

    __slots__ = ("changed", "cleared", "complete", "prefix")

    def __init__(self, prefix: bytes) -> None:
        super().__init__()
        self.prefix = prefix
        self.changed: set[Any] = set()
        self.complete = False
        self.cleared = False

    @property
    def is_changed(self) -> bool:
        return self.cleared or bool(self.changed)


class KeyedMapState(KeyedState, MapState[Any, Any]):
    """``_maps`` and ``_old`` are the two generations of its cache. A map with changes is never evicted before the round ends."""

    __slots__ = ("_entry_bytes", "_identity", "_maps", "_measure_at", "_old")

    def __init__(self, backend: KeyedBackend, descriptor: MapStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._identity = key_identity(descriptor.key_type_info)
        self._maps: dict[Any, CachedMap] = {}
        self._old: dict[Any, CachedMap] = {}
        self._entry_bytes, self._measure_at = ENTRY_BYTES, _SAMPLE

    def get(self, key: Any) -> Any:
        value = self._value(self._identity(key))
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        self._put(self._identity(key), value)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        for key, value in dict(dict_value).items():  # PyFlink 2.3 takes pairs only, in process mode
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._put(self._identity(key), ABSENT)

    def contains(self, key: Any) -> bool:
        return self._value(self._identity(key)) is not ABSENT

    def items(self) -> list[tuple[Any, Any]]:
        return [(visible(key), value) for key, value in self._all().items() if value is not ABSENT]

    def keys(self) -> list[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        return not self.items()

    def clear(self) -> None:
        entries = self._current()
        entries.clear()
        entries.changed.clear()
        entries.complete = entries.cleared = True

    def has_changes(self) -> bool:
        return any(entries.is_changed for entries in self._known())

    def flush(self, changes: Changes) -> None:
        for entries in self._known():
            if entries.cleared:
                self._flush_cleared(entries, changes)
            if entries.changed:
                self._flush_changed(entries, changes)

    def reset(self, keep: bool) -> None:
        self._maps, self._old = {}, {}

    def young_bytes(self) -> int:
        count = len(self._maps)
        if count >= self._measure_at:
            sample = list(islice(self._maps.values(), _SAMPLE))
            self._entry_bytes = sum(_MAP_BYTES + weight(entries) for entries in sample) // len(sample)
            self._measure_at = 2 * count
        return count * self._entry_bytes

    def age(self) -> None:
        changed = {slot: entries for slot, entries in self._old.items() if entries.is_changed}
        self._maps, self._old = {}, {**changed, **self._maps}
        self._measure_at = _SAMPLE

    def _touched(self) -> list[Any]:
        return [*self._old, *self._maps]

    def _known(self) -> list[CachedMap]:
        return [*self._old.values(), *self._maps.values()]

    def _current(self) -> CachedMap:
        """Return the cached map of the current slot."""
        slot = self._context.slot
        try:
            return self._maps[slot]
        except KeyError:
            entries = self._old.pop(slot, None)
            if entries is None:
                entries = CachedMap(self._path(slot))
            self._maps[slot] = entries
            return entries
        except TypeError as error:
            raise self._refuse() from error

    def _value(self, key: Any) -> Any:
        """Return the value of a map key, or ``ABSENT``."""
        entries = self._current()
        return entries[key] if key in entries else self._load(entries, key)

    def _put(self, key: Any, value: Any) -> None:
        entries = self._current()
        entries[key] = value
        entries.changed.add(key)

    def _load(self, entries: CachedMap, key: Any) -> Any:
        """Load one entry from the store into the cache."""
        backend, data = self._backend, None
        if not entries.complete:
            path = entries.prefix + encode_key(key)
            data = backend.get(path) if len(path) <= backend.max_key else backend.get_long(path)
        value = entries[key] = ABSENT if data is None else self._decode(data)
        return value

    def _decode(self, data: bytes) -> Any:
        try:
            return self.codec.decode(data)
        except Exception as error:
            raise self._unreadable(error) from error

    def _all(self) -> CachedMap:
        """Return the map of the current slot with all entries of the store."""
        entries = self._current()
        if not entries.complete:
            length = len(entries.prefix)
            for path, data in self._backend.scan(entries.prefix):
                key = form_of(path[length:])
                if key not in entries:
                    entries[key] = self._decode(data)
            entries.complete = True
        return entries

    def _flush_cleared(self, entries: CachedMap, changes: Changes) -> None:
        kept = {entries.prefix + encode_key(key) for key in entries.changed}
        bucket = changes.groups[int.from_bytes(entries.prefix[:2], "big")]
        for path, _ in self._backend.scan(entries.prefix):
            if path not in kept:
                bucket += (path, None)
                changes.deletes = True

    def _flush_changed(self, entries: CachedMap, changes: Changes) -> None:
        bucket = changes.groups[int.from_bytes(entries.prefix[:2], "big")]
        values = [entries[key] for key in entries.changed]
        try:
            self._identity.check_all(entries.changed)
            encoded = self.codec.encode_all(values, ABSENT)
        except (StateFormatError, ArgumentTypeError) as error:
            raise self._locate(error) from error
        for key, data in zip(entries.changed, encoded, strict=True):
            bucket += (entries.prefix + encode_key(key), data)
            changes.deletes |= data is None
