"""Keyed states with one stored entry per key: value, list, reducing, aggregating. The path of every record.

A state works on a cache (``single.py`` has its invariants): a hit is a dict access, a miss reads the local store. At the end of the
round ``flush`` encodes what has changed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidegate.state.codecs import Codec
from tidegate.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from tidegate.state.interfaces import AggregatingState, ListState, ReducingState, ValueState
from tidegate.state.single import SingleState, TrackedState

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedBackend


class KeyedValueState(TrackedState, ValueState[Any]):
    __slots__ = ()

    value = SingleState._current
    update = TrackedState._store


class _Cells(dict[Any, Any]):
    """A cache that loads missing values: ``cells[slot]`` is always the state's value of the slot."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[Any], Any]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, slot: Any) -> Any:
        return self._load(slot)


class ImmutableValueState(SingleState, ValueState[Any]):
    """A value state of numbers, texts or bytes: values stay in memory across rounds.

    ``cells``: the younger generation of the cache; ``wrote``: the values written in this round. Generated loops
    (operators/loop/codegen.py) hold the two dicts for the life of the state, so the dicts are emptied and never replaced.
    ``cells[slot]`` is ``value()``, ``cells[slot] = wrote[slot] = x`` is ``update(x)``. So is ``cells[slot] = x`` alone if the
    slot is in a column passed to ``note`` before: then the cache has the only copy, until ``age`` or the flush copies it.
    """

    __slots__ = ("_noted", "cells", "note", "wrote")

    def __init__(self, backend: KeyedBackend, descriptor: StateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._cache = self.cells = _Cells(self._load)
        self.wrote: dict[Any, Any] = {}
        self._noted: list[npt.NDArray[Any]] = []
        self.note: Callable[[npt.NDArray[Any]], None] = self._noted.append

    value = SingleState._current

    def update(self, value: Any) -> None:
        slot = self._context.slot
        try:
            self.cells[slot] = self.wrote[slot] = value
        except TypeError as error:
            raise self._refuse() from error

    _store = update

    def has_changes(self) -> bool:
        return bool(self.wrote or self._noted)

    def reset(self, keep: bool) -> None:
        super().reset(keep)
        self.wrote.clear()
        self._noted.clear()

    def age(self) -> None:
        if self._noted:
            # Never called within a chunk: every slot that its column notes has been written.
            noted = distinct(self._noted)
            self.wrote.update(zip(noted, map(self.cells.__getitem__, noted), strict=True))
            self._noted.clear()
        super().age()

    def _unflushed(self) -> dict[Any, Any]:
        return self.wrote

    def _written(self) -> tuple[list[Any], list[Any]]:
        if not self._noted:
            return super()._written()
        # The cache has the last value of a noted slot; ``wrote`` has those of other slots.
        noted = distinct(self._noted)
        others = list(self.wrote.keys() - set(noted)) if self.wrote else []
        values = [*map(self.cells.__getitem__, noted), *map(self.wrote.__getitem__, others)]
        return noted + others, values


def distinct(columns: list[npt.NDArray[Any]]) -> list[Any]:
    """Return the numbers in some columns, each once. Numbers that are close together are ticked off, others are sorted."""
    low, high = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    if high - low > 8 * sum(map(len, columns)):
        return list(map(int, np.unique(np.concatenate(columns)).tolist()))
    seen = np.zeros(high - low + 1, np.bool_)
    for column in columns:
        seen[column.astype(np.int64) - low] = True
    found: list[Any] = (np.flatnonzero(seen) + low).tolist()
    return found


class KeyedListState(TrackedState, ListState[Any]):
    """The whole list is one entry."""

    __slots__ = ()

    def get(self) -> list[Any]:
        values = self._current()
        return [] if values is None else values.copy()

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        current = self._current()
        if current is None:
            self.update(values)
        else:
            current += values
            self._store(current)

    def update(self, values: Iterable[Any]) -> None:
        self._store(list(values) or None)

    def _merged(self, value: Any, other: Any) -> Any:
        return value + other


class KeyedReducingState(TrackedState, ReducingState[Any]):
    __slots__ = ("_reduce",)

    def __init__(self, backend: KeyedBackend, descriptor: ReducingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._reduce = descriptor.reduce

    def get(self) -> Any:
        return self._current()

    def add(self, value: Any) -> None:
        current = self._current()
        self._store(value if current is None else self._reduce(current, value))

    def _merged(self, value: Any, other: Any) -> Any:
        return self._reduce(value, other)


class KeyedAggregatingState(TrackedState, AggregatingState[Any, Any]):
    """The entry is the accumulator."""

    __slots__ = ("_function",)

    def __init__(self, backend: KeyedBackend, descriptor: AggregatingStateDescriptor, codec: Codec) -> None:
        super().__init__(backend, descriptor, codec)
        self._function = descriptor.get_agg_function()

    def get(self) -> Any:
        accumulator = self._current()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            return self.clear()
        accumulator = self._current()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._store(self._function.add(value, accumulator))

    def _merged(self, value: Any, other: Any) -> Any:
        return self._function.merge(value, other)
