"""The differences between two snapshots, by operator, state and key group.

Memory holds one key group of each snapshot, whatever the size of the state. An operator with identical files is not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidegate.base.errors import SnapshotError
from tidegate.checkpoint.metadata import OperatorState
from tidegate.snapshots.entries import StateEntries, StateRow, own_entries, own_rows, scan, timers_in
from tidegate.snapshots.reader import TIMERS, SnapshotReader, keyed_parts, own_parts
from tidegate.state.layout import STATE, state_name
from tidegate.state.refs import StateSchema
from tidegate.state.snapshot import Redistribution

Entries = dict[bytes, bytes | None]


@dataclass
class StateChange:
    """The changes of a state. ``examples``: (row before or None, row now or None), the first few of each kind."""

    state: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    examples: list[tuple[Any, Any]] = field(default_factory=list)
    note: str = ""
    """A change that is not one of rows: another type, say."""

    @property
    def is_change(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.note)

    def see(self, before: Any, now: Any, most: int) -> None:
        kind = "added" if before is None else "removed" if now is None else "changed"
        number = getattr(self, kind) + 1
        setattr(self, kind, number)
        if number <= most:
            self.examples.append((before, now))


@dataclass
class OperatorChange:
    """The changes of an operator. ``before``, ``now``: None if that snapshot lacks it. ``source``: its positions, if they
    differ."""

    before: OperatorState | None
    now: OperatorState | None
    states: list[StateChange] = field(default_factory=list)
    source: tuple[Any, Any] | None = None

    @property
    def is_change(self) -> bool:
        there = self.before is not None and self.now is not None
        return not there or self.source is not None or any(state.is_change for state in self.states)


Watch = Callable[[str, int, int], None]
"""Called with the operator, the number of its finished key groups, and of all its key groups."""


def difference(
    before: SnapshotReader, now: SnapshotReader, *, examples: int = 3, watch: Watch | None = None
) -> Iterator[OperatorChange]:
    """Yield the changes of each operator, matched by uid. Operators that are only in ``now`` come last."""
    old = {state.uid_hash: state for state in before.metadata.operators}
    new = {state.uid_hash: state for state in now.metadata.operators}
    for uid_hash in {**old, **new}:
        pair = _Pair(before, now, old.get(uid_hash), new.get(uid_hash), examples, watch)
        yield pair.compare()


class _Pair:
    """One operator in both snapshots."""

    def __init__(
        self,
        before: SnapshotReader,
        now: SnapshotReader,
        old: OperatorState | None,
        new: OperatorState | None,
        examples: int,
        watch: Watch | None,
    ) -> None:
        self._readers, self._states, self._most, self._watch = (before, now), (old, new), examples, watch
        self._changes: dict[str, StateChange] = {}

    def compare(self) -> OperatorChange:
        old, new = self._states
        source = (old.source if old else None, new.source if new else None)
        change = OperatorChange(old, new, source=source if source[0] != source[1] else None)
        if old is not None and new is not None and _same_files(old, new, *self._readers):
            return change
        self._refuse_other_groups()
        schemas = [{schema.name: schema for schema in state.schemas} if state else {} for state in (old, new)]
        decoders = {name: self._entries(name, schemas) for name in {**schemas[0], **schemas[1]}}
        for entries in self._groups(STATE):
            self._compare_keyed(*entries, {name: found for name, found in decoders.items() if found is not None})
        for entries in self._groups(STATE + 1):
            self._compare_timers(*entries)
        for name in self._own_names():
            self._compare_own(name)
        change.states = list(self._changes.values())
        return change

    def _change(self, name: str) -> StateChange:
        return self._changes.setdefault(name, StateChange(name))

    def _refuse_other_groups(self) -> None:
        old, new = self._states
        if old is not None and new is not None and old.keyed_files() and new.keyed_files():
            found = (old.max_parallelism, new.max_parallelism)
            if found[0] != found[1]:
                raise SnapshotError(
                    "The key groups of an operator cannot be compared: its maximum parallelism has changed.",
                    where=f"operator {new.uid or new.name!r}",
                    found=f"maximum parallelism {found[0]} and {found[1]}",
                )

    # -- keyed state -------------------------------------------------------------------------------------------------

    def _entries(self, name: str, schemas: list[dict[str, StateSchema]]) -> tuple[StateEntries, StateEntries] | None:
        """Return the decoders of both sides' rows; None if their types differ."""
        old, new = (side.get(name) for side in schemas)
        if old is not None and new is not None and old != new:
            self._change(name).note = f"was {_text(old)}, is {_text(new)}"
            if (old.kind, old.type, old.key_type) != (new.kind, new.type, new.key_type):
                return None
        windows = next((p.windows for s in self._states if s is not None for p in keyed_parts(s) if p.windows), "")
        first, second = old or new, new or old
        assert first is not None and second is not None
        return StateEntries(first, windows), StateEntries(second, windows)

    def _groups(self, table: int) -> Iterator[tuple[Entries, Entries]]:
        """Yield the entries of both sides, group by group."""
        sides = [_by_group(reader, state, table) for reader, state in zip(self._readers, self._states, strict=True)]
        heads = [next(side, None) for side in sides]
        while any(head is not None for head in heads):
            group = min(head[0] for head in heads if head is not None)
            if self._watch is not None and table == STATE:
                state = self._states[1] or self._states[0]
                assert state is not None
                self._watch(state.uid or state.name, group, state.max_parallelism)
            found: list[Entries] = [{}, {}]
            for n, head in enumerate(heads):
                if head is not None and head[0] == group:
                    found[n], heads[n] = head[1], next(sides[n], None)
            yield found[0], found[1]

    def _compare_keyed(
        self, old: Entries, new: Entries, decoders: dict[str, tuple[StateEntries, StateEntries]]
    ) -> None:
        for path in {**old, **new}:
            before, now = old.get(path), new.get(path)
            if before is None and now is None:
                continue
            name = state_name(path)
            change, decoder = self._change(name), decoders.get(name)
            if before == now:
                change.same += 1
            elif decoder is not None:
                place = path[3 + path[2] :]
                rows = [
                    side.row(place, data) if data is not None else None
                    for side, data in zip(decoder, (before, now), strict=True)
                ]
                if rows[0] == rows[1]:  # equal values may have different bytes
                    change.same += 1
                else:
                    change.see(rows[0], rows[1], self._most)

    def _compare_timers(self, old: Entries, new: Entries) -> None:
        windows = next((p.windows for s in self._states if s is not None for p in keyed_parts(s) if p.windows), "")
        sides = [{path for path, data in side.items() if data is not None} for side in (old, new)]
        change = self._change(TIMERS)
        change.same += len(sides[0] & sides[1])
        for timer in timers_in(sorted(sides[0] - sides[1]), windows):
            change.see(timer, None, self._most)
        for timer in timers_in(sorted(sides[1] - sides[0]), windows):
            change.see(None, timer, self._most)

    # -- state of the operator itself --------------------------------------------------------------------------------

    def _own_names(self) -> list[str]:
        every = (part for state in self._states if state for s in state.subtasks for part in s.stored().values())
        return list(dict.fromkeys(part.schema.name for part in every))

    def _compare_own(self, name: str) -> None:
        """Compare broadcast maps by key, and lists without regard to order."""
        change = self._change(name)
        maps = [self._own_map(n, name) for n in (0, 1)]
        if maps[0] is not None or maps[1] is not None:
            old, new = maps[0] or {}, maps[1] or {}
            for key in {**old, **new}:
                if old.get(key) == new.get(key):
                    change.same += 1
                else:
                    change.see(old.get(key), new.get(key), self._most)
            return
        old_items, new_items = self._own_items(0, name), self._own_items(1, name)
        change.same += (old_items & new_items).total()
        for item in (old_items - new_items).elements():
            change.see(StateRow(None, item.value), None, self._most)
        for item in (new_items - old_items).elements():
            change.see(None, StateRow(None, item.value), self._most)

    def _own_map(self, side: int, name: str) -> dict[bytes, StateRow] | None:
        state, files = self._states[side], self._readers[side].files
        parts = own_parts(state, name) if state is not None else []
        if not parts or parts[0].redistribution is not Redistribution.BROADCAST:
            return None
        keys = (key for key, _ in own_entries(files, parts[0]))
        return dict(zip(keys, own_rows(files, parts[0]), strict=True))

    def _own_items(self, side: int, name: str) -> Counter[Any]:
        state, files = self._states[side], self._readers[side].files
        found: Counter[Any] = Counter()
        for part in own_parts(state, name) if state is not None else []:
            found.update(
                _Item(data, row.value)
                for (_, data), row in zip(own_entries(files, part), own_rows(files, part), strict=True)
            )
        return found


class _Item:
    """An element of a list, compared by its bytes, whatever its class."""

    __slots__ = ("data", "value")

    def __init__(self, data: bytes, value: Any) -> None:
        self.data, self.value = data, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Item) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return repr(self.value)


def _by_group(reader: SnapshotReader, state: OperatorState | None, table: int) -> Iterator[tuple[int, Entries]]:
    parts = keyed_parts(state) if state is not None else []
    for part in sorted(parts, key=lambda part: part.groups.first):
        for found, entries in scan(reader.files, part):
            if found == table and entries:
                yield int.from_bytes(next(iter(entries))[:2], "big"), entries
            elif found > table:
                break


def _same_files(old: OperatorState, new: OperatorState, before: SnapshotReader, now: SnapshotReader) -> bool:
    """Return whether both have the same files by hash; so a savepoint equals the checkpoint it was copied from."""
    sides = [[[(f.hash, f.size, f.groups) for f in s.files()] for s in state.subtasks] for state in (old, new)]
    inline = [[part.items for s in state.subtasks for part in s.stored().values()] for state in (old, new)]
    return sides[0] == sides[1] and inline[0] == inline[1] and old.schemas == new.schemas


def _text(schema: StateSchema) -> str:
    of = f"{schema.key_type} to {schema.type}" if schema.key_type else schema.type
    return f"{schema.kind} of {of}" + (f", {schema.ttl_ms} ms to live" if schema.ttl_ms else "")
