"""State descriptors (the name, kind and type of a state) and the interfaces of state, for user functions.

A user function gets a state by its descriptor. Every access to keyed state is to the entry of the current key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.base.arguments import expect_text, wrong
from tidegate.base.errors import StateAccessError
from tidegate.base.generics import Generic, TypeVar
from tidegate.base.pickling import stored_allowed
from tidegate.common.object_types import type_of
from tidegate.state.codecs import PICKLE, TypeInfo, codec_for
from tidegate.state.refs import StateSchema
from tidegate.state.ttl import StateTtlConfig

if TYPE_CHECKING:
    from tidegate.common.typeinfo import TypeInformation

T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
IN = TypeVar("IN", default=Any)
OUT = TypeVar("OUT", default=Any)


class StateDescriptor:
    """Root of the descriptors. ``type_info`` None: values are pickled."""

    kind: ClassVar[str] = ""

    def __init__(self, name: str, type_info: TypeInfo | type[Any] | None) -> None:
        method = type(self).__name__
        self.name = expect_text(method, name, 'give the state a name, for example "count"')
        self.type_info = _expect_type(method, type_info)
        self._ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name, which identifies the state in its operator."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let entries expire. Call it before the function gets the state."""
        if not isinstance(ttl_config, StateTtlConfig):
            cure = "StateTtlConfig.new_builder(Time.seconds(1)).build()"
            raise wrong("enable_time_to_live", "a StateTtlConfig", ttl_config, cure)
        self._ttl_config = ttl_config

    @property
    def ttl(self) -> StateTtlConfig | None:
        """The configuration, if entries expire at all."""
        config = self._ttl_config
        return config if config is not None and config.is_enabled() else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a state with one value for each key."""

    kind = "value"

    def __init__(self, name: str, value_type_info: TypeInformation[T] | type[T] | None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Describes a list for each key. ``type_info`` is the type of an element."""

    kind = "list"

    def __init__(self, name: str, elem_type_info: TypeInformation[T] | type[T] | None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Describes a map for each key. ``type_info`` is the type of a value, ``key_type_info`` of a map key."""

    kind = "map"

    def __init__(
        self,
        name: str,
        key_type_info: TypeInformation[K] | type[K] | None,
        value_type_info: TypeInformation[V] | type[V] | None,
    ) -> None:
        super().__init__(name, value_type_info)
        self.key_type_info = _expect_type(type(self).__name__, key_type_info)


class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """``reduce_function``: a callable of two values, or an object with ``reduce``."""

    kind = "reducing"

    def __init__(self, name: str, reduce_function: Any, type_info: TypeInformation[T] | type[T] | None) -> None:
        super().__init__(name, type_info)
        self._reduce_function = reduce_function
        self.reduce: Callable[[Any, Any], Any] = getattr(reduce_function, "reduce", reduce_function)
        if not callable(self.reduce):
            cure = "for example lambda a, b: a + b"
            raise wrong(type(self).__name__, "a function of two values or a ReduceFunction", reduce_function, cure)

    def get_reduce_function(self) -> Any:
        """The function it was made with."""
        return self._reduce_function


class AggregatingStateDescriptor(StateDescriptor, Generic[IN, OUT]):
    """``agg_function``: an object with ``create_accumulator``, ``add``, ``get_result`` and ``merge``."""

    kind = "aggregating"

    def __init__(self, name: str, agg_function: Any, state_type_info: TypeInformation | type[Any] | None) -> None:
        super().__init__(name, state_type_info)
        if not all(callable(getattr(agg_function, part, None)) for part in ("create_accumulator", "add", "get_result")):
            cure = "write a class with create_accumulator, add, get_result and merge"
            raise wrong(type(self).__name__, "an AggregateFunction", agg_function, cure)
        self._agg_function = agg_function

    def get_agg_function(self) -> Any:
        """The function it was made with."""
        return self._agg_function


def schema_of(descriptor: StateDescriptor) -> StateSchema:
    """Return the schema of a declared state, for metadata."""
    key_type = codec_for(descriptor.key_type_info).describe if isinstance(descriptor, MapStateDescriptor) else ""
    ttl_ms = 0 if descriptor.ttl is None else descriptor.ttl.ttl_ms
    return StateSchema(descriptor.name, descriptor.kind, stored_type(descriptor), key_type, ttl_ms)


def stored_type(descriptor: StateDescriptor) -> str:
    """Return the text of the values' type. A state without a type is pickled, or refused where pickles are forbidden."""
    described = codec_for(descriptor.type_info).describe
    if described == PICKLE and not stored_allowed():
        raise StateAccessError(
            "The state declares no type, so its values are pickled; tidegate.state.allow-pickle: false forbids that",
            where=f"state {descriptor.name!r}",
            found=repr(descriptor.type_info),
            cure="declare a type, for example ValueStateDescriptor('name', Types.LONG())",
        )
    return described


def _expect_type(method: str, info: Any) -> TypeInfo | None:
    if hasattr(info, "to_schema") and hasattr(info, "describe"):
        typed: TypeInfo | None = info
        return typed
    return type_of(method, info)


def expect_descriptor(value: Any, operator: str) -> StateDescriptor:
    """Check the argument of ``get_state`` and similar methods."""
    if isinstance(value, StateDescriptor) and value.kind:
        return value
    raise StateAccessError(
        "The argument is not a state descriptor.",
        where=f"operator {operator}",
        found=f"{type(value).__name__}",
        cure='use ValueStateDescriptor("name", Types.LONG()) or another state descriptor',
    )


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


class _ReadableMap(State, Generic[K, V]):
    """Reading a map."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of a map key; None if there is none."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether there is such a map key."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return all entries, in no particular order. A writable map may change during the iteration."""

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

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _WritableMap(_ReadableMap[K, V]):
    """Reading and writing a map."""

    __slots__ = ()

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a map key."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the values of many keys."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a map key. It may be missing."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_WritableMap[K, V]):
    """A map per key. Entries are stored one by one: reading one does not read the others."""

    __slots__ = ()


class ReadOnlyBroadcastState(_ReadableMap[K, V]):
    """A map that is the same in all subtasks, read-only on the side that is not broadcast."""

    __slots__ = ()


class BroadcastState(_WritableMap[K, V], ReadOnlyBroadcastState[K, V]):
    """The same map, writable on the broadcast side. Every subtask sees the same records there and must make the same changes: they
    must not depend on the subtask, on time or on chance."""

    __slots__ = ()


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
