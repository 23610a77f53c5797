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
from tidegate.state.context import slot_of
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
from tidegate.state.keys import encode_form, encode_keys, form_of, forms_of, key_identity, visible
from tidegate.state.layout import split_entry
from tidegate.state.single import (
    ENTRY_BYTES,
    FLUSH_BLOCK,
    MISSING,
    Changes,
    Entries,
    KeyedState,
    SingleState,
    TrackedState,
    weight,
)

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
        slot = self._context.slot
        try:  # written out: a window does this for every record
            accumulator = self._cache[slot]
        except KeyError:
            accumulator = self._load(slot)
        except TypeError as error:
            raise self._refuse() from error
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._cache[slot] = self._changed[slot] = self._function.add(value, accumulator)

    def _merged(self, value: Any, other: Any) -> Any:
        return self._function.merge(value, other)


ABSENT = object()
"""In a cached map: known to be missing. A map may contain None."""
_SAMPLE = 32
_MAP_BYTES = 500
"""About the size of an empty cached map."""


class CachedMap(dict[Any, Any]):
    """The known entries of one key's map: map key in the engine's form -> value or ``ABSENT``.

    ``complete``: the files have no other entries. ``cleared``: the entries of the files will be deleted: those in ``gone``,
    or what a search finds if this is None. ``stored``: the files may have entries.
    """

    __slots__ = ("changed", "cleared", "complete", "gone", "prefix", "slot", "stored")

    def __init__(self, slot: Any, prefix: bytes, new: bool) -> None:
        super().__init__()
        self.slot, self.prefix = slot, prefix
        self.changed: set[Any] = set()
        self.complete, self.stored = new, not new
        self.cleared = False
        self.gone: set[Any] | None = None

    @property
    def is_changed(self) -> bool:
        return self.cleared or bool(self.changed)

    def accept(self) -> None:
        """Note that the files have what was changed."""
        if self.complete:
            for key in [key for key in self.changed if self[key] is ABSENT]:
                del self[key]
        self.stored = bool(self) or not self.complete
        self.cleared, self.gone = False, None
        self.changed.clear()


class KeyedMapState(KeyedState, MapState[Any, Any]):
    """``_maps`` and ``_old`` are the two generations of its cache. A map with changes is never evicted before the round ends.
    ``_dirty``: the maps with changes. ``_size``: how many entries the maps of the younger generation have."""

    __slots__ = ("_dirty", "_entry_bytes", "_identity", "_maps", "_measure_at", "_old", "_safe", "_size")

    def __init__(self, backend: KeyedBackend, descriptor: MapStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._identity = key_identity(descriptor.key_type_info)
        self._safe = self._identity.safe
        self._maps: dict[Any, CachedMap] = {}
        self._old: dict[Any, CachedMap] = {}
        self._dirty: list[CachedMap] = []
        self._entry_bytes, self._measure_at, self._size = ENTRY_BYTES, 1, 0

    @property
    def keeps(self) -> bool:
        return self.codec.immutable

    def get(self, key: Any) -> Any:
        # Written out, as ``put`` is: most programs with a map state ask it for every record.
        if key.__class__ not in self._safe:
            key = self._identity.identify(key)
        try:
            entries = self._maps.get(self._context.slot)
        except TypeError as error:
            raise self._refuse() from error
        if entries is None:
            entries = self._current()
        value = entries.get(key, MISSING)
        if value is MISSING:
            value = self._load(entries, key)
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        if key.__class__ not in self._safe:
            key = self._identity.identify(key)
        try:
            entries = self._maps.get(self._context.slot)
        except TypeError as error:
            raise self._refuse() from error
        if entries is None:
            entries = self._current()
        if key not in entries:
            self._size += 1
        entries[key] = value
        if not entries.changed and not entries.cleared:
            self._dirty.append(entries)
        entries.changed.add(key)

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
        self._note(entries)
        if entries.complete and not entries.cleared:
            entries.gone = set(entries) if entries.stored else set()
        self._size -= len(entries)
        entries.clear()
        entries.changed.clear()
        entries.complete = entries.cleared = True

    def has_changes(self) -> bool:
        return bool(self._dirty)

    def flush(self, changes: Changes) -> None:
        for entries in self._dirty:
            if entries.cleared:
                self._flush_cleared(entries, changes)
        waiting: list[CachedMap] = []
        size = 0
        for entries in self._dirty:
            waiting.append(entries)
            size += len(entries.changed)
            if size >= FLUSH_BLOCK:
                self._flush_changed(waiting, changes)
                waiting, size = [], 0
        self._flush_changed(waiting, changes)

    def reset(self, keep: bool) -> None:
        if not (keep and self.codec.immutable and self._held_bytes() <= self._backend.cache_bytes):
            self._maps, self._old, self._size, self.whole = {}, {}, 0, False
        else:
            for entries in self._dirty:
                before = len(entries)
                entries.accept()
                if entries.slot in self._maps:
                    self._size -= before - len(entries)
                if not entries:  # of a window that has ended, say
                    self._maps.pop(entries.slot, None)
                    self._old.pop(entries.slot, None)
        self._dirty = []
        self._measure_at = 1  # the same entries may have grown

    def cached(self) -> int:
        return self._size if self.codec.immutable else 0

    def learn(self, entries: Entries) -> None:
        runs, tails, encoded = entries.of_maps(self._head)
        try:
            values = self.codec.decode_all(encoded)
        except Exception as error:
            raise self._unreadable(error) from error
        keys = forms_of(tails)
        places = [split_entry(prefix) for prefix, _, _ in runs]
        for (prefix, first, end), (namespace, _), key in zip(
            runs, places, forms_of([key for _, key in places]), strict=True
        ):
            self._context.scoped |= bool(namespace)
            cached = self._known_map(slot_of(key, namespace), prefix)
            cached.stored = True
            self._size -= len(cached)
            if None not in encoded[first:end]:
                cached.update(zip(keys[first:end], values[first:end], strict=True))
                self._size += len(cached)
                continue
            for number in range(first, end):
                if encoded[number] is not None or not cached.complete:
                    cached[keys[number]] = ABSENT if encoded[number] is None else values[number]
                else:
                    cached.pop(keys[number], None)
            self._size += len(cached)

    def young_bytes(self) -> int:
        if self._size >= self._measure_at:
            every = ((key, value) for entries in self._maps.values() for key, value in islice(entries.items(), _SAMPLE))
            sample = list(islice(every, _SAMPLE))
            if sample:
                inside = sum(weight(key) + weight(value) for key, value in sample if value is not ABSENT)
                self._entry_bytes = ENTRY_BYTES + inside // len(sample)
            self._measure_at = 2 * self._size
        return len(self._maps) * _MAP_BYTES + self._size * self._entry_bytes

    def _held_bytes(self) -> int:
        """Return about how much memory both generations take."""
        old = sum(map(len, self._old.values())) * self._entry_bytes + len(self._old) * _MAP_BYTES if self._old else 0
        return old + self.young_bytes()

    def age(self) -> None:
        changed = {slot: entries for slot, entries in self._old.items() if entries.is_changed}
        self._maps, self._old = {}, {**changed, **self._maps}
        self._measure_at, self._size = 1, 0
        self.whole = False

    def _touched(self) -> list[Any]:
        return [*self._old, *self._maps]

    def _current(self) -> CachedMap:
        """Return the cached map of the current slot."""
        slot = self._context.slot
        try:
            return self._maps[slot]
        except KeyError:
            return self._known_map(slot, None)
        except TypeError as error:
            raise self._refuse() from error

    def _known_map(self, slot: Any, prefix: bytes | None) -> CachedMap:
        """Return the cached map of a slot. ``prefix``: of its entries, if it is known."""
        entries = self._maps.get(slot)
        if entries is None:
            entries = self._old.pop(slot, None)
            if entries is None:
                entries = CachedMap(slot, self._path(slot) if prefix is None else prefix, self.whole)
            else:
                self._size += len(entries)
            self._maps[slot] = entries
        return entries

    def _value(self, key: Any) -> Any:
        """Return the value of a map key, or ``ABSENT``."""
        entries = self._current()
        return entries[key] if key in entries else self._load(entries, key)

    def _put(self, key: Any, value: Any) -> None:
        entries = self._current()
        self._size += key not in entries
        self._note(entries)
        entries[key] = value
        entries.changed.add(key)

    def _note(self, entries: CachedMap) -> None:
        """Note that a map is about to change."""
        if not entries.is_changed:
            self._dirty.append(entries)

    def _load(self, entries: CachedMap, key: Any) -> Any:
        """Load one entry from the store into the cache, if the store may have it."""
        if entries.complete:
            return ABSENT
        backend = self._backend
        path = entries.prefix + encode_form(key)
        data = backend.get(path) if len(path) <= backend.max_key else backend.get_long(path)
        value = entries[key] = ABSENT if data is None else self._decode(data)
        self._size += 1
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
                    self._size += 1
            entries.complete = True
        return entries

    def _flush_cleared(self, entries: CachedMap, changes: Changes) -> None:
        if entries.gone is not None:
            gone = [entries.prefix + encode_form(key) for key in entries.gone.difference(entries.changed)]
            if gone:
                changes.add(gone, np.full(len(gone), int.from_bytes(entries.prefix[:2], "big")), [None] * len(gone))
            return
        kept = {entries.prefix + encode_form(key) for key in entries.changed}
        bucket = changes.groups[int.from_bytes(entries.prefix[:2], "big")]
        for path, _ in self._backend.scan(entries.prefix):
            if path not in kept:
                bucket += (path, None)
                changes.deletes = True

    def _flush_changed(self, every: list[CachedMap], changes: Changes) -> None:
        counts = [len(entries.changed) for entries in every]
        keys = [key for entries in every for key in entries.changed]
        if not keys:
            return
        values = [entries[key] for entries in every for key in entries.changed]
        try:
            self._identity.check_all(keys)
            encoded = self.codec.encode_all(values, ABSENT)
        except (StateFormatError, ArgumentTypeError) as error:
            raise self._locate(error) from error
        heads = [entries.prefix for entries, count in zip(every, counts, strict=True) for _ in range(count)]
        groups = np.repeat([int.from_bytes(entries.prefix[:2], "big") for entries in every], counts)
        changes.add(list(map(bytes.__add__, heads, encode_keys(keys))), groups, encoded)
