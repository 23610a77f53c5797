"""Entries of state files as rows, and rows as entries, by a state's metadata alone, without the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from tidegate.base.arguments import shown
from tidegate.base.errors import PickleRefusedError, StateFormatError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.common.type_texts import parse_type
from tidegate.state.codecs import Codec, TypeInfo, codec_for, expiring, list_codec_for
from tidegate.state.key_groups import encode_and_group
from tidegate.state.keys import KeyIdentity, decode_key, encode_key, key_identity
from tidegate.state.layout import (
    EVENT,
    GROUP_BYTES,
    LENGTHS,
    PROCESSING,
    STATE,
    TIME_SHIFT,
    TIMERS,
    namespace_bytes,
    read_varint,
    state_head,
    time_bytes,
    timer_key,
)
from tidegate.state.materialize import last_entries, sorted_flat
from tidegate.state.namespaces import SLICES, read_namespace, write_namespace
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema
from tidegate.state.segments import SegmentWriter, read
from tidegate.state.snapshot import KeyedPart, Redistribution, StoredPart

_unpack_change: Callable[[bytes], tuple[bytes, bytes | None]] = msgspec.msgpack.Decoder(
    tuple[bytes, bytes | None]
).decode

ENTRIES_PER_FILE = 200_000
"""Most rows in memory while state is written."""


class StateRow(NamedTuple):
    """One entry of a keyed state. ``map_key``: of a map state; ``expires_ms``: of a state with time to live.

    ``namespace``: see ``namespaces.py``; None where there is none.
    """

    key: Any
    value: Any
    namespace: Any = None
    map_key: Any = None
    expires_ms: int | None = None


class TimerRow(NamedTuple):
    """A timer. ``domain``: event or processing."""

    key: Any
    time_ms: int
    domain: str
    namespace: Any = None


_SHOWN_BYTES = 32


class Unreadable:
    """Represents a pickled key or value that is not loaded: its class cannot be imported here, or pickles are refused."""

    __slots__ = ("data", "reason")

    def __init__(self, data: bytes, reason: str) -> None:
        self.data, self.reason = data, reason

    def __repr__(self) -> str:
        start = self.data[:_SHOWN_BYTES].hex() + ("..." if len(self.data) > _SHOWN_BYTES else "")
        return f"<{len(self.data)} pickled bytes ({self.reason}): {start}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unreadable) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


# -- reading -------------------------------------------------------------------------------------------------------------


def scan(
    files: Files, part: KeyedPart, groups: KeyGroupRange | None = None
) -> Iterator[tuple[int, dict[bytes, bytes | None]]]:
    """Yield the entries of a part, table by table and group by group. Memory: one key group, and some blocks of each file."""
    clip = part.groups if groups is None else part.groups.intersect(groups)
    if clip is not None:
        yield from last_entries(files, list(part.files), clip)


class StateEntries:
    """Decodes one keyed state. ``now_ms``: skip entries that have expired by then; None: skip none."""

    def __init__(self, schema: StateSchema, windows: str = "", now_ms: int | None = None) -> None:
        self.schema, self._now_ms = schema, now_ms
        self._windows = windows or (SLICES if schema.kind == "slices" else "")
        self._head = state_head(schema.name)[:-1]
        self._is_map, self._expires = schema.kind == "map", bool(schema.ttl_ms)
        self._decode = _codec(schema.kind, parse_type(schema.type), self._expires).decode

    def __reduce__(self) -> tuple[Any, ...]:  # tasks that read a part of the state get it
        return StateEntries, (self.schema, self._windows, self._now_ms)

    def of(self, entries: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        """Yield this state's entries that are not deleted: the bytes after group and name, and the value."""
        head, start = self._head, 2 + len(self._head)
        for path, data in entries.items():
            if data is not None and path.startswith(head, 2):
                yield path[start:], data

    def rows(self, entries: dict[bytes, bytes | None]) -> Iterator[StateRow]:
        for place, data in self.of(entries):
            row = self.row(place, data)
            if row is not None:
                yield row

    def row(self, place: bytes, data: bytes) -> StateRow | None:
        """Return a row; None if it has expired."""
        namespace, key, map_key = split_place(place)
        value, expires = self._value(data), None
        if self._expires and not isinstance(value, Unreadable):
            value, expires = value
            if self._now_ms is not None and expires <= self._now_ms:
                return None
            if self.schema.kind == "list":
                value = [item for moment, item in value if self._now_ms is None or moment > self._now_ms]
        return StateRow(
            readable(key),
            value,
            read_namespace(self._windows, namespace),
            readable(map_key) if self._is_map else None,
            expires,
        )

    def _value(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            if self.schema.type == "pickle":
                return Unreadable(data, _reason(error))
            raise StateFormatError(
                f"A stored value cannot be read with its type, {self.schema.type}.",
                where=f"state {self.schema.name!r}",
                found=f"{type(error).__name__}: {error}",
            ) from error


def timers_in(entries: Iterable[bytes], windows: str = "") -> Iterator[TimerRow]:
    """Yield the timers of entries of the table of timers."""
    for path in entries:
        start = 12 + path[11]
        time = int.from_bytes(path[3:11], "big") - TIME_SHIFT
        domain = "processing" if path[2] else "event"
        yield TimerRow(readable(path[start:]), time, domain, read_namespace(windows, path[12:start]))


def own_entries(files: Files, part: StoredPart) -> Iterator[tuple[bytes, bytes]]:
    """Yield the elements of the operator's own list, with empty keys, or the entries of its broadcast map."""
    filed = ((key[2:], data) for file in part.files for key, data in _pairs(files, file))
    if part.redistribution is not Redistribution.BROADCAST:
        share, of = part.share
        yield from ((b"", data) for _, data in islice(filed, share, None, of) if data is not None)
        yield from ((b"", data) for data in part.items)
        return
    entries = dict(filed)
    entries.update(map(_unpack_change, part.items))
    yield from ((key, data) for key, data in entries.items() if data is not None)


def own_rows(files: Files, part: StoredPart) -> Iterator[StateRow]:
    """Yield the same as rows: elements have neither key nor map key, entries of a broadcast map have a map key."""
    decode = codec_for(parse_type(part.schema.type)).decode
    for key, data in own_entries(files, part):
        try:
            value = decode(data)
        except Exception as error:
            value = Unreadable(data, _reason(error))
        yield StateRow(None, value, None, readable(key) if key else None)


def _pairs(files: Files, file: StateFile) -> Iterator[tuple[bytes, bytes | None]]:
    for block in read(files, file):
        yield from zip(block.flat[::2], block.flat[1::2], strict=True)


def split_place(place: bytes) -> tuple[bytes, bytes, bytes]:
    """Split the bytes after the name of a state into namespace, key and map key."""
    start = 1 + place[0]
    length, begin = read_varint(place, start)
    return place[1:start], place[begin : begin + length], place[begin + length :]


def readable(key: bytes) -> Any:
    """Return the user's key, or ``Unreadable``."""
    try:
        return decode_key(key)
    except Exception as error:
        return Unreadable(key, _reason(error))


def _reason(error: Exception) -> str:
    return "pickles are refused" if isinstance(error, PickleRefusedError) else f"{type(error).__name__}: {error}"


def _codec(kind: str, info: TypeInfo | None, expires: bool) -> Codec:
    """Return the codec that the states of the backend use."""
    codec = list_codec_for(info, with_expiry=expires) if kind == "list" else codec_for(info)
    return expiring(codec) if expires else codec


# -- writing -------------------------------------------------------------------------------------------------------------


class StateWriter:
    """Writes rows of one keyed state to state files. Tasks that write a part of the rows get a copy.

    Rows are ``StateRow`` or plain: ``(key, value)``, for a map state ``(key, map key, value)``. Of several rows for one entry the
    last counts.
    """

    def __init__(
        self,
        root: str,
        schema: StateSchema,
        key_type: Any,
        max_parallelism: int,
        *,
        map_key_type: Any = None,
        windows: str = "",
        now_ms: int = 0,
    ) -> None:
        """``windows``: the kind of namespaces. ``now_ms``: the start of the time to live."""
        self.schema, self._root, self.key_type, self._max_parallelism = schema, root, key_type, max_parallelism
        self.map_key_type, self._windows, self._now_ms = map_key_type, windows, now_ms

    def write(self, rows: Iterable[Any]) -> Iterator[StateFile]:
        """Write the rows and yield the files; later files win."""
        identity = key_identity(self.key_type)
        encode = self._encoder()
        paths: list[tuple[Any, bytes, bytes]] = []
        values: list[bytes] = []
        for row in rows:
            key, namespace, map_key, data = encode(row)
            paths.append((self._identified(identity, key), namespace, map_key))
            values.append(data)
            if len(values) >= ENTRIES_PER_FILE:
                yield self._file(paths, values)
                paths, values = [], []
        if values:
            yield self._file(paths, values)

    def _identified(self, identity: KeyIdentity, key: Any) -> Any:
        try:
            return identity(key)
        except Exception as error:
            raise self._refused(error, f"key {shown(key)}") from error

    def _encoder(self) -> Callable[[Any], tuple[Any, bytes, bytes, bytes]]:
        kind, expires = self.schema.kind, bool(self.schema.ttl_ms)
        codec = _codec(kind, parse_type(self.schema.type), expires)
        map_keys, lasts = key_identity(self.map_key_type), self._now_ms + self.schema.ttl_ms

        def encode(row: Any) -> tuple[Any, bytes, bytes, bytes]:
            row = row if isinstance(row, StateRow) else self._plain(row, kind == "map")
            value: Any = row.value
            try:
                if kind == "list":
                    value = list(value)
                if expires:
                    end = lasts if row.expires_ms is None else row.expires_ms
                    value = ([(end, item) for item in value] if kind == "list" else value), end
                map_key = encode_key(map_keys(row.map_key)) if kind == "map" else b""
                namespace = namespace_bytes(write_namespace(self._windows, row.namespace))
                return row.key, namespace, map_key, codec.encode_checked(value)
            except Exception as error:
                raise self._refused(error, f"value {shown(row.value)} of key {shown(row.key)}") from error

        return encode

    def _plain(self, row: Any, is_map: bool) -> StateRow:
        wanted = 3 if is_map else 2
        fields = tuple(row) if isinstance(row, tuple | list) else ()
        if len(fields) != wanted:
            shape = "(key, map key, value)" if is_map else "(key, value)"
            raise self._refused(None, f"{shown(row)}, not {shape}")
        return StateRow(fields[0], fields[-1], None, fields[1] if is_map else None)

    def _refused(self, error: Exception | None, what: str) -> StateFormatError:
        return StateFormatError(
            "A row does not fit the declared types of its state.",
            where=f"state {self.schema.name!r}, {self.schema.kind} of {self.schema.type}",
            found=what if error is None else f"{what}: {getattr(error, 'found', None) or error}",
            cure="give keys and values of the declared types, or declare others, as the program does",
        )

    def _file(self, places: list[tuple[Any, bytes, bytes]], values: list[bytes]) -> StateFile:
        keys, groups = encode_and_group([place[0] for place in places], self._max_parallelism)
        head = state_head(self.schema.name)[:-1]
        by_group: dict[int, dict[bytes, bytes | None]] = {}
        for (_, namespace, map_key), key, group, data in zip(places, keys, groups.tolist(), values, strict=True):
            path = GROUP_BYTES[group] + head + namespace + LENGTHS[len(key)] + key + map_key
            by_group.setdefault(group, {})[path] = data
        parts = ((STATE, by_group[group]) for group in sorted(by_group))
        return write_groups(Files(self._root), parts, KeyGroupRange(0, self._max_parallelism - 1))


def write_groups(
    files: Files,
    parts: Iterable[tuple[int, dict[bytes, bytes | None]]],
    groups: KeyGroupRange,
) -> StateFile:
    """Write entries, table by table and group by group, to a file with a unique name."""
    token = new_token()
    with SegmentWriter(files, f"{token}.state") as writer:
        for table, entries in parts:
            if entries:
                writer.add(table, sorted_flat(entries), deletes=None in entries.values())
        return writer.finish(version=f"written-{token}", groups=groups)


_DOMAINS = {"event": EVENT, "processing": PROCESSING}

_TimerPlace = tuple[int, bytes, bytes]
"""Domain, time, namespace."""


class TimerWriter:
    """Writes timers: ``TimerRow``, or ``(key, time in milliseconds)`` for event time. A duplicate is one timer."""

    def __init__(self, root: str, operator: str, key_type: Any, max_parallelism: int, windows: str = "") -> None:
        """``windows``: the kind of namespaces."""
        self._root, self._operator, self._max_parallelism = root, operator, max_parallelism
        self._identity, self._windows = key_identity(key_type), windows

    def write(self, rows: Iterable[Any]) -> Iterator[StateFile]:
        keys: list[Any] = []
        places: list[_TimerPlace] = []
        for row in rows:
            key, place = self._encoded(row)
            keys.append(key)
            places.append(place)
            if len(keys) >= ENTRIES_PER_FILE:
                yield self._file(keys, places)
                keys, places = [], []
        if keys:
            yield self._file(keys, places)

    def _encoded(self, row: Any) -> tuple[Any, _TimerPlace]:
        try:
            timer = row if isinstance(row, TimerRow) else TimerRow(*_pair(row), "event")
            if type(timer.time_ms) is not int:
                raise TypeError("a time is a whole number of milliseconds")
            namespace = write_namespace(self._windows, timer.namespace)
            return self._identity(timer.key), (_DOMAINS[timer.domain], time_bytes(timer.time_ms), namespace)
        except Exception as error:
            raise StateFormatError(
                "A row does not describe a timer.",
                where=f"timers of {self._operator}",
                found=f"{shown(row)}: {getattr(error, 'found', None) or error}",
                cure="give (key, time in milliseconds), or TimerRow with 'event' or 'processing'; use the operator's key type",
            ) from error

    def _file(self, keys: list[Any], places: list[_TimerPlace]) -> StateFile:
        encoded, groups = encode_and_group(keys, self._max_parallelism)
        by_group: dict[int, dict[bytes, bytes | None]] = {}
        for (domain, time, namespace), key, group in zip(places, encoded, groups.tolist(), strict=True):
            by_group.setdefault(group, {})[timer_key(group, domain, time, namespace, key)] = b""
        parts = ((TIMERS, by_group[group]) for group in sorted(by_group))
        return write_groups(Files(self._root), parts, KeyGroupRange(0, self._max_parallelism - 1))


def _pair(row: Any) -> tuple[Any, Any]:
    fields = tuple(row) if isinstance(row, tuple | list) else ()
    if len(fields) != 2:
        raise ValueError("not (key, time)")
    return fields
