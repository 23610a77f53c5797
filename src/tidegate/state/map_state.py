"""Keyed map state: one stored entry per map key, so that reading one entry of a large map reads no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.common.errors import StateFormatError
from tidegate.state.codecs import Codec, decode_key, encode_key
from tidegate.state.descriptors import StateDescriptor
from tidegate.state.interfaces import MapState
from tidegate.state.keyed import Changes, KeyedState

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

ABSENT = object()
"""In a cached map: known not to be there. A map may hold None."""


class CachedMap(dict[Any, Any]):
    """What is known of one key's map: map key -> value or ``ABSENT``.

    ``complete``: what is not here is not in the store either. ``cleared``: the store's entries are to be deleted.
    """

    __slots__ = ("changed", "cleared", "complete", "prefix")

    def __init__(self, prefix: bytes) -> None:
        super().__init__()
        self.prefix = prefix
        self.changed: set[Any] = set()
        self.complete = False
        self.cleared = False


class KeyedMapState(KeyedState, MapState[Any, Any]):
    __slots__ = ("_maps",)

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._maps: dict[Any, CachedMap] = {}

    def get(self, key: Any) -> Any:
        try:
            value = self._maps[self._backend.key][key]
        except KeyError:
            value = self._load(key)
        except TypeError as error:
            raise self._refuse(error) from error
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        entries = self._current()
        entries[key] = value
        entries.changed.add(key)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        entries, added = self._current(), dict(dict_value)  # PyFlink 2.3 takes pairs only, in process mode
        entries.update(added)
        entries.changed.update(added)

    def remove(self, key: Any) -> None:
        self.put(key, ABSENT)

    def contains(self, key: Any) -> bool:
        entries = self._current()
        return (entries[key] if key in entries else self._load(key)) is not ABSENT

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, value) for key, value in self._all().items() if value is not ABSENT]

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
        return any(entries.changed or entries.cleared for entries in self._maps.values())

    def flush(self, changes: Changes) -> None:
        for entries in self._maps.values():
            if entries.cleared:
                self._flush_cleared(entries, changes)
            if entries.changed:
                self._flush_changed(entries, changes)

    def reset(self, keep: bool) -> None:
        self._maps.clear()

    def _current(self) -> CachedMap:
        """The current key's map, as far as it is known."""
        try:
            return self._maps[self._backend.key]
        except KeyError:
            key = self._backend.key
            entries = self._maps[key] = CachedMap(self._store_key(key))
            return entries
        except TypeError as error:
            raise self._refuse(error) from error

    def _load(self, key: Any) -> Any:
        """One entry from the store, into the cache."""
        entries, backend = self._current(), self._backend
        data = None
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
        """The current key's map with everything the store has."""
        entries = self._current()
        if not entries.complete:
            length = len(entries.prefix)
            for path, data in self._backend.scan(entries.prefix):
                key = decode_key(path[length:])
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
            encoded = self.codec.encode_all(values, ABSENT)
        except StateFormatError as error:
            raise self._locate(error) from error
        for key, data in zip(entries.changed, encoded, strict=True):
            bucket += (entries.prefix + encode_key(key), data)
            changes.deletes |= data is None
