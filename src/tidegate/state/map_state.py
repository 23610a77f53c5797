"""Keyed map state: one stored entry per map key, so that reading an entry of a large map reads no other entry.

Map keys have the same identity as keys (``keys.py``): their bytes decide. The caches hold them in the engine's form.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.base.errors import ArgumentTypeError, StateFormatError
from tidegate.state.codecs import Codec
from tidegate.state.descriptors import MapStateDescriptor
from tidegate.state.interfaces import MapState
from tidegate.state.key_types import key_identity
from tidegate.state.keys import encode_key, form_of, visible
from tidegate.state.single import ENTRY_BYTES, Changes, KeyedState, weight

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

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
