"""The interfaces of state for user functions. Every access to keyed state is to the entry of the current key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """Root of all states."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Remove the entry of the current key."""


class ValueState(State, Generic[T]):
    """One value per key."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T | None:
        """Return the current value; None if there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None removes it. A value that was changed in place must be passed to ``update``."""


class AppendingState(State, Generic[IN, OUT]):
    """A state that values are added to."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> OUT:
        """Return the result of the added values."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add a value."""


class MergingState(AppendingState[IN, OUT]):
    """An appending state whose entries can be merged."""

    __slots__ = ()


class ReducingState(MergingState[T, T | None]):
    """The reduction of all added values; None if there are none."""

    __slots__ = ()


class AggregatingState(MergingState[IN, OUT]):
    """The result of an aggregate function over all added values; None if there are none. Adding None clears it, as in PyFlink."""

    __slots__ = ()


class ListState(MergingState[T, Iterable[T]]):
    """A list of values per key."""

    __slots__ = ()

    @abstractmethod
    def update(self, values: list[T]) -> None:
        """Replace the list; an empty one removes it."""

    @abstractmethod
    def add_all(self, values: list[T]) -> None:
        """Append all values."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(State, Generic[K, V]):
    """A map per key. Entries are stored one by one: reading one does not read the others."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of a map key; None if there is none."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a map key."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the values of many keys."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a map key. It may be missing."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether there is such a map key."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return all entries, in no particular order. The map may change during the iteration."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return all map keys."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """Return all values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class ReadOnlyBroadcastState(State, Generic[K, V]):
    """A map that is the same in all subtasks, read-only on the side that is not broadcast."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether there is such a key."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return all entries, in no particular order."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return all keys."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """Return all values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """The same map, writable on the broadcast side. Every subtask sees the same records there and must make the same changes: they
    must not depend on the subtask, on time or on chance."""

    __slots__ = ()

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the values of many keys."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a key. It may be missing."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class OperatorStateStore(ABC):
    """Returns the states of the operator itself by descriptor, in ``initialize_state``."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
        """Return a map that is the same in all subtasks; a new subtask gets a copy. The function must make the same changes in all
        subtasks."""

    @abstractmethod
    def get_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Return a list. When the parallelism changes, the elements of all subtasks are redistributed one by one."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Return a list. After a restore every subtask gets the elements of all subtasks."""
