"""State and timers in namespaces: each key has a slot of its own in every one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.state.state_subtask import Subtask
from tests.unit.state.test_keyed_states import Average
from tidegate.common.typeinfo import Types
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import NO_KEY, KeyContext, Scoped
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

KEYS = [1, "a", ("t", 1)]
NAMESPACES = [b"", b"w1", b"w" * 255]
SLOTS = [(key, namespace) for key in KEYS for namespace in NAMESPACES]
VALUE = ValueStateDescriptor("value", Types.LONG())
ANY = ValueStateDescriptor("any", None)
TABLE = MapStateDescriptor("table", None, Types.LONG())


def test_a_context_has_key_namespace_and_time() -> None:
    context = KeyContext("a", b"w", 7)
    assert (context.key, context.namespace, context.time, context.slot) == ("a", b"w", 7, Scoped("a", b"w"))
    context.namespace = b""
    assert (context.key, context.namespace, context.slot) == ("a", b"", "a")
    context.namespace = b"v"
    context.key = "b"
    assert (context.key, context.namespace, context.slot) == ("b", b"", "b")
    assert KeyContext().key is NO_KEY
    assert [KeyContext("a").scoped, KeyContext("a", b"w").scoped] == [False, True]


def write(backend: KeyedBackend) -> None:
    for number, slot in enumerate(SLOTS):
        backend.context.enter(*slot)
        backend.state(VALUE).update(number)
        backend.state(ANY).update([number])
        backend.state(TABLE).put("entry", number)
        backend.event_timers.register(number)


def values(backend: KeyedBackend) -> list[Any]:
    found = []
    for slot in SLOTS:
        backend.context.enter(*slot)
        found.append((backend.state(VALUE).value(), backend.state(ANY).value(), backend.state(TABLE).items()))
    return found


EXPECTED = [(number, [number], [("entry", number)]) for number in range(len(SLOTS))]


@pytest.mark.parametrize("anew", [False, True])
def test_every_namespace_has_its_own_entries(subtask: Subtask, anew: bool) -> None:
    subtask.round(write)
    if anew:
        subtask.backend = subtask.new_backend(subtask.local + "-other")
    assert subtask.round(values) == EXPECTED

    def clear(backend: KeyedBackend) -> None:
        backend.context.enter("a", b"w1")
        for descriptor in (VALUE, ANY, TABLE):
            backend.state(descriptor).clear()

    subtask.round(clear)
    gone = SLOTS.index(("a", b"w1"))
    assert subtask.round(values) == [*EXPECTED[:gone], (None, None, []), *EXPECTED[gone + 1 :]]


def test_a_cache_that_is_behind_learns_of_namespaces(subtask: Subtask) -> None:
    first = subtask.backend
    subtask.round(write)
    subtask.backend = subtask.new_backend()

    def change(backend: KeyedBackend) -> None:
        for key, namespace, value in (("a", b"w1", 50), ("a", b"", 60), (1, b"w1", None)):
            backend.context.enter(key, namespace)
            backend.state(VALUE).update(value)

    subtask.round(change)
    subtask.backend = first
    found = [value for value, _, _ in subtask.round(values)]
    changed = {("a", b"w1"): 50, ("a", b""): 60, (1, b"w1"): None}
    assert found == [changed.get(slot, number) for number, slot in enumerate(SLOTS)]


def test_prefetch_reads_slots(subtask: Subtask) -> None:
    subtask.round(write)
    subtask.backend = subtask.new_backend()
    state = subtask.backend.state(VALUE)
    subtask.begin().context.enter("a", b"w1")
    slots = [Scoped(key, namespace) if namespace else key for key, namespace in SLOTS]
    state.prefetch(slots)
    assert [state.cells[slot] for slot in slots] == list(range(len(slots)))


def test_timers_carry_their_namespace(subtask: Subtask) -> None:
    subtask.round(write)

    def fire(backend: KeyedBackend) -> list[Any]:
        backend.context.enter("a", b"w1")
        backend.event_timers.delete(SLOTS.index(("a", b"w1")))
        backend.event_timers.delete(SLOTS.index((1, b"")))  # of another key: nothing happens
        return list(backend.event_timers.due(100))

    assert subtask.round(fire) == [(time, *slot) for time, slot in enumerate(SLOTS) if slot != ("a", b"w1")]
    assert subtask.round(lambda b: list(b.event_timers.due(100))) == []


@pytest.mark.parametrize(
    ("descriptor", "added", "expected"),
    [
        (ReducingStateDescriptor("s", lambda a, b: a + b, Types.LONG()), [1, 2, 4], 7),
        (AggregatingStateDescriptor("s", Average(), None), [1, 2, 6], 3),
        (ListStateDescriptor("s", Types.LONG()), [1, 2, 4], [1, 2, 4]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_namespaces_merge(subtask: Subtask, descriptor: StateDescriptor, added: list[int], expected: Any) -> None:
    def add(backend: KeyedBackend) -> None:
        for namespace, value in zip((b"target", b"one", b"two"), added, strict=True):
            backend.context.enter("a", namespace)
            backend.state(descriptor).add(value)

    def merge(backend: KeyedBackend) -> Any:
        backend.context.enter("a", b"now")
        backend.state(descriptor).merge_namespaces(b"target", [b"one", b"absent", b"two"])
        assert (backend.context.key, backend.context.namespace) == ("a", b"now")

    def look(backend: KeyedBackend) -> list[Any]:
        found = []
        for namespace in (b"target", b"one", b"two", b"absent"):
            backend.context.enter("a", namespace)
            found.append(backend.state(descriptor).get())
        return found

    subtask.round(add)
    subtask.round(merge)
    none: Any = [] if descriptor.kind == "list" else None
    assert subtask.round(look) == [expected, none, none, none]
