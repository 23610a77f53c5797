"""What a local store must be able to do: the protocol every state backend implements. ``stores.py`` has the list of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tidegate.base.errors import StateAccessError


class Batch(NamedTuple):
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
        """All state entries that begin with a prefix, in no particular order."""
        ...

    def group(self, group: int) -> list[Any]:
        """All state entries of a key group, flat."""
        ...

    def timers(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Up to ``limit`` timers in the order of time, and a position: they go on after it. Begin with the domain's byte."""
        ...

    def has_timer(self, key: bytes) -> bool: ...

    def close(self) -> None: ...


class LocalStore(Protocol):
    """An ordered store in which one tag tells what it holds.

    Several processes may use it at once; whether they then see one store or each its own is the store's affair. Its user has
    closed its snapshot before it applies.
    """

    max_key: int
    """The ``max_key`` of its snapshots."""

    def snapshot(self) -> Snapshot: ...

    def apply(self, expected: str, batches: Sequence[Batch], tag: str, *, wipe: bool = False) -> bool:
        """Write batches and the new tag in one transaction. False, and nothing done, if the tag is not ``expected`` any more."""
        ...

    def release(self, *, hurry: bool = False) -> None:
        """The round is over: another process may want the store. It can be used again all the same. ``hurry``: the round has
        failed, and nothing that can wait is waited for."""
        ...


RULE: Final = "State or a timer is used outside of the process that runs the operator."
CURE: Final = (
    "use state in the function itself, and hand values to the child process and back; "
    "or start the child with multiprocessing.get_context('spawn')"
)


def keep_for_ever(handle: Any) -> None:
    """Never finalize an object, nor what it refers to. Not at the end of the process either: that is why a list would not do."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def used_in_child(where: str) -> StateAccessError:
    return StateAccessError(
        RULE, where=where, found="a child process that was forked while the operator ran", cure=CURE
    )
