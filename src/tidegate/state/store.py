"""The protocol of a local store, which every state backend implements (listed in ``stores.py``), and the rules of a forked
child."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tidegate.base.errors import StateAccessError


class EntryBlock(NamedTuple):
    """A part of a segment: canonical keys and values in turn, ``[k, v, k, v, ...]``; v None deletes."""

    table: int
    flat: list[Any]
    deletes: bool
    """Whether there may be deletions in it."""


class Snapshot(Protocol):
    """A consistent view of the store at one tag, whatever others write meanwhile. Keys are canonical, timers local."""

    tag: str
    max_key: int
    get: Callable[[bytes], bytes | None]
    """The value of a state entry; for keys of up to ``max_key`` bytes. A plain callable: it is called for every miss."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """``get`` for many keys."""
        ...

    def get_long(self, key: bytes) -> bytes | None:
        """``get`` for longer keys."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield all state entries that begin with a prefix, in no particular order."""
        ...

    def group(self, group: int) -> list[Any]:
        """Return all state entries of a key group, flat."""
        ...

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Return up to ``limit`` timers after a position, in the order of time, and the next position. Start with the domain's
        byte."""
        ...

    def has_timer(self, key: bytes) -> bool: ...

    def close(self) -> None: ...


class LocalStore(Protocol):
    """An ordered store with one tag that identifies its contents.

    Several processes may use it at once; the store decides whether they share one store or each has its own. A user closes its
    snapshot before ``apply``.
    """

    max_key: int
    """The ``max_key`` of its snapshots."""

    def snapshot(self) -> Snapshot: ...

    def apply(self, expected: str, blocks: Sequence[EntryBlock], tag: str, *, wipe: bool = False) -> bool:
        """Write blocks and the new tag in one transaction. Return False, and change nothing, if the tag is not ``expected``."""
        ...

    def release(self, *, hurry: bool = False) -> None:
        """Release the store for other processes after the round. It can be used again. ``hurry``: the round has failed, so do not
        wait for anything optional."""
        ...


RULE: Final = "State or a timer is used outside of the process that runs the operator."
CURE: Final = (
    "use state in the function itself, and hand values to the child process and back; "
    "or start the child with multiprocessing.get_context('spawn')"
)


def keep_for_ever(handle: Any) -> None:
    """Never finalize an object or the objects it refers to, not even at the end of the process. A list would not prevent that."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def used_in_child(where: str) -> StateAccessError:
    """Return the error for a use of state in a forked child."""
    return StateAccessError(
        RULE, where=where, found="a child process that was forked while the operator ran", cure=CURE
    )
