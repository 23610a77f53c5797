"""The snapshot of an operator's subtask at the end of a round: the one form in which state travels.

A subtask gets an ``OperatorSnapshot`` with its plan and returns one with its ack. Accepted snapshots are the progress of the job,
and a checkpoint stores them as they are. A snapshot is a set of named parts. Each part defines its redistribution, so a new kind
of state changes neither the driver nor the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from tidegate.base.clock import MIN_WATERMARK
from tidegate.state import in_flight
from tidegate.state.in_flight import InFlightPart
from tidegate.state.key_groups import owners, range_for
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema

KEYED, SPLITS, GENERATOR, WRITER, IN_FLIGHT = "keyed", "splits", "generator", "writer", "in-flight"
"""Names of parts: keyed state and timers; watermark generators of splits; the generator of an assigner; states of a sink's writer;
records that wait before the operator."""


class Redistribution(Enum):
    """How the parts of all subtasks are redistributed when an operator restores with another parallelism.

    With the same parallelism every part stays with its subtask, except for UNION: there every subtask always gets all.
    """

    KEY_GROUPS = "key-groups"
    """Every subtask gets the files with its key groups, clipped to them."""
    EVEN_SPLIT = "even-split"
    """The items of all subtasks are distributed one by one."""
    UNION = "union"
    """Every subtask gets the items of all subtasks."""
    BROADCAST = "broadcast"
    """All subtasks have the same items; a new subtask gets a copy."""
    SUBTASK = "subtask"
    """The part is useful to its own subtask only, and is dropped."""


class KeyedPart(msgspec.Struct, frozen=True, tag="keyed", tag_field="part", omit_defaults=True):
    """Keyed state and timers: the ordered list of files, later ones win. Redistributed by key group.

    ``schemas``: the declarations of the states in the files. ``key_type``: the declared type of the key. ``windows``: the meaning
    of the namespaces in the files (``namespaces.py``), for readers without the program.
    """

    groups: KeyGroupRange
    files: tuple[StateFile, ...] = ()
    schemas: tuple[StateSchema, ...] = ()
    key_type: str = ""
    windows: str = ""


class ListPart(msgspec.Struct, frozen=True, tag="list", tag_field="part", omit_defaults=True):
    """Items, each of them msgpack of plain data."""

    redistribution: Redistribution
    items: tuple[bytes, ...] = ()

    @staticmethod
    def of(redistribution: Redistribution, values: Iterable[Any]) -> ListPart:
        return ListPart(redistribution, tuple(map(_pack, values)))

    def values(self) -> list[Any]:
        return list(map(_unpack, self.items))


class StoredPart(msgspec.Struct, frozen=True, tag="stored", tag_field="part", omit_defaults=True):
    """A state of the operator itself, not of a key (``operator_state.py``): entries in files, then others; later ones win.

    ``share``: in a list, only those entries in files count whose number, over all files, is the first modulo the second.
    """

    redistribution: Redistribution
    schema: StateSchema
    files: tuple[StateFile, ...] = ()
    items: tuple[bytes, ...] = ()
    share: tuple[int, int] = (0, 1)


Part = KeyedPart | ListPart | StoredPart | InFlightPart
P = TypeVar("P", bound=KeyedPart | StoredPart)


class OperatorSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator in one subtask. ``watermark`` and ``idle`` belong to its output; a restored subtask starts as active."""

    parts: dict[str, Part] = {}
    watermark: int = MIN_WATERMARK
    idle: bool = False

    @property
    def keyed(self) -> KeyedPart | None:
        part = self.parts.get(KEYED)
        return part if isinstance(part, KeyedPart) else None

    @property
    def in_flight(self) -> InFlightPart | None:
        part = self.parts.get(IN_FLIGHT)
        return part if isinstance(part, InFlightPart) else None

    def values(self, name: str) -> list[Any]:
        """Return the items of a list part; none if the part is missing."""
        part = self.parts.get(name)
        return part.values() if isinstance(part, ListPart) else []

    def with_part(self, name: str, part: Part) -> OperatorSnapshot:
        return self.with_parts({name: part})

    def with_parts(self, parts: Mapping[str, Part]) -> OperatorSnapshot:
        return OperatorSnapshot({**self.parts, **parts}, self.watermark, self.idle)

    def without(self, *names: str) -> OperatorSnapshot:
        """Return the same without some of its parts."""
        parts = {name: part for name, part in self.parts.items() if name not in names}
        return OperatorSnapshot(parts, self.watermark, self.idle)

    def files(self) -> list[StateFile]:
        return [file for part in self.parts.values() if not isinstance(part, ListPart) for file in part.files]

    def with_files(self, moved: Callable[[StateFile], StateFile]) -> OperatorSnapshot:
        """Return the same with other references to its files."""
        parts = {name: _moved_files(part, moved) for name, part in self.parts.items()}
        return OperatorSnapshot(parts, self.watermark, self.idle)

    def stored(self) -> dict[str, StoredPart]:
        """Return the states of the operator itself, by name of the part."""
        return {name: part for name, part in self.parts.items() if isinstance(part, StoredPart)}

    @property
    def declares_states(self) -> bool:
        """Whether it has declared states, which a function may declare differently."""
        return bool(self.stored()) or (self.keyed is not None and bool(self.keyed.schemas))

    @property
    def has_state(self) -> bool:
        """Whether a program without the operator would lose state. Parts that only their own subtask can use do not count."""
        return (
            bool(self.files())
            or any(part.items for part in self.stored().values())
            or any(
                part.items and part.redistribution is not Redistribution.SUBTASK
                for name, part in self.parts.items()
                if isinstance(part, ListPart) and name != SPLITS  # the enumerator has the positions
            )
        )


EMPTY = OperatorSnapshot()


def merged_schemas(many: Iterable[Sequence[StateSchema]]) -> tuple[StateSchema, ...]:
    """Return the last schema of each name. A state is known as soon as one subtask has registered it."""
    return tuple({schema.name: schema for schemas in many for schema in schemas}.values())


def redistribute(
    snapshots: Sequence[OperatorSnapshot], parallelism: int, max_parallelism: int, *, root: str = ""
) -> list[OperatorSnapshot]:
    """Return the snapshots of an operator's subtasks for its current parallelism.

    ``root``: the directory of the files, if it is not the job's own.
    """
    names = dict.fromkeys(name for snapshot in snapshots for name in snapshot.parts)
    columns = {name: _redistributed([s.parts.get(name) for s in snapshots], parallelism, root) for name in names}
    if KEYED in columns:
        held = [snapshot.keyed for snapshot in snapshots if snapshot.keyed is not None]
        columns[KEYED] = [*_clipped(held, parallelism, max_parallelism, root)]
    if IN_FLIGHT in columns:
        waiting = [snapshot.in_flight for snapshot in snapshots]
        columns[IN_FLIGHT] = [*in_flight.redistribute(waiting, parallelism, max_parallelism, root)]
    watermarks = _watermarks([snapshot.watermark for snapshot in snapshots], parallelism)
    return [
        OperatorSnapshot({name: part for name in names if (part := columns[name][n]) is not None}, watermarks[n])
        for n in range(parallelism)
    ]


def _redistributed(parts: Sequence[Part | None], parallelism: int, root: str) -> list[Part | None]:
    stored = [part if isinstance(part, StoredPart) else None for part in parts]
    if any(stored):
        return list(_redistributed_states(stored, parallelism, root))
    lists = [part if isinstance(part, ListPart) else None for part in parts]
    how = next((part.redistribution for part in lists if part is not None), Redistribution.SUBTASK)
    items = [part.items if part is not None else () for part in lists]
    every = [item for own in items for item in own]
    dealt: Sequence[Iterable[bytes]]
    if how is Redistribution.UNION:
        dealt = [every] * parallelism
    elif len(parts) == parallelism:
        dealt = items
    elif how is Redistribution.EVEN_SPLIT:
        dealt = [every[n::parallelism] for n in range(parallelism)]
    elif how is Redistribution.BROADCAST:
        dealt = [items[n % len(items)] for n in range(parallelism)]
    else:
        dealt = [()] * parallelism
    return [ListPart(how, part) if (part := tuple(own)) else None for own in dealt]


def _redistributed_states(
    parts: Sequence[StoredPart | None], parallelism: int, root: str
) -> Iterator[StoredPart | None]:
    """Redistribute files by reference. A subtask that gets a share of a file writes its own file in its first round."""
    held = [_moved(part, root) for part in parts if part is not None]
    files = tuple(file for part in held for file in part.files)
    items = tuple(item for part in held for item in part.items)
    how, whole = held[-1].redistribution, msgspec.structs.replace(held[-1], files=files, items=items, share=(0, 1))
    for n in range(parallelism):
        if how is Redistribution.UNION:
            yield whole
        elif how is Redistribution.BROADCAST:
            yield held[n % len(held)]
        elif len(parts) == parallelism:
            own = parts[n]
            yield None if own is None else _moved(own, root)
        else:
            yield msgspec.structs.replace(whole, items=items[n::parallelism], share=(n, parallelism))


def _moved(part: StoredPart, root: str) -> StoredPart:
    return _with_files(part, lambda file: msgspec.structs.replace(file, root=root)) if root else part


def _moved_files(part: Part, moved: Callable[[StateFile], StateFile]) -> Part:
    if isinstance(part, ListPart):
        return part
    return part.with_files(moved) if isinstance(part, InFlightPart) else _with_files(part, moved)


def _with_files(part: P, moved: Callable[[StateFile], StateFile]) -> P:
    return msgspec.structs.replace(part, files=tuple(map(moved, part.files)))


def _clipped(held: Sequence[KeyedPart], parallelism: int, max_parallelism: int, root: str) -> Iterator[KeyedPart]:
    """Yield for every subtask the files with its key groups, clipped to them.

    The files of one old subtask stay in order, because later ones win. Files of different old subtasks share no key group, so their
    order does not matter. Every old part looks only at the subtasks that get something of it.
    """
    ranges = [range_for(n, parallelism, max_parallelism) for n in range(parallelism)]
    dealt: list[list[StateFile]] = [[] for _ in ranges]
    for part in held:
        for n in owners(part.groups, parallelism, max_parallelism):
            common = part.groups.intersect(ranges[n])
            for file in part.files if common is not None else ():
                clip = file.groups.intersect(common)  # type: ignore[arg-type]
                if clip is not None:
                    dealt[n].append(msgspec.structs.replace(file, groups=clip, root=root))
    schemas = merged_schemas(part.schemas for part in held)
    key_type = next((part.key_type for part in held if part.key_type), "")
    windows = next((part.windows for part in held if part.windows), "")
    for groups, files in zip(ranges, dealt, strict=True):
        yield KeyedPart(groups, tuple(files), schemas, key_type, windows)


def _watermarks(watermarks: Sequence[int], parallelism: int) -> list[int]:
    """Return the initial output watermark of each new subtask: after a rescale the lowest, because any key may come from any
    one."""
    if len(watermarks) == parallelism:
        return list(watermarks)
    return [min(watermarks, default=MIN_WATERMARK)] * parallelism


def in_use(snapshots: Mapping[Any, OperatorSnapshot]) -> set[str]:
    """Paths of the files that snapshots refer to, in the job's own directory."""
    return {file.path for snapshot in snapshots.values() for file in snapshot.files() if not file.root}


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
