"""States of an operator's subtask without a key: lists, and the broadcast maps that are the same in all subtasks.

The last accepted round has left a ``StoredPart`` for each state. A few bytes are in the part itself; more goes into files of
``shared/``, which later rounds refer to as long as they do not change. So a large state is not written with every round, and is
not in the metadata.

- A **list** is rewritten when it has changed. An element is encoded when it is added: later changes of the object do not count.
- A **broadcast map** is a list of files, each with the changes since the previous one, followed by the latest few changes in the
part. In memory it is two dicts: ``_filed``, exactly the contents of ``_files``, and over it ``_recent``, which is made for every
round. File names are never reused, so ``_filed`` is right whenever the new list begins with the old list, whatever happened to the
rounds in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from tidegate.base.errors import StateAccessError, StateFormatError
from tidegate.base.files import Files
from tidegate.state.codecs import codec_for
from tidegate.state.descriptors import (
    BroadcastState,
    ListState,
    MapStateDescriptor,
    StateDescriptor,
    expect_descriptor,
    stored_type,
)
from tidegate.state.keys import encode_key, form_of, key_identity, visible
from tidegate.state.layout import GROUP_BYTES, STATE
from tidegate.state.refs import KeyGroupRange, Misfits, StateFile, StateSchema, schema_mismatch
from tidegate.state.segments import SegmentWriter, read
from tidegate.state.snapshot import OperatorSnapshot, Redistribution, StoredPart

MOST_INLINE = 4096
"""Most bytes of a state in the part itself."""
MOST_FILES = 8
"""Most files of a broadcast map before they are merged. They are also merged when the later files exceed the first."""

_GROUPS = KeyGroupRange(0, 0)
_GROUP = GROUP_BYTES[0]
_pack = msgspec.msgpack.Encoder().encode
_unpack_change: Callable[[bytes], tuple[bytes, bytes | None]] = msgspec.msgpack.Decoder(
    tuple[bytes, bytes | None]
).decode

_NAMED = "state "
"""Before the name of a state in the name of its part."""

Write = Callable[[Iterable[tuple[bytes, bytes | None]]], StateFile]
"""Writes entries to a new file."""


class OperatorStates:
    """The operator's own states. In every round: ``restore``, then functions use their states, then ``parts`` (step 5).

    States that no function has registered stay as they are.
    """

    def __init__(self, files: Files, operator_name: str, *, compressed: bool = False) -> None:
        self._files, self._operator_name, self._compressed = files, operator_name, compressed
        self.misfits = Misfits(operator_name)
        self._states: dict[str, OperatorListState | OperatorBroadcastState] = {}
        self._parts: dict[str, StoredPart] = {}
        self._left: dict[str, StoredPart] | None = None
        self._used = False

    # -- a round --

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        """Return whether the snapshot is what this object left in the last round: then the function's fields are right."""
        return not self._used or self._left == snapshot.stored()

    def restore(self, snapshot: OperatorSnapshot) -> None:
        self._used, self._left, self._parts = True, None, snapshot.stored()
        for name, state in self._states.items():
            state.restore(self._parts.get(name))

    def parts(self, path: str, version: str) -> dict[str, StoredPart]:
        """Return the parts of the snapshot. ``path``: the beginning of the names of new files."""
        parts = dict(self._parts)
        for name in parts.keys() - self._states.keys():
            if not _is_own(parts[name]):  # in another directory, or a share
                self._states[name] = self._unasked(parts[name])
        for number, (name, state) in enumerate(self._states.items()):
            parts[name] = state.part(partial(self._write, f"{path}-{number}.state", version))
        self._left = parts
        return parts

    def _write(self, path: str, version: str, entries: Iterable[tuple[bytes, bytes | None]]) -> StateFile:
        with SegmentWriter(self._files, path, compressed=self._compressed) as writer:
            flat = [part for key, value in entries for part in (_GROUP + key, value)]
            writer.add(STATE, flat, deletes=None in flat)
            return writer.finish(version=version, groups=_GROUPS)

    # -- states --

    def list_state(self, descriptor: Any, how: Redistribution) -> OperatorListState:
        state = self._state(descriptor, "list", how)
        assert isinstance(state, OperatorListState)
        return state

    def broadcast_state(self, descriptor: Any) -> OperatorBroadcastState:
        state = self._state(descriptor, "map", Redistribution.BROADCAST)
        assert isinstance(state, OperatorBroadcastState)
        return state

    def _state(self, descriptor: Any, kind: str, how: Redistribution) -> OperatorListState | OperatorBroadcastState:
        descriptor = expect_descriptor(descriptor, self._operator_name)
        if descriptor.kind != kind:
            raise StateAccessError(
                f"The descriptor of a {'broadcast' if kind == 'map' else 'list'} state is not a {kind} state descriptor.",
                where=f"operator {self._operator_name!r}",
                found=repr(descriptor),
            )
        schema, name = _schema(descriptor), _NAMED + descriptor.name
        known = self._states.get(name)
        if known is None:
            part = self._parts.get(name)
            if self._refuse_other(schema, how, part):
                part = None  # it cannot be read
            known = self._states[name] = self._make(schema, descriptor, how, part)
        elif known.schema != schema or known.how is not how:
            raise StateAccessError(
                "Two states with the same name differ in kind, types or redistribution.",
                where=f"state {descriptor.name!r} of operator {self._operator_name!r}",
                found=f"{schema} as {how.value}, registered before as {known.schema} as {known.how.value}",
                cure="give the second state another name",
            )
        return known

    def check(self, descriptor: StateDescriptor, how: Redistribution) -> None:
        """Check a state that is known before a function registers it."""
        schema = _schema(descriptor)
        self._refuse_other(schema, how, self._parts.get(_NAMED + schema.name))

    def _refuse_other(self, schema: StateSchema, how: Redistribution, part: StoredPart | None) -> bool:
        """Return whether the state is declared differently from how it is stored, to be reported later."""
        if part is None:
            return False
        problem = schema_mismatch([part.schema], schema)
        if problem is None and part.redistribution is not how:
            problem = f"state {schema.name!r} is stored as {part.redistribution.value} and declared as {how.value}"
        if problem is not None:
            self.misfits.found(problem)
        return problem is not None

    def _make(
        self, schema: StateSchema, descriptor: StateDescriptor, how: Redistribution, part: StoredPart | None
    ) -> OperatorListState | OperatorBroadcastState:
        made: OperatorListState | OperatorBroadcastState
        if isinstance(descriptor, MapStateDescriptor):
            made = OperatorBroadcastState(self._files, schema, how, descriptor)
        else:
            made = OperatorListState(self._files, schema, how, descriptor)
        made.restore(part)
        return made

    def _unasked(self, part: StoredPart) -> OperatorListState | OperatorBroadcastState:
        """Return a state that must be written again although its types are unknown here."""
        is_map = part.redistribution is Redistribution.BROADCAST
        descriptor: Any = (
            MapStateDescriptor(part.schema.name, None, None) if is_map else StateDescriptor(part.schema.name, None)
        )
        return self._make(part.schema, descriptor, part.redistribution, part)


class _OperatorState:
    """The base of both kinds. ``schema``, ``how``: the first declaration."""

    def __init__(self, files: Files, schema: StateSchema, how: Redistribution, descriptor: StateDescriptor) -> None:
        self._storage, self.schema, self.how = files, schema, how
        self._codec = codec_for(descriptor.type_info)
        self._part: StoredPart | None = None

    def _encode(self, value: Any) -> bytes:
        data = self._codec.encode_all([value], _ABSENT)[0]
        assert data is not None
        return data

    def _decode(self, data: bytes) -> Any:
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise StateFormatError(
                f"A stored value cannot be read with the declared type, {self._codec.describe}.",
                where=f"state {self.schema.name!r}",
                found=f"{type(error).__name__}: {error}",
                cure="declare the type the state was written with, or start without this state",
            ) from error

    def _read(self, file: StateFile) -> Iterator[tuple[bytes, bytes | None]]:
        for block in read(self._storage, file, _GROUPS):
            yield from zip((key[2:] for key in block.flat[::2]), block.flat[1::2], strict=True)


class OperatorListState(_OperatorState, ListState[Any]):
    """``_stored``: the contents of its part, None until they are read. ``_items``: the current list, if it may differ."""

    _stored: list[bytes] | None = None
    _items: list[bytes] | None = None

    def restore(self, part: StoredPart | None) -> None:
        if part is None or part != self._part:
            self._part, self._stored = part, None
        self._items = None

    def get(self) -> list[Any]:
        return list(map(self._decode, self._now()))

    def add(self, value: Any) -> None:
        self._changed().append(self._encode(value))

    def add_all(self, values: Iterable[Any]) -> None:
        self._changed().extend(map(self._encode, values))

    def update(self, values: Iterable[Any]) -> None:
        self._items = list(map(self._encode, values))

    def clear(self) -> None:
        self._items = []

    def part(self, write: Write) -> StoredPart:
        items = self._now()
        if self._part is None or not _is_own(self._part) or items != self._load():
            if sum(map(len, items)) <= MOST_INLINE:
                self._part = StoredPart(self.how, self.schema, (), tuple(items))
            else:
                file = write((n.to_bytes(8, "big"), item) for n, item in enumerate(items))
                self._part = StoredPart(self.how, self.schema, (file,))
            self._stored = items
        self._items = None
        return self._part

    def _now(self) -> list[bytes]:
        return self._load() if self._items is None else self._items

    def _changed(self) -> list[bytes]:
        if self._items is None:
            self._items = list(self._load())
        return self._items

    def _load(self) -> list[bytes]:
        if self._stored is None:
            part = self._part
            if part is None:
                self._stored = []
            else:
                filed = [item for file in part.files for _, item in self._read(file) if item is not None]
                self._stored = [*filed[part.share[0] :: part.share[1]], *part.items]
        return self._stored


class OperatorBroadcastState(_OperatorState, BroadcastState[Any, Any]):
    """Keys are in the engine's form. Values are encoded; immutable values are kept next to their bytes."""

    def __init__(self, files: Files, schema: StateSchema, how: Redistribution, descriptor: MapStateDescriptor) -> None:
        super().__init__(files, schema, how, descriptor)
        self._identity = key_identity(descriptor.key_type_info)
        self._files: tuple[StateFile, ...] = ()
        self._filed: dict[Any, _Entry] = {}
        self._recent: dict[Any, _Entry | None] = {}
        self._is_changed = False

    # -- for user functions --

    def get(self, key: Any) -> Any:
        entry = self._entry(key)
        return None if entry is None else self._value(entry)

    def contains(self, key: Any) -> bool:
        return self._entry(key) is not None

    def put(self, key: Any, value: Any) -> None:
        self._change(key, self._encode(value))

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        if self.contains(key):
            self._change(key, None)

    def clear(self) -> None:
        self._files, self._filed, self._recent, self._is_changed = (), {}, {}, True

    def items(self) -> list[tuple[Any, Any]]:
        return [(visible(key), self._value(entry)) for key, entry in self._entries()]

    def keys(self) -> list[Any]:
        return [visible(key) for key, _ in self._entries()]

    def values(self) -> list[Any]:
        return [self._value(entry) for _, entry in self._entries()]

    def is_empty(self) -> bool:
        return next(self._entries(), None) is None

    # -- inside --

    def _entry(self, key: Any) -> _Entry | None:
        form = self._identity(key)
        return self._recent[form] if form in self._recent else self._filed.get(form)

    def _entries(self) -> Iterator[tuple[Any, _Entry]]:
        recent = self._recent
        for form, entry in self._filed.items():
            if form not in recent:
                yield form, entry
        for form, changed in recent.items():
            if changed is not None:
                yield form, changed

    def _change(self, key: Any, data: bytes | None) -> None:
        form = self._identity(key)
        self._recent[form] = None if data is None else self._made(data)
        self._is_changed = True

    def _made(self, data: bytes) -> _Entry:
        value = self._decode(data)
        return data, value if _cannot_change(value) else _DECODED_EACH_TIME

    def _value(self, entry: _Entry) -> Any:
        data, value = entry
        return self._decode(data) if value is _DECODED_EACH_TIME else value

    # -- a round --

    def restore(self, part: StoredPart | None) -> None:
        files = part.files if part is not None else ()
        known = len(self._files)
        if files[:known] != self._files:
            self._filed, known = {}, 0
        for file in files[known:]:
            for key, data in self._read(file):
                self._apply(self._filed, key, data)
        self._part, self._files, self._is_changed = part, files, False
        self._recent = {}
        for item in part.items if part is not None else ():
            key, data = _unpack_change(item)
            self._recent[form_of(key)] = None if data is None else self._made(data)

    def _apply(self, entries: dict[Any, _Entry], key: bytes, data: bytes | None) -> None:
        if data is None:
            entries.pop(form_of(key), None)
        else:
            entries[form_of(key)] = self._made(data)

    def part(self, write: Write) -> StoredPart:
        if self._part is None or self._is_changed or not _is_own(self._part):
            if any(file.root for file in self._files):
                self._merge(write)
            changes = self._changes()
            items = tuple(map(_pack, changes))
            if sum(map(len, items)) > MOST_INLINE:
                self._file(write, changes)
                items = ()
            self._part, self._is_changed = StoredPart(self.how, self.schema, self._files, items), False
        return self._part

    def _changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return the recent changes, without removals of keys that the files do not have."""
        needed = ((form, entry) for form, entry in self._recent.items() if entry is not None or form in self._filed)
        return [(encode_key(form), None if entry is None else entry[0]) for form, entry in needed]

    def _file(self, write: Write, changes: list[tuple[bytes, bytes | None]]) -> None:
        more = len(changes) + sum(file.entries for file in self._files[1:])  # not bytes: files may be compressed
        if len(self._files) == MOST_FILES or (self._files and more > self._files[0].entries):
            self._merge(write)
        else:
            self._filed, self._files, self._recent = dict(self._entries()), (*self._files, write(changes)), {}

    def _merge(self, write: Write) -> None:
        entries = dict(self._entries())
        file = write((encode_key(form), data) for form, (data, _) in entries.items())
        self._filed, self._files, self._recent = entries, (file,), {}


_Entry = tuple[bytes, Any]
"""The value's bytes, and the value if it is immutable."""
_DECODED_EACH_TIME: Any = object()
_ABSENT: Any = object()
_ATOMS = frozenset({int, str, float, bool, bytes, type(None)})


def _cannot_change(value: Any) -> bool:
    return type(value) in _ATOMS or (type(value) is tuple and all(map(_cannot_change, value)))


def _is_own(part: StoredPart) -> bool:
    """Return whether a new snapshot can refer to the part as it is."""
    return part.share == (0, 1) and not any(file.root for file in part.files)


def _schema(descriptor: StateDescriptor) -> StateSchema:
    key_type = codec_for(descriptor.key_type_info).describe if isinstance(descriptor, MapStateDescriptor) else ""
    return StateSchema(descriptor.name, descriptor.kind, stored_type(descriptor), key_type)
