"""A checkpoint or savepoint as operators, states and rows, for readers without the program.

Nothing is changed or restored. Rows are read key group by key group, so memory does not grow with the state.

The rows of a state have columns with names and types. Objects of any class have a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tidegate.base.errors import SnapshotError
from tidegate.base.files import Files
from tidegate.base.hashing import SigningKey, stable_hash
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.common.type_texts import parse_type
from tidegate.common.typeinfo import (
    ElementTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    is_bytes,
)
from tidegate.snapshots.entries import StateEntries, StateRow, TimerRow, own_entries, own_rows, scan, timers_in
from tidegate.state.layout import STATE, state_name
from tidegate.state.namespaces import COUNT_WINDOWS, OTHER_WINDOWS, SLICES, TIME_WINDOWS
from tidegate.state.refs import StateSchema
from tidegate.state.snapshot import KeyedPart, Redistribution, StoredPart

KEYED = "keyed"
TIMERS = "timers"
"""The name of timers in counts, unless a state has that name."""

Watch = Callable[[int, int], None]
"""Called with the number of finished parts of the work, and of all parts."""


def _unwatched(done: int, of: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class StateInfo:
    """A state of an operator. ``scope``: ``keyed``, or the redistribution of the operator's own state (``even-split``, ``union``,
    ``broadcast``). ``type``: the type of the values, ``map_key_type``: of a map's keys; ``pickle``: any Python object."""

    name: str
    kind: str
    type: str
    scope: str = KEYED
    map_key_type: str = ""
    ttl_ms: int = 0


@dataclass(frozen=True)
class OperatorInfo:
    """An operator in a snapshot. ``bytes``: the size of its files, which may contain deleted entries. ``key_type``: ``pickle`` if
    no type was declared, empty without keyed state. ``windows``: see ``state/namespaces.py``."""

    uid: str | None
    uid_hash: str
    name: str
    parallelism: int
    max_parallelism: int
    key_type: str
    windows: str
    bytes: int
    files: int
    states: tuple[StateInfo, ...]
    source: Any = field(default=None)
    """The position of a source, in the form of its enumerator."""
    uncommitted: int = 0
    """Prepared outputs that may be uncommitted."""


@dataclass
class Count:
    """The size of a state: its entries (a map state has one for each map key), and the bytes of their keys and values."""

    entries: int = 0
    bytes: int = 0


class SnapshotReader:
    """``path``: a checkpoint's or savepoint's directory, its ``_metadata``, or a job's directory: then its latest checkpoint.

    Raises ``RestoreError`` if the path is not a snapshot, ``CorruptFileError`` if it is damaged, and ``NewerFormatError``. Pickled
    keys and values are unpickled, which runs code of their writer: read only snapshots of programs that you would run.
    ``signing_key_file``: read only a snapshot that this key signed. All its files are read and checked at once.
    """

    def __init__(self, path: str, *, signing_key_file: str | None = None) -> None:
        self._located = locate(path, "The path to read")
        if signing_key_file is not None:
            self._located.check_signature(SigningKey.load(signing_key_file, where=path))
            self._located.verify_files()

    @property
    def address(self) -> str:
        """The address of the snapshot."""
        return self._located.address

    @property
    def metadata(self) -> CheckpointMetadata:
        """The contents of ``_metadata``."""
        return self._located.metadata

    @property
    def files(self) -> Files:
        """The directory that paths of state files are relative to."""
        return self._located.root

    @property
    def operators(self) -> list[OperatorInfo]:
        """The operators in the order of the program."""
        return [_info(state) for state in self.metadata.operators]

    def operator(self, name: str) -> OperatorInfo:
        """Return the operator with this uid, uid hash, or unique name."""
        return _info(self.stored(name))

    def stored(self, name: str) -> OperatorState:
        """Return the operator's entry in the metadata."""
        every = self.metadata.operators
        for found in (
            [state for state in every if state.uid == name or state.uid_hash in (name, stable_hash(name))],
            [state for state in every if state.name == name],
            [state for state in every if len(name) >= 4 and state.uid_hash.startswith(name)],
        ):
            if len(found) == 1:
                return found[0]
        known = ", ".join(sorted(repr(state.uid or state.name) for state in every))
        raise SnapshotError(
            "The snapshot has no such operator, or several with this name.",
            where=self.address,
            found=f"{name!r}; there are {known or 'none'}",
            cure="give the uid, the uid hash, or a name that no other operator has",
        )

    def state(self, operator: str, name: str) -> StateInfo:
        """Return what is known about a state of an operator. An unknown name is an error that lists the names."""
        info = self.operator(operator)
        for state in info.states:
            if state.name == name:
                return state
        known = ", ".join(repr(state.name) for state in info.states)
        raise SnapshotError(
            "The operator has no such state.",
            where=f"{self.address}, operator {info.uid or info.name!r}",
            found=f"{name!r}; there are {known or 'none'}",
            cure="give the name of a state as the program declares it",
        )

    # -- rows --------------------------------------------------------------------------------------------------------

    def read(
        self, operator: str, state: str, *, expired: bool = False, watch: Watch = _unwatched
    ) -> Iterator[StateRow]:
        """Yield the entries of a state, each as a ``StateRow``: one for each key; for a map or broadcast state one for each map
        key. The elements of the operator's own list have no key.

        ``expired``: also yield entries that had expired when the snapshot was taken.
        """
        info, stored = self.state(operator, state), self.stored(operator)
        if info.scope != KEYED:
            return self._read_own(stored, info)
        return self._read_keyed(stored, self.entries(operator, state, expired=expired), watch)

    def read_timers(self, operator: str) -> Iterator[TimerRow]:
        """Yield the timers of an operator, in no particular order."""
        for part in keyed_parts(self.stored(operator)):
            for table, entries in scan(self.files, part):
                if table != STATE:
                    yield from timers_in((path for path, data in entries.items() if data is not None), part.windows)

    def entries(self, operator: str, state: str, *, expired: bool = False) -> StateEntries:
        """Return the decoder of a keyed state's entries."""
        info, stored = self.state(operator, state), self.stored(operator)
        schema = next(schema for schema in stored.schemas if schema.name == info.name)
        return StateEntries(schema, _windows(stored), None if expired else self.metadata.complete_ms)

    def _read_keyed(self, stored: OperatorState, of: StateEntries, watch: Watch) -> Iterator[StateRow]:
        for entries in self._groups(stored, watch):
            yield from of.rows(entries)

    def _groups(self, stored: OperatorState, watch: Watch) -> Iterator[dict[bytes, bytes | None]]:
        parts = keyed_parts(stored)
        before, every = 0, sum(len(part.groups) for part in parts)
        for part in parts:
            for table, entries in scan(self.files, part):
                if table != STATE:
                    break  # the table of timers comes last
                if entries:
                    group = int.from_bytes(next(iter(entries))[:2], "big")
                    watch(before + group - part.groups.first, every)
                    yield entries
            before += len(part.groups)
        watch(every, every)

    def _read_own(self, stored: OperatorState, info: StateInfo) -> Iterator[StateRow]:
        for part in own_parts(stored, info.name):
            yield from own_rows(self.files, part)

    def count(self, operator: str, watch: Watch = _unwatched) -> dict[str, Count]:
        """Count entries by state, also of states that only the files contain, and timers. Reads all files."""
        stored = self.stored(operator)
        counts = {state.name: Count() for state in self.operator(operator).states}
        for entries in self._groups(stored, watch):
            for path, data in entries.items():
                if data is not None:
                    found = counts.setdefault(state_name(path), Count())
                    found.entries += 1
                    found.bytes += len(path) + len(data)
        for name, part in _every_own(stored):
            for key, data in own_entries(self.files, part):
                counts[name].entries += 1
                counts[name].bytes += len(key) + len(data)
        timers = sum(1 for _ in self.read_timers(operator))
        return counts | ({TIMERS: Count(timers)} if timers and TIMERS not in counts else {})


def keyed_parts(stored: OperatorState) -> list[KeyedPart]:
    """Return the keyed parts of all subtasks."""
    return [snapshot.keyed for snapshot in stored.subtasks if snapshot.keyed is not None]


def own_parts(stored: OperatorState, name: str) -> list[StoredPart]:
    """Return the parts of a state of the operator itself."""
    return [part for found, part in _every_own(stored) if found == name]


def _every_own(stored: OperatorState) -> Iterator[tuple[str, StoredPart]]:
    """Yield the states of the operator itself; of a broadcast state only one copy, since all subtasks have the same."""
    seen = set()
    for snapshot in stored.subtasks:
        for part in snapshot.stored().values():
            name = part.schema.name
            if part.redistribution is not Redistribution.BROADCAST or name not in seen:
                yield name, part
            seen.add(name)


def _windows(stored: OperatorState) -> str:
    return next((part.windows for part in keyed_parts(stored) if part.windows), "")


def _info(stored: OperatorState) -> OperatorInfo:
    files = {file.path: file for file in stored.state_files()}
    keyed = [_state_info(schema, KEYED) for schema in stored.schemas]
    own = {name: _state_info(part.schema, part.redistribution.value) for name, part in _every_own(stored)}
    return OperatorInfo(
        stored.uid,
        stored.uid_hash,
        stored.name,
        stored.parallelism,
        stored.max_parallelism,
        stored.key_type,
        _windows(stored),
        sum(file.size for file in files.values()),
        len(files),
        (*keyed, *own.values()),
        msgspec.to_builtins(stored.source),
        len(stored.committables),
    )


def _state_info(schema: StateSchema, scope: str) -> StateInfo:
    return StateInfo(schema.name, schema.kind, schema.type, scope, schema.key_type, schema.ttl_ms)


Convert = Callable[[Any], Any]

_AS_TEXT = frozenset({"pickle", "BIG_INT", "INSTANT"})


class StateColumn(NamedTuple):
    """A column. ``field``: the position in a ``StateRow`` or ``TimerRow``."""

    name: str
    field: int
    type: TypeInformation


def state_columns(
    owner: OperatorInfo,
    state: StateInfo,
    *,
    key_type: TypeInformation | None = None,
    value_type: TypeInformation | None = None,
    map_key_type: TypeInformation | None = None,
) -> list[StateColumn]:
    """Return the columns of a state. A caller may name the types of pickled keys and values."""
    keyed = state.scope == KEYED
    columns = []
    if keyed:
        windows = owner.windows or (SLICES if state.kind == "slices" else "")
        columns += [
            StateColumn("key", 0, key_type or parse_type(owner.key_type)),
            StateColumn("namespace", 2, _window(windows)),
        ]
    if state.kind == "map":
        columns.append(StateColumn("map_key", 3, map_key_type or parse_type(state.map_key_type)))
    values = value_type or parse_type(state.type)
    columns.append(StateColumn("value", 1, ListTypeInfo(values) if state.kind == "list" and keyed else values))
    if state.ttl_ms:
        columns.append(StateColumn("expires_ms", 4, Types.LONG()))
    return columns


def timer_columns(owner: OperatorInfo, *, key_type: TypeInformation | None = None) -> list[StateColumn]:
    return [
        StateColumn("key", 0, key_type or parse_type(owner.key_type or "pickle")),
        StateColumn("namespace", 3, _window(owner.windows)),
        StateColumn("time_ms", 1, Types.LONG()),
        StateColumn("domain", 2, Types.STRING()),
    ]


def _window(windows: str) -> TypeInformation:
    kind = windows.partition(" ")[0]
    if kind in (TIME_WINDOWS, SLICES):
        return Types.ROW_NAMED(["start", "end"], [Types.LONG(), Types.LONG()])
    if kind == COUNT_WINDOWS:
        return Types.LONG()
    return Types.PRIMITIVE_ARRAY(Types.BYTE()) if kind == OTHER_WINDOWS else Types.PICKLED_BYTE_ARRAY()


# -- for formats with plain types only -----------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Return the text for an object of any class; a text stays itself."""
    return value if isinstance(value, str) else repr(value)


def plain_columns(columns: Sequence[StateColumn]) -> tuple[RowTypeInfo, Convert]:
    """Return a type that every file format knows, and the function that makes its fields of a row. Other types become texts."""
    plain = [_plain(column.type) for column in columns]
    fields = [column.field for column in columns]
    converts = [_or_none(convert) for _, convert in plain]
    row_type = RowTypeInfo([info for info, _ in plain], [column.name for column in columns])
    return row_type, lambda row: [convert(row[field]) for field, convert in zip(fields, converts, strict=True)]


def _plain(info: TypeInformation) -> tuple[TypeInformation, Convert]:
    if isinstance(info, RowTypeInfo):
        parts = [_plain(part) for part in info.get_field_types()]
        return RowTypeInfo([part for part, _ in parts], info.get_field_names()), _each([c for _, c in parts])
    if isinstance(info, TupleTypeInfo):
        parts = [_plain(part) for part in info.get_field_types()]
        return TupleTypeInfo([part for part, _ in parts]), _each([c for _, c in parts])
    if isinstance(info, MapTypeInfo):
        (key_type, key), (value_type, value) = _plain(info.key_type), _plain(info.value_type)
        value = _or_none(value)
        return MapTypeInfo(key_type, value_type), lambda found: {key(k): value(v) for k, v in found.items()}
    if isinstance(info, ElementTypeInfo) and not is_bytes(info):
        element_type, element = _plain(info.elem_type)
        element = _or_none(element)
        return ListTypeInfo(element_type), lambda values: [element(value) for value in values]
    return (Types.STRING(), as_text) if info.describe() in _AS_TEXT else (info, lambda value: value)


def _each(converts: list[Convert]) -> Convert:
    either = [_or_none(convert) for convert in converts]
    return lambda values: tuple([convert(value) for convert, value in zip(either, values, strict=True)])


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
