"""The key context of a keyed operator: for which key, in which namespace and when state and timers are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tidegate.state.keys import visible


class _NoKey:
    """Represents a missing key. It cannot be hashed, so every access to state raises."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NO_KEY: Final = _NoKey("NO_KEY")
FORKED: Final = _NoKey("FORKED")
"""The key in a child that was forked while there was a key."""


class Scoped(NamedTuple):
    """A key in a namespace, which is another slot. No key in the engine's form equals one: tuples in that form contain no bytes."""

    key: Any
    namespace: bytes


class KeyContext:
    """One for each keyed operator of a subtask: the loop and the timers set it, states and timers read it.

    ``slot`` indexes the dicts of states and timers, and is all that is set for a record. Without a namespace it is the key itself
    in the engine's form (``NO_KEY`` without a key); inside a namespace (a window, say) it is ``Scoped``. So an operator without
    namespaces pays nothing for them, and one dict per state serves both. ``time``: processing time, set for every chunk.
    ``scoped``: whether a namespace was ever entered.
    """

    __slots__ = ("scoped", "slot", "time")

    slot: Any
    time: int

    def __init__(self, key: Any = NO_KEY, namespace: bytes = b"", time: int = 0) -> None:
        self.time, self.scoped = time, False
        self.enter(key, namespace)

    @property
    def key(self) -> Any:
        """The current key, in the engine's form."""
        return split(self.slot)[0]

    @key.setter
    def key(self, key: Any) -> None:
        """Set another key, without a namespace."""
        self.slot = key

    @property
    def visible_key(self) -> Any:
        """The current key as the user knows it."""
        return visible(self.key)

    @property
    def namespace(self) -> bytes:
        """The current namespace; empty: none."""
        return split(self.slot)[1]

    @namespace.setter
    def namespace(self, namespace: bytes) -> None:
        """Set another namespace of the current key."""
        self.enter(self.key, namespace)

    def enter(self, key: Any, namespace: bytes) -> None:
        """Set key and namespace."""
        self.slot = slot_of(key, namespace)
        self.scoped = self.scoped or bool(namespace)


def slot_of(key: Any, namespace: bytes) -> Any:
    # the class's own __new__ is a Python function, and costs three times as much
    return _new(Scoped, (key, namespace)) if namespace else key


_new: Callable[[type[Scoped], tuple[Any, bytes]], Scoped] = tuple.__new__


def split(slot: Any) -> tuple[Any, bytes]:
    """Key and namespace of a slot."""
    return slot if type(slot) is Scoped else (slot, b"")
