"""State of slices of time: for each slice the values of many keys, so that a window that ends for all keys finds them together.

Entries are stored as those of a value state in the namespace of the slice. Only the cache differs: a dict for each slice,
``SliceCells``, which generated loops use directly, and which knows whether it has all keys of the slice. A slice that begins and
ends in one round never touches the store.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tidegate.base.errors import StateFormatError
from tidegate.state.codecs import Codec, TypeInfo
from tidegate.state.descriptors import StateDescriptor
from tidegate.state.key_groups import encode_and_group, group_of
from tidegate.state.keys import encode_form, forms_of
from tidegate.state.layout import GROUP_BYTES, LENGTHS, namespace_bytes, read_varint
from tidegate.state.single import ENTRY_BYTES, Changes, Entries, KeyedState

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend

_START = struct.Struct(">q")


class SliceStateDescriptor(StateDescriptor):
    """Describes a sliced state. ``type_info``: the type of the values; None: they are pickled."""

    kind = "slices"

    def __init__(self, name: str, value_type_info: TypeInfo | None) -> None:
        super().__init__(name, value_type_info)


class SliceCells(dict[Any, Any]):
    """The values of one slice that this round has read or written, by key in the engine's form; None: no value. ``cells[key]``
    reads.

    ``known``: values of the store that were read or are cached; ``complete``: these are all.
    """

    __slots__ = ("_state", "complete", "known", "namespace")

    def __init__(self, state: SlicedState, namespace: bytes, complete: bool) -> None:
        super().__init__()
        self._state, self.namespace, self.complete = state, namespace, complete
        self.known: dict[Any, Any] = {}

    def __missing__(self, key: Any) -> Any:
        value = self.known.get(key)
        if value is None:
            if self.complete:
                return None
            value = self._state.read(self.namespace, key)
            if value is None:
                return None
            self.known[key] = value
        self[key] = value  # the caller may change it in place
        return value

    def everything(self) -> dict[Any, Any]:
        """Return the values of all keys. The caller must not change them."""
        self.look_up_all()
        return {**self.known, **self} if self.known else self

    def look_up_all(self) -> None:
        """Load all values of the store that are not known yet."""
        if not self.complete:
            self.known = {**self._state.scan(self.namespace), **self.known}
            self.complete = True


class SlicedState(KeyedState):
    """``cells`` returns the dict of a slice, ``drop`` removes the slice. Between rounds only immutable values stay in memory, as
    for every state (``single.py``)."""

    __slots__ = ("_deleted", "_slices")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._slices: dict[int, SliceCells] = {}
        self._deleted: dict[int, set[Any]] = {}
        """Keys of the store in slices that this round has dropped."""

    def cells(self, start: int, *, stored: bool) -> SliceCells:
        """Return the slice that begins at a time. ``stored``: the files may contain entries of it."""
        found = self._slices.get(start)
        if found is None:
            complete = not stored or start in self._deleted
            found = self._slices[start] = SliceCells(self, _START.pack(start), complete)
        return found

    def drop(self, start: int, *, stored: bool) -> None:
        """Remove a slice that has ended."""
        cells = self.cells(start, stored=stored)
        cells.look_up_all()
        if cells.known:
            self._deleted.setdefault(start, set()).update(cells.known)
        del self._slices[start]

    def keep_only(self, starts: Collection[int]) -> None:
        """Forget the slices of which the accepted files have no entries."""
        self._slices = {start: cells for start, cells in self._slices.items() if start in starts}

    def clear(self) -> None:
        raise NotImplementedError

    # -- the store --

    def read(self, namespace: bytes, key: Any) -> Any:
        backend, encoded = self._backend, encode_form(key)
        head = self._prefixes[group_of(key, backend.max_parallelism, encoded)]
        if head is None:
            raise backend.misrouted(key)
        path = head[:-1] + namespace_bytes(namespace) + LENGTHS[len(encoded)] + encoded
        data = backend.get(path) if len(path) <= backend.max_key else backend.get_long(path)
        return None if data is None else self._decode(data)

    def scan(self, namespace: bytes) -> dict[Any, Any]:
        """The values of all keys that the store has in a slice."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        groups, tail = self._backend.groups, self._head[:-1] + namespace_bytes(namespace)
        start = 2 + len(tail)
        for group in range(groups.first, groups.last + 1):
            for path, data in self._backend.scan(GROUP_BYTES[group] + tail):
                keys.append(path[start + 1 if path[start] < 128 else read_varint(path, start)[1] :])
                values.append(data)
        try:
            return dict(zip(forms_of(keys), self.codec.decode_all(values), strict=True))
        except Exception as error:
            raise self._unreadable(error) from error

    def _decode(self, data: bytes) -> Any:
        try:
            return self.codec.decode(data)
        except Exception as error:
            raise self._unreadable(error) from error

    # -- rounds --

    def has_changes(self) -> bool:
        return bool(self._deleted) or any(self._slices.values())

    def flush(self, changes: Changes) -> None:
        for start, gone in self._deleted.items():
            keys = list(gone.difference(self._slices.get(start, ())))
            if keys:
                changes.add(*self._paths(_START.pack(start), keys), [None] * len(keys))
        for cells in self._slices.values():
            if cells:
                self._flush_slice(changes, cells)
                if self.codec.immutable:
                    cells.known.update(cells)
                    cells.clear()

    def _flush_slice(self, changes: Changes, cells: SliceCells) -> None:
        keys, values = list(cells), list(cells.values())
        try:
            encoded = self.codec.encode_all(values)
        except StateFormatError as error:
            raise self._locate(error) from error
        changes.add(*self._paths(cells.namespace, keys), encoded)

    def _paths(self, namespace: bytes, keys: list[Any]) -> tuple[list[bytes], Any]:
        """Canonical keys of entries in a slice, and their groups."""
        encoded, groups = encode_and_group(keys, self._backend.max_parallelism)
        tail = self._head[:-1] + namespace_bytes(namespace)
        owned = self._backend.groups
        if len(groups) and not (owned.first <= int(groups.min()) and int(groups.max()) <= owned.last):
            wrong = next(key for key, group in zip(keys, groups.tolist(), strict=True) if group not in owned)
            raise self._backend.misrouted(wrong)
        heads = [GROUP_BYTES[group] + tail for group in groups.tolist()]
        lengths = map(LENGTHS.__getitem__, map(len, encoded))
        return list(map(b"".join, zip(heads, lengths, encoded, strict=True))), groups

    def reset(self, keep: bool) -> None:
        if not (keep and self.codec.immutable and self._backend.cache_bytes):
            self._slices.clear()
        self._deleted.clear()

    def cached(self) -> int:
        return sum(len(cells.known) for cells in self._slices.values())

    def learn(self, entries: Entries) -> None:
        slots, values = entries.scoped(self._head)
        for (key, namespace), value in zip(slots, self.codec.decode_all(values), strict=True):
            cells = self._slices.get(_START.unpack(namespace)[0])
            if cells is not None:
                cells.known[key] = value

    def young_bytes(self) -> int:
        return self.cached() * 2 * ENTRY_BYTES

    def age(self) -> None:
        for cells in self._slices.values():
            if cells.known:
                cells.known = {}
                cells.complete = False
