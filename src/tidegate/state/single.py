"""The base of keyed states: the changes that a flush collects, and the cache of a state with one entry per slot.

Invariants of a state with a cache (``SingleState``), which everything on the path of a record relies on:

1. A slot is a key in the engine's form (``keys.py``), or a key in a namespace (``context.py``). Dict equality is equality of
bytes. 2. An entry of ``_cache`` is the current value of its slot, from the store or written since; None: the slot has no value.
So a hit is a dict access. 3. Values that were written in this round and not flushed are also in another dict (``_changed``,
``wrote``): the cache may drop them. 4. The cache has two generations. A miss looks into ``_old`` before the store, and moves what
it finds to ``_cache``. When ``_cache`` exceeds its share it becomes ``_old``, and slots that were not used since the last time
are dropped. Hits cost nothing extra. A slot in both is current in ``_cache`` and is not read from ``_old`` again: ``_old`` is
replaced before ``_cache`` is emptied. 5. Values stay cached across rounds only if they are immutable (``codec.immutable``); of
other values their bytes stay (``_packed``). Both only while the backend holds the accepted files (``KeyedBackend.begin``).
6. While a state is ``whole``, its caches have every entry of the accepted files, so a miss needs no look into the store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import compress, islice, repeat
from operator import itemgetter, not_
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.base.errors import StateFormatError, TidegateError
from tidegate.state.codecs import Codec
from tidegate.state.context import Scoped, split
from tidegate.state.descriptors import State, StateDescriptor
from tidegate.state.key_groups import Int64s, encode_and_group, group_of
from tidegate.state.keys import encode_form, form_of, forms_of
from tidegate.state.layout import LENGTHS, namespace_bytes, read_varint, split_entry, state_head, state_prefixes

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

MISSING = object()
FLUSH_BLOCK = 8192
"""Entries that are encoded together: the result of a step is still in the processor's cache for the next step."""
ENTRY_BYTES = 100
"""About the memory of a dict entry, without key and value."""
_SAMPLE = 32


class Changes:
    """The changes of a flush: for each key group ``[k, v, k, v, ...]`` with canonical keys; v None deletes."""

    __slots__ = ("deletes", "groups")

    def __init__(self, max_parallelism: int) -> None:
        self.groups: list[list[Any]] = [[] for _ in range(max_parallelism)]
        self.deletes = False

    def add(self, paths: list[bytes], groups: Int64s, encoded: list[bytes | None]) -> None:
        """Add many entries, each with its group."""
        self.deletes |= None in encoded
        order = np.argsort(groups.astype(np.uint16), kind="stable")  # numpy sorts 16 bits by counting
        positions, groups = order.tolist(), groups[order]
        flat: list[Any] = [None] * (2 * len(paths))
        flat[::2] = map(paths.__getitem__, positions)
        flat[1::2] = map(encoded.__getitem__, positions)
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()]
        for group, start, end in zip(groups[starts].tolist(), starts, [*starts[1:], len(paths)], strict=True):
            self.groups[group] += flat[2 * start : 2 * end]


class Entries:
    """State entries of a file, in its order: canonical keys and values, None deletes."""

    __slots__ = ("_keys", "_values")

    def __init__(self, flat: list[Any]) -> None:
        self._keys: list[bytes] = flat[::2]
        self._values: list[bytes | None] = flat[1::2]

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, head: bytes) -> tuple[list[bytes], list[bytes | None]]:
        """Return encoded keys and values of one state's entries without a namespace. ``head``: the bytes between group and key."""
        start = 2 + len(head)
        keys, values = self._keys, self._values
        mine = list(map(bytes.startswith, keys, repeat(head), repeat(2)))
        if not all(mine):
            keys, values = list(compress(keys, mine)), list(compress(values, mine))
        if max(map(len, keys), default=0) < start + 1 + 128:  # the length of the key takes one byte
            return list(map(itemgetter(slice(start + 1, None)), keys)), values
        return [key[read_varint(key, start)[1] :] for key in keys], values

    def scoped(self, head: bytes) -> tuple[list[Scoped], list[bytes | None]]:
        """Return slots and values of the state's entries in namespaces."""
        named = list(map(bytes.startswith, self._keys, repeat(head[:-1]), repeat(2)))
        plain = list(map(bytes.startswith, self._keys, repeat(head), repeat(2)))
        if named == plain:
            return [], []
        inside = [name and not_(none) for name, none in zip(named, plain, strict=True)]
        split_keys = map(split_entry, compress(self._keys, inside))
        return [Scoped(form_of(key), namespace) for namespace, key in split_keys], list(compress(self._values, inside))

    def of_maps(self, head: bytes) -> tuple[list[tuple[bytes, int, int]], list[bytes], list[bytes | None]]:
        """Return the entries of a map state: the bytes before the map key, with the first entry that has them and the one after
        the last; the encoded map keys; the values."""
        keys, values = self._keys, self._values
        mine = list(map(bytes.startswith, keys, repeat(head[:-1]), repeat(2)))
        if not all(mine):
            keys, values = list(compress(keys, mine)), list(compress(values, mine))
        start = 1 + len(head)  # of a path, after the group: the last byte of the head is the length of the namespace
        runs: list[tuple[bytes, int, int]] = []
        tails: list[bytes] = []
        prefix, first = b"", 0
        for number, path in enumerate(keys):
            if not prefix or not path.startswith(prefix):
                if prefix:
                    runs.append((prefix, first, number))
                length, begin = read_varint(path, start + 1 + path[start])
                prefix, first = path[: begin + length], number
            tails.append(path[len(prefix) :])
        if prefix:
            runs.append((prefix, first, len(keys)))
        return runs, tails, values


class KeyedState(State):
    """The base of all keyed states. One object per state and backend; it lives as long as the backend."""

    __slots__ = ("_backend", "_context", "_head", "_prefixes", "codec", "descriptor", "name", "whole")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        self.name = descriptor.name
        self.descriptor = descriptor
        self.codec = codec
        self._backend, self._context = backend, backend.context
        self._head = state_head(descriptor.name)
        self._prefixes = state_prefixes(descriptor.name, backend.groups, backend.max_parallelism)
        self.whole = False
        """Whether an entry that is neither cached nor written in this round does not exist."""

    @property
    def keeps(self) -> bool:
        """Tell whether the caches may survive rounds, and so may be whole."""
        return False

    @property
    def where(self) -> str:
        return f"state {self.name!r} of operator {self._backend.operator_name!r}"

    def has_changes(self) -> bool:
        """Return whether a flush may find changes."""
        raise NotImplementedError

    def flush(self, changes: Changes) -> None:
        """Add the changes of the round."""
        raise NotImplementedError

    def reset(self, keep: bool) -> None:
        """Begin a round. ``keep``: the flushed changes were accepted, so immutable values may stay cached."""
        raise NotImplementedError

    def cached(self) -> int:
        """Return how many cached values may stay for the next round."""
        return 0

    def learn(self, entries: Entries) -> None:
        """Cache entries of the files that were accepted since."""

    def prefetch(self, slots: Iterable[Any]) -> None:
        """Read the entries of many slots. Called before the records of a chunk are processed."""

    def young_bytes(self) -> int:
        """Return about how much memory the younger generation of the cache takes. Called for every chunk."""
        raise NotImplementedError

    def age(self) -> None:
        """Drop the older generation of the cache and make the younger one the older. Changes of the round are never dropped."""
        raise NotImplementedError

    def all_keys(self) -> list[Any]:
        """Return all keys, in the engine's form, that may have an entry without a namespace: in the store or in this round."""
        found: dict[Any, None] = {}
        for prefix in self._prefixes:
            for path, _ in self._backend.scan(prefix) if prefix is not None else ():
                length, start = read_varint(path, len(prefix or b""))
                found[form_of(path[start : start + length])] = None
        found.update(dict.fromkeys(slot for slot in self._touched() if type(slot) is not Scoped))
        return list(found)

    def _touched(self) -> Iterable[Any]:
        """The slots that may have changed in this round."""
        raise NotImplementedError

    def _path(self, slot: Any) -> bytes:
        """Return the canonical key of a slot's entry; a prefix of it for maps."""
        if type(slot) is Scoped:
            return self._place(slot.key)[:-1] + namespace_bytes(slot.namespace) + _measured(encode_form(slot.key))
        backend = self._backend
        last, encoded, group = backend.located
        if last is not slot:  # several states are read for one key
            encoded = encode_form(slot)
            group = group_of(slot, backend.max_parallelism, encoded)
            backend.located = slot, encoded, group
        prefix = self._prefixes[group]
        if prefix is None:
            raise self._backend.misrouted(slot)
        return prefix + LENGTHS[len(encoded)] + encoded

    def _place(self, key: Any) -> bytes:
        """Return the bytes before the key of an entry without a namespace."""
        prefix = self._prefixes[group_of(key, self._backend.max_parallelism)]
        if prefix is None:
            raise self._backend.misrouted(key)
        return prefix

    def _unreadable(self, error: Exception) -> StateFormatError:
        return StateFormatError(
            f"A stored value cannot be read with the declared type, {self.codec.describe}.",
            where=self.where,
            found=f"{type(error).__name__}: {error}",
            cure="declare the type the state was written with, or start without this state",
        )

    def _refuse(self) -> TidegateError:
        """Return the error for an access without a key. The dict itself detects it: ``NO_KEY`` cannot be hashed. Hits pay
        nothing."""
        return self._backend.refuse_access(self.where)

    def _locate(self, error: TidegateError) -> StateFormatError:
        return StateFormatError(error.rule, where=self.where, found=error.found, cure=error.cure)


class SingleState(KeyedState):
    """A state with one entry per slot. The module's docstring has the invariants."""

    __slots__ = (
        "_aged",
        "_cache",
        "_entry_bytes",
        "_measure_at",
        "_measure_packed_at",
        "_old",
        "_packed",
        "_packed_bytes",
        "misses",
        "watched",
    )

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._cache: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._entry_bytes, self._measure_at = ENTRY_BYTES, 1
        self._packed: dict[Any, bytes] = {}
        """Entries of the accepted files whose values could change in place; empty if the values are immutable."""
        self._packed_bytes, self._measure_packed_at = ENTRY_BYTES, 1
        self._aged = False
        self.misses = self.watched = 0
        """Recent misses among ``watched`` records; 0: among a whole chunk. Both survive rounds."""

    def clear(self) -> None:
        self._store(None)

    # -- the cache --

    @property
    def keeps(self) -> bool:
        return True

    def cached(self) -> int:
        return len(self._old) + len(self._cache) if self.codec.immutable else len(self._packed)

    def reset(self, keep: bool) -> None:
        keep = keep and self._backend.cache_bytes > 0
        if not keep:
            self._packed.clear()
            self.whole = False
        if not (keep and self.codec.immutable):
            self._cache.clear()
            self._old.clear()
        elif self.whole or self._context.scoped:
            # a slot that was cleared may have been written again by a column (``ImmutableValueState``): the cache knows
            cleared = [slot for slot, value in self._unflushed().items() if value is None]
            self._forget(slot for slot in cleared if self._cache.get(slot) is None)
        self._aged = False
        self._measure_at = self._measure_packed_at = 1  # the same entries may have grown

    def _forget(self, gone: Iterable[Any]) -> None:
        """Drop missing values of namespaces: these are windows, and a closed window does not come again. A cache that is whole
        needs no missing values at all: else they would fill it."""
        if not self.whole:
            gone = [slot for slot in gone if type(slot) is Scoped]
        for slot in gone:
            self._cache.pop(slot, None)
            self._old.pop(slot, None)

    def learn(self, entries: Entries) -> None:
        keys, values = entries.of(self._head)
        slots, more = entries.scoped(self._head) if len(keys) < len(entries) else ([], [])
        self._context.scoped |= bool(slots)
        if not self.codec.immutable:
            self._pack([*forms_of(keys), *slots], [*values, *more])
            return
        try:
            slots, values = [*forms_of(keys), *slots], [*values, *more]
            self._cache.update(zip(slots, self.codec.decode_all(values), strict=True))
            if None in values:
                self._forget(slot for slot, value in zip(slots, values, strict=True) if value is None)
        except Exception as error:
            raise self._unreadable(error) from error

    def young_bytes(self) -> int:
        count = len(self._cache)
        if count >= self._measure_at:
            sample = list(islice(self._cache.items(), _SAMPLE))
            self._entry_bytes = ENTRY_BYTES + sum(weight(slot) + weight(value) for slot, value in sample) // len(sample)
            self._measure_at = 2 * count
        packed = len(self._packed)
        if packed >= self._measure_packed_at:
            few = list(islice(self._packed.items(), _SAMPLE))
            self._packed_bytes = ENTRY_BYTES + sum(weight(slot) + weight(data) for slot, data in few) // len(few)
            self._measure_packed_at = 2 * packed
        return count * self._entry_bytes + packed * self._packed_bytes

    def age(self) -> None:
        self._old = dict(self._cache)  # generated loops keep the other dict
        self._cache.clear()
        self._aged = True  # from now on the cache may lack values that were written in this round
        self._measure_at = self._measure_packed_at = 1
        self._packed.clear()
        self.whole = False

    def prefetch(self, slots: Iterable[Any]) -> None:
        """Read the entries of many slots at once, which saves Python calls compared to single misses."""
        missing = [slot for slot in set(slots) if slot not in self._cache]
        self.misses = len(missing)
        for known in (self._old, self._unflushed() if self._aged else None):
            if known:
                found = {slot: known[slot] for slot in missing if slot in known}
                self._cache.update(found)
                missing = [slot for slot in missing if slot not in found]
        if self._packed:
            self._cache.update((slot, self._read(slot)) for slot in missing if slot in self._packed)
            missing = [slot for slot in missing if slot not in self._packed]
        if missing and not self.whole:  # else the store need not even be opened
            self._cache.update(zip(missing, self._read_many(missing), strict=False))

    def _load(self, slot: Any) -> Any:
        """Load the value of a slot into the cache and return it."""
        value = self._old.get(slot, MISSING) if self._old else MISSING
        if value is MISSING and self._aged:
            value = self._unflushed().get(slot, MISSING)
        if value is MISSING:
            value = self._read(slot)
        self.misses += 1
        self._cache[slot] = value
        return value

    def _current(self) -> Any:
        """Return the value of the current slot."""
        slot = self._context.slot
        try:
            return self._cache[slot]
        except KeyError:
            return self._load(slot)
        except TypeError as error:
            raise self._refuse() from error

    def _store(self, value: Any) -> None:
        """Set the value of the current slot."""
        raise NotImplementedError

    def _unflushed(self) -> dict[Any, Any]:
        """Return what was written in this round, by slot."""
        raise NotImplementedError

    # -- the store --

    def _read(self, slot: Any) -> Any:
        """Return the value of a slot in the accepted files."""
        data = self._packed.get(slot)
        if data is None:
            backend, path = self._backend, self._path(slot)  # which refuses a key of another subtask
            if not self.whole:
                data = backend.get(path) if len(path) <= backend.max_key else backend.get_long(path)
            if data is not None and not self.codec.immutable:
                self._packed[slot] = data
        try:
            return None if data is None else self.codec.decode(data)
        except Exception as error:
            raise self._unreadable(error) from error

    def _read_many(self, slots: list[Any]) -> list[Any]:
        """Return the values of slots in the store; an empty list if one slot needs the slow path."""
        try:
            paths, _ = self._paths(slots)
        except TypeError:
            return []  # a key of another subtask: the access itself will raise
        if max(map(len, paths), default=0) > self._backend.max_key:
            return []
        # Outside of the try: the first read brings up the store and has its own errors
        found = self._backend.get_many(paths)
        if not self.codec.immutable:
            self._packed.update((slot, data) for slot, data in zip(slots, found, strict=True) if data is not None)
        try:
            return self.codec.decode_all(found)
        except Exception as error:
            raise self._unreadable(error) from error

    def _paths(self, slots: list[Any]) -> tuple[list[bytes], Int64s]:
        """Return the canonical keys of many entries, and their groups. A TypeError if one belongs to another subtask."""
        heads: Any
        if self._context.scoped:
            keys = [split(slot)[0] for slot in slots]
            encoded, groups = encode_and_group(keys, self._backend.max_parallelism)
            tails = [namespace_bytes(split(slot)[1]) for slot in slots]
            prefixes: Any = map(self._prefixes.__getitem__, groups.tolist())
            heads = [prefix[:-1] + tail for prefix, tail in zip(prefixes, tails, strict=True)]
        else:
            encoded, groups = encode_and_group(slots, self._backend.max_parallelism)
            heads = map(self._prefixes.__getitem__, groups.tolist())
        lengths = map(LENGTHS.__getitem__, map(len, encoded))
        return list(map(b"".join, zip(heads, lengths, encoded, strict=True))), groups

    # -- the end of the round --

    def _touched(self) -> Iterable[Any]:
        return self._written()[0]

    def _written(self) -> tuple[list[Any], list[Any]]:
        """Slots and values of the entries to flush."""
        written = self._unflushed()
        return list(written), list(written.values())

    def flush(self, changes: Changes) -> None:
        slots, values = self._written()
        size = max(FLUSH_BLOCK, 32 * len(self._backend.groups))  # else the slices of the groups are too short
        for start in range(0, len(slots), size):
            self._flush_block(changes, slots[start : start + size], values[start : start + size])

    def _flush_block(self, changes: Changes, slots: list[Any], values: list[Any]) -> None:
        try:
            encoded = self.codec.encode_all(values)
        except StateFormatError as error:
            raise self._locate(error) from error
        if not self.codec.immutable:
            if self.whole and None in encoded:  # what was not in the files need not be deleted
                real = [data is not None or slot in self._packed for slot, data in zip(slots, encoded, strict=True)]
                slots, encoded = list(compress(slots, real)), list(compress(encoded, real))
            self._pack(slots, encoded)
        try:
            paths, groups = self._paths(slots)
        except TypeError:
            for slot in slots:
                self._path(slot)  # raises for the wrong one
            raise
        if paths:
            changes.add(paths, groups, encoded)

    def _pack(self, slots: list[Any], encoded: list[bytes | None]) -> None:
        """Keep the bytes of accepted entries; None: the entry is deleted."""
        if self._backend.cache_bytes:
            packed: dict[Any, Any] = self._packed
            packed.update(zip(slots, encoded, strict=True))
            if None in encoded:
                for slot in [slot for slot, data in zip(slots, encoded, strict=True) if data is None]:
                    packed.pop(slot, None)


class TrackedState(SingleState):
    """A state of mutable values: ``_changed`` records every write."""

    __slots__ = ("_changed",)

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._changed: dict[Any, Any] = {}

    def has_changes(self) -> bool:
        return bool(self._changed)

    def reset(self, keep: bool) -> None:
        super().reset(keep)
        self._changed.clear()

    def _store(self, value: Any) -> None:
        slot = self._context.slot
        try:
            self._cache[slot] = self._changed[slot] = value
        except TypeError as error:
            raise self._refuse() from error

    def store_all(self, values: dict[Any, Any]) -> None:
        """Set the values of many slots; None: the slot has no value."""
        self._cache.update(values)
        self._changed.update(values)

    def _unflushed(self) -> dict[Any, Any]:
        return self._changed

    # -- namespaces --

    def merge_namespaces(self, target: bytes, sources: Iterable[bytes]) -> None:
        """Merge the current key's values of some namespaces into the value of another namespace."""
        key, before = split(self._context.slot)
        merged = MISSING
        for namespace in (target, *sources):
            self._context.enter(key, namespace)
            value = self._current()
            if value is not None:
                self._store(None)
                merged = value if merged is MISSING else self._merged(merged, value)
        if merged is not MISSING:
            self._context.enter(key, target)
            self._store(merged)
        self._context.enter(key, before)

    def _merged(self, value: Any, other: Any) -> Any:
        """Merge two values."""
        raise NotImplementedError


def _measured(encoded: bytes) -> bytes:
    return LENGTHS[len(encoded)] + encoded


def weight(value: Any) -> int:
    """Return about how many bytes of memory a cached value takes."""
    size = sys.getsizeof(value)
    if isinstance(value, list | tuple | dict | set):
        inside = value.values() if isinstance(value, dict) else value
        size += len(value) * (ENTRY_BYTES + max(map(sys.getsizeof, islice(inside, 4)), default=0))
    return size
