"""The keyed states with time to live. Cached and stored entries are pairs (value, expiry); lists and maps expire by element.

As in Flink, the access that finds an expired entry removes it, and may still return it once if so configured. Expired entries
without an access are dropped when a base is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.state.codecs import Codec, codec_for, expiring, list_codec_for
from tidegate.state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
)
from tidegate.state.keyed import ABSENT, KeyedMapState
from tidegate.state.keys import visible
from tidegate.state.single import TrackedState
from tidegate.state.ttl import StateTtlConfig

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend


class Lifetime:
    """The rules of one state: when an entry expires, and whether a read renews it."""

    __slots__ = ("_context", "_ttl_ms", "returns_expired", "updates_on_read")

    def __init__(self, backend: KeyedBackend, config: StateTtlConfig) -> None:
        self._context = backend.context
        self._ttl_ms = config.ttl_ms
        self.updates_on_read = config.updates_on_read
        self.returns_expired = config.returns_expired

    def expiry(self) -> int:
        """Return when an entry that is written now expires."""
        return self._context.time + self._ttl_ms

    def is_over(self, expiry: int) -> bool:
        return expiry <= self._context.time


def ttl_codec_for(descriptor: StateDescriptor) -> Codec:
    """Return the codec of a state with time to live."""
    if descriptor.kind == "list":
        return expiring(list_codec_for(descriptor.type_info, with_expiry=True))
    return expiring(codec_for(descriptor.type_info))


class _TtlSingleState(TrackedState):
    """One pair (value, expiry) per key."""

    __slots__ = ("_life",)

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        assert descriptor.ttl is not None
        self._life = Lifetime(backend, descriptor.ttl)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what the reads within do to the entry of the current key: they remove it, or renew it."""
        before = self._current()
        yield
        if self._current() is not before:
            self._store(before)

    def _visible(self) -> Any:
        """Return the value for a user's read. Remove it if it has expired; else renew it if so configured."""
        pair = self._current()
        if pair is None:
            return None
        if self._life.is_over(pair[1]):
            self._store(None)
            return pair[0] if self._life.returns_expired else None
        if self._life.updates_on_read:
            self._write(pair[0])
        return pair[0]

    def _alive(self) -> Any:
        """Return the value to add to; None if it has expired."""
        pair = self._current()
        return None if pair is None or self._life.is_over(pair[1]) else pair[0]

    def _write(self, value: Any) -> None:
        self._store(None if value is None else (value, self._life.expiry()))


class TtlValueState(_TtlSingleState, ValueState[Any]):
    __slots__ = ()

    def value(self) -> Any:
        return self._visible()

    def update(self, value: Any) -> None:
        self._write(value)


class TtlReducingState(_TtlSingleState, ReducingState[Any]):
    __slots__ = ("_reduce",)

    def __init__(self, backend: KeyedBackend, descriptor: ReducingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        return self._visible()

    def add(self, value: Any) -> None:
        current = self._alive()
        self._write(value if current is None else self._reduce(current, value))


class TtlAggregatingState(_TtlSingleState, AggregatingState[Any, Any]):
    __slots__ = ("_function",)

    def __init__(self, backend: KeyedBackend, descriptor: AggregatingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._function = descriptor.get_agg_function()

    def get(self) -> Any:
        accumulator = self._visible()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            return self.clear()
        accumulator = self._alive()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._write(self._function.add(value, accumulator))


class TtlListState(_TtlSingleState, ListState[Any]):
    """The value is a list of pairs (expiry, element); the entry expires with its last element."""

    __slots__ = ()

    def get(self) -> list[Any]:
        pair = self._current()
        if pair is None:
            return []
        life, elements = self._life, pair[0]
        live = [element for element in elements if not life.is_over(element[0])]
        if life.updates_on_read:
            self._put([(life.expiry(), value) for _, value in live])
        elif len(live) < len(elements):
            self._put(live)
        return [value for _, value in (elements if life.returns_expired else live)]

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        pair, expiry = self._current(), self._life.expiry()
        live = [] if pair is None else [element for element in pair[0] if not self._life.is_over(element[0])]
        self._put([*live, *((expiry, value) for value in values)])

    def update(self, values: Iterable[Any]) -> None:
        expiry = self._life.expiry()
        self._put([(expiry, value) for value in values])

    def _put(self, elements: list[tuple[int, Any]]) -> None:
        self._store((elements, max(expiry for expiry, _ in elements)) if elements else None)


class TtlMapState(KeyedMapState):
    """Every entry of the map is a pair (value, expiry)."""

    __slots__ = ("_life",)

    def __init__(self, backend: KeyedBackend, descriptor: MapStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        assert descriptor.ttl is not None
        self._life = Lifetime(backend, descriptor.ttl)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what the reads within do to the entries of the current key."""
        before = dict(self._all())
        yield
        for key, pair in before.items():
            if super()._value(key) is not pair:
                self._put(key, pair)

    def get(self, key: Any) -> Any:
        value = self._value(self._identity(key))
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        self._put(self._identity(key), (value, self._life.expiry()))

    def items(self) -> list[tuple[Any, Any]]:
        found = ((key, self._value(key)) for key in list(self._all()))
        return [(visible(key), value) for key, value in found if value is not ABSENT]

    def _value(self, key: Any) -> Any:
        pair = super()._value(key)
        if pair is ABSENT:
            return ABSENT
        if self._life.is_over(pair[1]):
            self._put(key, ABSENT)
            return pair[0] if self._life.returns_expired else ABSENT
        if self._life.updates_on_read:
            self._put(key, (pair[0], self._life.expiry()))
        return pair[0]
