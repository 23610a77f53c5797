"""Keyed states with one stored entry per key: value, list, reducing, aggregating. The path of every record.

A state works on a cache of the round: key -> value, None where there is none. A hit is a dict access; a miss reads the local
store. At the end of the round ``flush`` encodes what has changed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tidegate.common.errors import StateFormatError, TidegateError
from tidegate.state.codecs import Codec, decode_keys, encode_key
from tidegate.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from tidegate.state.interfaces import AggregatingState, ListState, ReducingState, State, ValueState
from tidegate.state.key_groups import encode_and_group
from tidegate.state.layout import LENGTHS, read_varint, state_head, state_prefixes

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

_hash = xxhash.xxh3_64_intdigest
_MISSING = object()
FLUSH_BLOCK = 8192
"""Entries that are encoded together: what a step makes is still in the processor's cache for the next."""


class Changes:
    """What a flush collects: for each key group ``[k, v, k, v, ...]`` with canonical keys; v None deletes."""

    __slots__ = ("deletes", "groups")

    def __init__(self, max_parallelism: int) -> None:
        self.groups: list[list[Any]] = [[] for _ in range(max_parallelism)]
        self.deletes = False


class Entries:
    """State entries of a file, in its order: canonical keys and values, None deletes."""

    __slots__ = ("_keys", "_values")

    def __init__(self, flat: list[Any]) -> None:
        self._keys: list[bytes] = flat[::2]
        self._values: list[bytes | None] = flat[1::2]

    def of(self, head: bytes) -> tuple[list[bytes], list[bytes | None]]:
        """Encoded keys and values of the entries of one state; ``head``: what is between group and key."""
        start = 2 + len(head)
        keys, values = self._keys, self._values
        mine = list(map(bytes.startswith, keys, repeat(head), repeat(2)))
        if not all(mine):
            keys, values = list(compress(keys, mine)), list(compress(values, mine))
        if max(map(len, keys), default=0) < start + 1 + 128:  # the length of the key takes one byte
            return list(map(itemgetter(slice(start + 1, None)), keys)), values
        return [key[read_varint(key, start)[1] :] for key in keys], values


class KeyedState(State):
    """What all keyed states share. One object per state and backend; it lives as long as the backend."""

    __slots__ = ("_backend", "_head", "_prefixes", "codec", "descriptor", "name")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        self.name = descriptor.name
        self.descriptor = descriptor
        self.codec = codec
        self._backend = backend
        self._head = state_head(descriptor.name)
        self._prefixes = state_prefixes(descriptor.name, backend.groups, backend.max_parallelism)

    @property
    def where(self) -> str:
        return f"state {self.name!r} of operator {self._backend.operator_name!r}"

    def has_changes(self) -> bool:
        """Whether a flush may find anything."""
        raise NotImplementedError

    def flush(self, changes: Changes) -> None:
        """Add the changes of the round."""
        raise NotImplementedError

    def reset(self, keep: bool) -> None:
        """Begin a round. ``keep``: what was flushed has been accepted, so what cannot change in place may stay cached."""
        raise NotImplementedError

    def kept(self) -> int:
        """How many values are cached that may stay for the next round."""
        return 0

    def learn(self, entries: Entries) -> None:
        """Cache entries of the files that were accepted since."""

    def _store_key(self, key: Any) -> bytes:
        """The canonical key of an entry; a prefix of it for maps."""
        encoded = encode_key(key)
        prefix = self._prefixes[_hash(encoded) % self._backend.max_parallelism]
        if prefix is None:
            raise self._backend.misrouted(key)
        return prefix + LENGTHS[len(encoded)] + encoded

    def _unreadable(self, error: Exception) -> StateFormatError:
        return StateFormatError(
            f"A stored value must be readable with the declared type, {self.codec.describe}.",
            where=self.where,
            found=f"{type(error).__name__}: {error}",
            cure="declare the type the state was written with, or start without this state",
        )

    def _refuse(self, error: TypeError) -> TidegateError:
        """The error for an access with no key, or with one that cannot be a key. Raised by the dict itself: hits pay nothing."""
        return self._backend.refuse_key(self.where, error)

    def _locate(self, error: StateFormatError) -> StateFormatError:
        return StateFormatError(error.rule, where=self.where, found=error.found, cure=error.cure)


class SingleState(KeyedState):
    """A state with one entry per key.

    ``_cache``: what this round has read or written. ``_retained``: what is known from the rounds before, where values are
    immutable and this process has also run those; their size does not matter to a round that has little to do.
    """

    __slots__ = ("_cache", "_retained", "misses")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._cache: dict[Any, Any] = {}
        self._retained: dict[Any, Any] = {}
        self.misses = 0

    def clear(self) -> None:
        self._store(None)

    def kept(self) -> int:
        return len(self._retained) + len(self._cache) if self.codec.immutable else 0

    def learn(self, entries: Entries) -> None:
        keys, values = entries.of(self._head)
        try:
            self._retain(zip(decode_keys(keys), self.codec.decode_all(values), strict=True))
        except Exception as error:
            raise self._unreadable(error) from error

    def flush(self, changes: Changes) -> None:
        keys, values = self._written()
        size = max(FLUSH_BLOCK, 32 * len(self._backend.groups))  # else the slices of the groups are too short to pay
        for start in range(0, len(keys), size):
            self._flush_block(changes, keys[start : start + size], values[start : start + size])

    def _flush_block(self, changes: Changes, keys: list[Any], values: list[Any]) -> None:
        try:
            encoded = self.codec.encode_all(values)
        except StateFormatError as error:
            raise self._locate(error) from error
        changes.deletes |= None in encoded
        try:
            paths, groups = self._paths(keys)
        except TypeError:
            for key in keys:
                self._store_key(key)  # tells which
            raise
        order = np.argsort(groups, kind="stable")
        positions, groups = order.tolist(), groups[order]
        flat: list[Any] = [None] * (2 * len(keys))
        flat[::2] = map(paths.__getitem__, positions)
        flat[1::2] = map(encoded.__getitem__, positions)
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()]
        for group, start, end in zip(groups[starts].tolist(), starts, [*starts[1:], len(keys)], strict=True):
            changes.groups[group] += flat[2 * start : 2 * end]

    def _paths(self, keys: list[Any]) -> tuple[list[bytes], npt.NDArray[np.uint16]]:
        """The canonical keys of many entries, and their groups. A TypeError if one belongs to another subtask."""
        encoded, groups = encode_and_group(keys, self._backend.max_parallelism)
        prefixes: Any = map(self._prefixes.__getitem__, groups.tolist())
        lengths = map(LENGTHS.__getitem__, map(len, encoded))
        return list(map(b"".join, zip(prefixes, lengths, encoded, strict=True))), groups

    def reset(self, keep: bool) -> None:
        if keep and self.codec.immutable and len(self._retained) + len(self._cache) <= self._backend.cache_entries:
            self._retained.update(self._cache)
        else:
            self._retained.clear()
        self._cache.clear()
        self.misses = 0

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read the entries of many keys at once: cheaper than miss by miss, by the calls of Python saved."""
        cache, retained = self._cache, self._retained
        missing = [key for key in set(keys) if key not in cache]
        self.misses = len(missing)
        if retained:
            known = {key: retained[key] for key in missing if key in retained}
            self._remember(known)
            missing = [key for key in missing if key not in known]
        self._remember(dict(zip(missing, self._read_many(missing), strict=False)))

    def _read_many(self, keys: list[Any]) -> list[Any]:
        """The values of keys in the store; none at all if a key needs more than the fast path."""
        try:
            paths, _ = self._paths(keys)
        except TypeError:
            return []  # a key of another subtask: the access itself will tell
        if max(map(len, paths), default=0) > self._backend.max_key:
            return []
        try:
            return self.codec.decode_all(list(map(self._backend.get, paths)))
        except Exception as error:
            raise self._unreadable(error) from error

    def _load(self) -> Any:
        """The value of the current key, from what was retained or from the store, into the cache."""
        key = self._backend.key
        value = self._retained.get(key, _MISSING)
        if value is _MISSING:
            value = self._read(key)
        self.misses += 1
        self._cache[key] = value
        return value

    def _read(self, key: Any) -> Any:
        """The value of a key in the store."""
        backend, encoded = self._backend, encode_key(key)
        prefix = self._prefixes[_hash(encoded) % backend.max_parallelism]
        if prefix is None:
            raise backend.misrouted(key)
        path = prefix + LENGTHS[len(encoded)] + encoded
        data = backend.get(path) if len(path) <= backend.max_key else backend.get_long(path)
        try:
            return None if data is None else self.codec.decode(data)
        except Exception as error:
            raise self._unreadable(error) from error

    def _current(self) -> Any:
        """The value of the current key."""
        try:
            return self._cache[self._backend.key]
        except KeyError:
            return self._load()
        except TypeError as error:
            raise self._refuse(error) from error

    def _store(self, value: Any) -> None:
        """Set the value of the current key."""
        raise NotImplementedError

    def _written(self) -> tuple[list[Any], list[Any]]:
        """Keys and values of the entries to flush."""
        raise NotImplementedError

    def _remember(self, entries: dict[Any, Any]) -> None:
        """Cache entries as they are in the store."""
        self._cache.update(entries)

    def _retain(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Cache entries between two rounds."""
        self._retained.update(entries)


class TrackedState(SingleState):
    """For values that may be changed in place: every write is remembered as such in ``_changed``."""

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
        try:
            self._cache[self._backend.key] = self._changed[self._backend.key] = value
        except TypeError as error:
            raise self._refuse(error) from error

    def _written(self) -> tuple[list[Any], list[Any]]:
        return list(self._changed), list(self._changed.values())


class KeyedValueState(TrackedState, ValueState[Any]):
    __slots__ = ()

    value = SingleState._current
    update = TrackedState._store


class _Cells(dict[Any, Any]):
    """The cache of a state that reads what it misses: ``cells[key]`` is the state's value of the current key."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[], Any]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, key: Any) -> Any:
        return self._load()


class ImmutableValueState(SingleState, ValueState[Any]):
    """For numbers, texts and bytes: what was read or written stays in memory over rounds.

    ``cells``: the values of all keys known to this process; ``wrote``: those written in this round. Generated loops
    (operators/codegen.py) use the dicts themselves: for the current key ``cells[key]`` is ``value()``, and
    ``cells[key] = wrote[key] = x`` is ``update(x)``. So is ``cells[key] = x`` if the key is in a column given to ``note``.
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
        key = self._backend.key
        try:
            self.cells[key] = self.wrote[key] = value
        except TypeError as error:
            raise self._refuse(error) from error

    _store = update

    def has_changes(self) -> bool:
        return bool(self.wrote or self._noted)

    def reset(self, keep: bool) -> None:
        if not keep or len(self.cells) > self._backend.cache_entries:
            self.cells.clear()
        self.wrote.clear()
        self._noted.clear()
        self.misses = 0

    def prefetch(self, keys: Iterable[Any]) -> None:
        missing = [key for key in set(keys) if key not in self.cells]
        self.misses = len(missing)
        self._remember(dict(zip(missing, self._read_many(missing), strict=False)))

    def _load(self) -> Any:
        key = self._backend.key
        value = self.cells[key] = self._read(key)
        self.misses += 1
        return value

    def _written(self) -> tuple[list[Any], list[Any]]:
        if not self._noted:
            return list(self.wrote), list(self.wrote.values())
        keys = distinct(self._noted)
        keys += self.wrote.keys() - set(keys) if self.wrote else ()
        return keys, list(map(self.cells.__getitem__, keys))

    def _retain(self, entries: Iterable[tuple[Any, Any]]) -> None:
        self.cells.update(entries)


def distinct(columns: list[npt.NDArray[Any]]) -> list[int]:
    """The numbers in some columns, each once. Those that lie close together are ticked off, others are sorted."""
    low, high = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    if high - low > 8 * sum(map(len, columns)):
        return list(map(int, np.unique(np.concatenate(columns)).tolist()))
    seen = np.zeros(high - low + 1, np.bool_)
    for column in columns:
        seen[column.astype(np.int64) - low] = True
    found: list[int] = (np.flatnonzero(seen) + low).tolist()
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
