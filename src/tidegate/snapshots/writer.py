"""Savepoints without a job: state made of rows, or an existing snapshot with changes.

The changes are collected first. ``write`` executes them, in a new directory, with ``_metadata`` last: before that there is no
savepoint. The existing snapshot is never changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import msgspec

from tidegate.base.errors import SnapshotError
from tidegate.base.files import Files, verified_copy
from tidegate.base.hashing import new_job_id, stable_hash
from tidegate.checkpoint.metadata import (
    FILE_NAME,
    SAVEPOINT,
    CheckpointMetadata,
    OperatorState,
    encode_metadata,
)
from tidegate.common.type_texts import parse_type
from tidegate.snapshots.entries import StateWriter, TimerWriter, scan, write_groups
from tidegate.snapshots.reader import SnapshotReader, keyed_parts
from tidegate.state.descriptors import MapStateDescriptor, StateDescriptor, schema_of
from tidegate.state.in_flight import InFlightPart
from tidegate.state.key_groups import range_for
from tidegate.state.keys import key_identity
from tidegate.state.layout import STATE, state_name
from tidegate.state.operator_state import OperatorStates
from tidegate.state.refs import StateFile, StateSchema
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot, Redistribution, StoredPart

PURPOSE = "savepoint storage"


class Rows(Protocol):
    """Rows that write themselves in parallel: a DataFrame."""

    def write(self, writer: StateWriter) -> list[StateFile]: ...


@dataclass(frozen=True)
class _Keyed:
    """A keyed state to write. ``map_key_type``: the declared type, if any."""

    schema: StateSchema
    rows: Iterable[Any] | Rows
    key_type: Any
    map_key_type: Any


@dataclass(frozen=True)
class _Timers:
    rows: Iterable[Any]
    key_type: Any


@dataclass
class _Edit:
    """The changes of one operator."""

    uid: str | None
    name: str = ""
    keyed: dict[str, _Keyed] = field(default_factory=dict)
    own: dict[str, tuple[StateDescriptor, Any, Redistribution]] = field(default_factory=dict)
    timers: list[_Timers] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    new_uid: str | None = None
    is_new: bool = False


class SnapshotWriter:
    """See ``SavepointWriter``."""

    def __init__(self, base: SnapshotReader | None, max_parallelism: int) -> None:
        self._base, self._max_parallelism = base, max_parallelism
        self._edits: dict[str, _Edit] = {}
        self._removed: set[str] = set()

    @classmethod
    def new(cls, *, max_parallelism: int = 128) -> Self:
        """Start with an empty savepoint. The program that restores it must have this maximum parallelism; 128 is the default of
        programs with up to 85 subtasks."""
        if not 0 < max_parallelism <= 1 << 15:
            raise SnapshotError("The maximum parallelism is not between 1 and 32768.", found=str(max_parallelism))
        return cls(None, max_parallelism)

    @classmethod
    def from_existing(cls, path: str) -> Self:
        """Start with a checkpoint or savepoint: all operators are copied, except for the changes made here."""
        reader = SnapshotReader(path)
        known = [state.max_parallelism for state in reader.metadata.operators]
        return cls(reader, max(set(known), key=known.count) if known else 128)

    # -- changes -------------------------------------------------------------------------------------------------------

    def with_keyed_state(
        self, uid: str, state: StateDescriptor | str, rows: Iterable[Any] | Rows, *, key_type: Any = None
    ) -> Self:
        """Make rows a keyed state of the operator with this uid. They replace an existing state of that name.

        ``state``: the descriptor, as in the program; or the name of a state in the existing snapshot, to keep its types.
        ``key_type``: as in the program's ``key_by``; by default the operator's key type in the existing snapshot. Rows are
        ``(key, value)``, with a list as the value of a list state; for a map state ``(key, map key, value)``, one row for each
        entry; or ``StateRow``, which may have a namespace.
        """
        edit = self._edit(uid)
        key_type = self._key_type(uid, edit, key_type)
        if isinstance(state, str):
            schema = _schema(self._existing(uid), uid, state)
            map_key_type = parse_type(schema.key_type) if schema.key_type else None
        else:
            schema, map_key_type = schema_of(state), getattr(state, "key_type_info", None)
        edit.keyed[schema.name] = _Keyed(schema, rows, key_type, map_key_type)
        return self

    def with_timers(self, uid: str, rows: Iterable[Any], *, key_type: Any = None) -> Self:
        """Add timers to the operator with this uid: ``(key, time in milliseconds)`` for event time, or ``TimerRow``, which names
        the domain and may have a namespace. ``key_type``: as for ``with_keyed_state``."""
        edit = self._edit(uid)
        edit.timers.append(_Timers(rows, self._key_type(uid, edit, key_type)))
        return self

    def _key_type(self, uid: str, edit: _Edit, named: Any) -> Any:
        stored = None if self._base is None or edit.is_new else self._base.stored(uid)
        return parse_type(stored.key_type) if named is None and stored is not None and stored.key_type else named

    def with_list_state(self, uid: str, descriptor: StateDescriptor, values: Iterable[Any]) -> Self:
        """Set a list of the operator itself: its elements are distributed over the subtasks."""
        self._edit(uid).own[descriptor.name] = (descriptor, list(values), Redistribution.EVEN_SPLIT)
        return self

    def with_union_list_state(self, uid: str, descriptor: StateDescriptor, values: Iterable[Any]) -> Self:
        """Return a list of the operator itself: every subtask gets all elements."""
        self._edit(uid).own[descriptor.name] = (descriptor, list(values), Redistribution.UNION)
        return self

    def with_broadcast_state(self, uid: str, descriptor: MapStateDescriptor, entries: dict[Any, Any]) -> Self:
        """Set the map that is the same in every subtask."""
        self._edit(uid).own[descriptor.name] = (descriptor, entries, Redistribution.BROADCAST)
        return self

    def remove_state(self, uid: str, name: str) -> Self:
        """Remove one state of an operator of the existing snapshot."""
        self._existing(uid).state(uid, name)
        self._edit(uid).removed.add(name)
        return self

    def remove_operator(self, uid: str) -> Self:
        """Remove an operator of the existing snapshot, with its state, position and pending output."""
        self._removed.add(self._existing(uid).stored(uid).uid_hash)
        return self

    def change_uid(self, uid: str, new_uid: str) -> Self:
        """Give an operator of the existing snapshot another uid."""
        self._existing(uid).stored(uid)
        self._edit(uid).new_uid = new_uid
        return self

    def _existing(self, uid: str) -> SnapshotReader:
        if self._base is None:
            raise SnapshotError(
                "There is no existing snapshot whose operators could be removed or renamed.", found=f"operator {uid!r}"
            )
        return self._base

    def _edit(self, uid: str) -> _Edit:
        known = {state.uid_hash: state for state in self._base.metadata.operators} if self._base is not None else {}
        uid_hash = uid if uid in known else stable_hash(uid)
        stored = known.get(uid_hash)
        made = _Edit(stored.uid, stored.name) if stored is not None else _Edit(uid, uid, is_new=True)
        return self._edits.setdefault(uid_hash, made)

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, path: str) -> str:
        """Write the savepoint into a new directory and return its address. An error leaves no files."""
        target = Files(path, PURPOSE)
        if target.exists("") and target.list_names():
            raise SnapshotError(
                "The directory of the new savepoint is not empty.",
                where=target.root,
                found=f"{', '.join(target.list_names()[:5])} in it",
                cure="give a path that does not exist",
            )
        try:
            target.make_directory()
            metadata = self._metadata(list(self._operators(target)))
            target.publish(FILE_NAME, encode_metadata(metadata))
        except BaseException:
            target.delete_tree("")
            raise
        return target.root

    def _metadata(self, operators: list[OperatorState]) -> CheckpointMetadata:
        now = time.time_ns() // 1_000_000
        if self._base is None:
            return CheckpointMetadata(
                checkpoint_id=0,
                job_id=new_job_id(),
                job_name="written",
                token=0,
                trigger_ms=now,
                complete_ms=now,
                round=0,
                kind=SAVEPOINT,
                operators=operators,
            )
        changes: dict[str, Any] = {"kind": SAVEPOINT, "operators": operators, "finished": False, "properties": {}}
        return msgspec.structs.replace(self._base.metadata, **changes)

    def _operators(self, target: Files) -> Iterator[OperatorState]:
        edits = dict(self._edits)
        for stored in self._base.metadata.operators if self._base is not None else []:
            edit = edits.pop(stored.uid_hash, None)
            if stored.uid_hash not in self._removed:
                assert self._base is not None
                yield _Editing(self._base.files, target, edit or _Edit(stored.uid), stored).made()
            elif edit is not None:
                edits[stored.uid_hash] = edit  # removed, and made again
        for uid_hash, edit in edits.items():
            empty = OperatorState(
                uid_hash=uid_hash,
                uid=edit.uid,
                name=edit.name,
                parallelism=1,
                max_parallelism=self._max_parallelism,
                subtasks=[OperatorSnapshot()],
            )
            yield _Editing(target, target, edit, empty).made()


def _schema(reader: SnapshotReader, uid: str, name: str) -> StateSchema:
    reader.state(uid, name)  # raises with a list of the states
    found = [schema for schema in reader.stored(uid).schemas if schema.name == name]
    if not found:
        raise SnapshotError(
            "The name of an operator's own state is given instead of its descriptor.", found=f"state {name!r}"
        )
    return found[0]


class _Editing:
    """Makes one operator of the new savepoint."""

    def __init__(self, source: Files, target: Files, edit: _Edit, stored: OperatorState) -> None:
        self._source, self._target, self._edit, self._stored = source, target, edit, stored
        self._copied: dict[str, StateFile] = {}
        self._where = f"operator {stored.uid or stored.name!r}"

    def made(self) -> OperatorState:
        self._refuse_other_keys()
        subtasks = [self._kept(snapshot) for snapshot in self._stored.subtasks]
        for keyed in self._edit.keyed.values():
            subtasks = self._with_keyed(subtasks, keyed)
        for timers in self._edit.timers:
            subtasks = self._with_timers(subtasks, timers)
        for name, (descriptor, values, how) in self._edit.own.items():
            subtasks = [self._with_own(n, s, name, descriptor, values, how) for n, s in enumerate(subtasks)]
        changes: dict[str, Any] = {"subtasks": subtasks}
        if self._edit.new_uid is not None:
            changes |= {"uid": self._edit.new_uid, "uid_hash": stable_hash(self._edit.new_uid)}
        return msgspec.structs.replace(self._stored, **changes)

    def _refuse_other_keys(self) -> None:
        kept = self._stored.key_type if self._stored.keyed_files() else ""
        given = [(f"state {name!r}", keyed.key_type) for name, keyed in self._edit.keyed.items()]
        given += [("timers", timers.key_type) for timers in self._edit.timers]
        for what, key_type in given:
            declared = key_identity(key_type).describe
            if kept and declared != kept:
                raise SnapshotError(
                    "The keyed states of an operator have keys of different types.",
                    where=f"{self._where}, {what}",
                    found=f"keys of type {declared}; the others have {kept}",
                    cure="give the key_type of the program's key_by",
                )
            kept = declared

    # -- unchanged state -----------------------------------------------------------------------------------------------

    def _kept(self, snapshot: OperatorSnapshot) -> OperatorSnapshot:
        gone = self._edit.removed | self._edit.keyed.keys() | self._edit.own.keys()
        parts: dict[str, Any] = {}
        for name, part in snapshot.parts.items():
            if isinstance(part, StoredPart):
                if part.schema.name not in gone:
                    parts[name] = msgspec.structs.replace(part, files=tuple(map(self._copy, part.files)))
            elif isinstance(part, KeyedPart):
                parts[name] = self._kept_keyed(part, gone)
            elif isinstance(part, InFlightPart):
                parts[name] = part.with_files(self._copy)
            else:
                parts[name] = part
        return OperatorSnapshot(parts, snapshot.watermark, snapshot.idle)

    def _kept_keyed(self, part: KeyedPart, gone: set[str]) -> KeyedPart:
        schemas = tuple(schema for schema in part.schemas if schema.name not in gone)
        if len(schemas) == len(part.schemas):
            return msgspec.structs.replace(part, files=tuple(map(self._copy, part.files)))
        file = write_groups(self._target, self._without(part, gone), part.groups)
        return msgspec.structs.replace(part, files=(file,), schemas=schemas)

    def _without(self, part: KeyedPart, gone: set[str]) -> Iterator[tuple[int, dict[bytes, bytes | None]]]:
        for table, entries in scan(self._source, part):
            kept = ((path, data) for path, data in entries.items() if data is not None)
            yield table, {path: data for path, data in kept if table != STATE or state_name(path) not in gone}

    def _copy(self, file: StateFile) -> StateFile:
        """Copy a file, once: subtasks of a rescaled operator may share it."""
        name = file.path.rpartition("/")[2]
        if file.path not in self._copied:
            verified_copy(self._source, file.path, self._target, name, size=file.size, hash=file.hash)
        self._copied[file.path] = file
        return msgspec.structs.replace(file, path=name)

    # -- new state -----------------------------------------------------------------------------------------------------

    def _with_keyed(self, subtasks: list[OperatorSnapshot], keyed: _Keyed) -> list[OperatorSnapshot]:
        """Write the state and refer to its files, which contain all key groups, from every subtask."""
        writer = StateWriter(
            self._target.root,
            keyed.schema,
            keyed.key_type,
            self._stored.max_parallelism,
            map_key_type=keyed.map_key_type,
            windows=self._windows(),
            now_ms=time.time_ns() // 1_000_000,
        )
        written = getattr(keyed.rows, "write", None)
        files = written(writer) if written is not None else list(writer.write(keyed.rows))  # type: ignore[arg-type]
        return [self._joined(subtask, files, keyed.key_type, writer.schema) for subtask in self._placed(subtasks)]

    def _with_timers(self, subtasks: list[OperatorSnapshot], timers: _Timers) -> list[OperatorSnapshot]:
        most = self._stored.max_parallelism
        writer = TimerWriter(self._target.root, self._where, timers.key_type, most, self._windows())
        files = list(writer.write(timers.rows))
        return [self._joined(subtask, files, timers.key_type) for subtask in self._placed(subtasks)]

    def _windows(self) -> str:
        return next((part.windows for part in keyed_parts(self._stored) if part.windows), "")

    def _placed(self, subtasks: list[OperatorSnapshot]) -> list[OperatorSnapshot]:
        """Give each subtask a keyed part for its groups."""
        most, number = self._stored.max_parallelism, len(subtasks)
        empty = [KeyedPart(range_for(n, number, most)) for n in range(number)]
        return [s if s.keyed is not None else s.with_part(KEYED, empty[n]) for n, s in enumerate(subtasks)]

    def _joined(
        self, subtask: OperatorSnapshot, files: list[StateFile], key_type: Any, *schemas: StateSchema
    ) -> OperatorSnapshot:
        part = subtask.keyed
        assert part is not None
        more = tuple(msgspec.structs.replace(file, groups=part.groups) for file in files)
        made = KeyedPart(
            part.groups,
            (*part.files, *more),
            (*part.schemas, *schemas),
            key_identity(key_type).describe,
            part.windows,
        )
        return subtask.with_part(KEYED, made)

    def _with_own(
        self,
        number: int,
        subtask: OperatorSnapshot,
        name: str,
        descriptor: StateDescriptor,
        values: Any,
        how: Redistribution,
    ) -> OperatorSnapshot:
        """Add the operator's own state to a subtask: a broadcast map to each one; a union list only to the first, because a restore
        gives every subtask the parts of all."""
        if how is Redistribution.EVEN_SPLIT:
            values = values[number :: len(self._stored.subtasks)]
        elif how is Redistribution.UNION and number:
            return subtask
        states = OperatorStates(self._target, self._where)
        states.restore(OperatorSnapshot())
        if how is Redistribution.BROADCAST:
            states.broadcast_state(descriptor).put_all(dict(values))
        else:
            states.list_state(descriptor, how).add_all(values)
        made = states.parts(f"{self._stored.uid_hash[:12]}-{number}-{stable_hash(name)[:8]}", "written")
        return OperatorSnapshot({**subtask.parts, **made}, subtask.watermark, subtask.idle)
