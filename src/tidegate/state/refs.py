"""References to state files: what the driver hands to subtasks and checkpoints store."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tidegate.base.errors import RestoreError


class KeyGroupRange(msgspec.Struct, frozen=True, order=True):
    """Key groups ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange | None:
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


class StateFile(msgspec.Struct, frozen=True):
    """One file of a subtask's state list; later files win over earlier ones.

    ``path`` is relative to the job's directory (``root`` empty) or to ``root`` (only until the first round after a restore from
    a foreign directory; never in metadata). ``upto`` is the version the state has after this file is applied. Only entries
    in ``groups`` count.
    """

    path: str
    size: int
    hash: str
    upto: str
    groups: KeyGroupRange
    entries: int = 0
    root: str = ""


class StateSchema(msgspec.Struct, frozen=True):
    """The declaration of one registered state, for restore checks and for readers of snapshots."""

    name: str
    kind: str
    """value, list, map, reducing, aggregating."""
    type: str
    """A stable text of the value's type information; ``pickle`` where values are pickled."""
    key_type: str = ""
    """Map states: the type of the map's keys."""
    ttl_ms: int = 0


def schema_mismatch(stored: Collection[StateSchema], declared: StateSchema) -> str | None:
    """Return how a declared state differs from the stored one; None if it does not."""
    for schema in stored:
        if schema.name == declared.name:
            old, new = _type_text(schema), _type_text(declared)
            return None if old == new else f"state {schema.name!r} is stored as {old} and declared as {new}"
    return None


def _type_text(schema: StateSchema) -> str:
    """Return the text of a type. It says whether there is a TTL, since entries then carry their expiry; the duration may change."""
    of = f"{schema.key_type} to {schema.type}" if schema.key_type else schema.type
    return f"{schema.kind} of {of}{' with time to live' if schema.ttl_ms else ''}"


class Misfits:
    """States that an operator declares differently from how they are stored. Such a state is never decoded by a guess: the first
    one raises. In a rehearsal, where nothing is decoded, all are ``kept`` for one report."""

    def __init__(self, operator_name: str) -> None:
        self._operator_name = operator_name
        self.kept: list[str] | None = None

    def found(self, problem: str) -> None:
        if self.kept is None:
            raise RestoreError(
                "A state is declared differently from how it is stored.",
                where=f"operator {self._operator_name!r}",
                found=problem,
                cure=CURE_OF_MISFITS,
            )
        self.kept.append(problem)


CURE_OF_MISFITS = "declare the state as before, or give the changed state another name"
