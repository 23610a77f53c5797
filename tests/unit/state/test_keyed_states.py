"""The states as user functions see them, over rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.state.state_subtask import Subtask
from tidegate.base.errors import InternalError, StateAccessError, StateFormatError
from tidegate.common.typeinfo import Types
from tidegate.common.types import Row
from tidegate.state.backend import KeyedBackend
from tidegate.state.context import NO_KEY
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.keyed import ImmutableValueState, KeyedValueState, distinct
from tidegate.state.refs import StateSchema

Make = Callable[..., Subtask]
LONG_KEY = "k" * 2000


class Average:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]


class Largest:
    def reduce(self, left: int, right: int) -> int:
        return max(left, right)


def at(backend: KeyedBackend, key: Any, action: Callable[[], Any]) -> Any:
    backend.context.key = key
    return action()


@pytest.mark.parametrize("info", [Types.LONG(), Types.PICKLED_BYTE_ARRAY(), None])
def test_values_survive_rounds(subtask: Subtask, info: Any) -> None:
    state = subtask.backend.state(ValueStateDescriptor("v", info))
    keys = ["a", 7, ("x", 1), None, b"", LONG_KEY, 2**90]

    def write(backend: KeyedBackend) -> None:
        for number, key in enumerate(keys):
            assert at(backend, key, state.value) is None
            state.update(number)
            assert state.value() == number

    def change(backend: KeyedBackend) -> None:
        assert [at(backend, key, state.value) for key in keys] == [0, 1, 2, 3, 4, 5, 6]
        at(backend, "a", state.clear)
        at(backend, 7, lambda: state.update(None))
        at(backend, LONG_KEY, lambda: state.update(50))
        assert [at(backend, key, state.value) for key in keys] == [None, None, 2, 3, 4, 50, 6]

    subtask.round(write)
    subtask.round(change)
    assert subtask.round(lambda b: [at(b, key, state.value) for key in keys]) == [None, None, 2, 3, 4, 50, 6]


def test_an_entry_cleared_without_being_read_is_deleted(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("v", Types.LONG()))
    subtask.round(lambda b: at(b, "a", lambda: state.update(1)))
    subtask.backend = subtask.new_backend()  # nothing cached
    state = subtask.backend.state(ValueStateDescriptor("v", Types.LONG()))
    subtask.round(lambda b: at(b, "a", state.clear))
    assert subtask.round(lambda b: at(b, "a", state.value)) is None


def test_a_list_changed_in_place_and_updated_is_kept(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("v", None))

    def append(backend: KeyedBackend) -> list[int]:
        backend.context.key = "a"
        values = state.value() or []
        values.append(len(values))
        state.update(values)
        return list(values)

    assert [subtask.round(append) for _ in range(3)] == [[0], [0, 1], [0, 1, 2]]


def test_lists(subtask: Subtask) -> None:
    state = subtask.backend.state(ListStateDescriptor("l", Types.TUPLE([Types.LONG(), Types.STRING()])))

    def first(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        assert list(state.get()) == []
        state.add((1, "a"))
        state.add_all([(2, "b"), (3, "c")])
        assert list(state.get()) == list(state) == [(1, "a"), (2, "b"), (3, "c")]
        backend.context.key = "b"
        state.update([(9, "z")])

    def second(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        for element in state.get():  # may be changed while it is read
            state.add(element)
        assert len(list(state.get())) == 6
        backend.context.key = "b"
        state.update([])
        assert list(state.get()) == []

    subtask.round(first)
    subtask.round(second)
    result = subtask.round(lambda b: [at(b, key, lambda: list(state.get())) for key in ("a", "b")])
    assert result == [[(1, "a"), (2, "b"), (3, "c")] * 2, []]


@pytest.mark.parametrize("function", [lambda a, b: max(a, b), Largest()])
def test_reducing(subtask: Subtask, function: Any) -> None:
    descriptor = ReducingStateDescriptor("r", function, Types.LONG())
    state = subtask.backend.state(descriptor)
    assert descriptor.get_reduce_function() is function

    def add(backend: KeyedBackend, *values: int) -> Any:
        backend.context.key = "a"
        for value in values:
            state.add(value)
        return state.get()

    assert subtask.round(add) is None
    assert subtask.round(lambda b: add(b, 3, 5, 4)) == 5
    assert subtask.round(lambda b: add(b, 2)) == 5
    assert subtask.round(lambda b: at(b, "a", state.clear)) is None
    assert subtask.round(add) is None


def test_aggregating(subtask: Subtask) -> None:
    state = subtask.backend.state(AggregatingStateDescriptor("g", Average(), Types.TUPLE([Types.LONG(), Types.LONG()])))

    def add(backend: KeyedBackend, *values: int | None) -> Any:
        backend.context.key = "a"
        for value in values:
            state.add(value)
        return state.get()

    assert subtask.round(add) is None
    assert subtask.round(lambda b: add(b, 1, 2)) == 1.5
    assert subtask.round(lambda b: add(b, 6)) == 3.0
    assert subtask.round(lambda b: add(b, None)) is None
    assert subtask.round(lambda b: add(b, 4)) == 4.0


def test_maps_merge_store_and_round(subtask: Subtask) -> None:
    state = subtask.backend.state(MapStateDescriptor("m", Types.STRING(), Types.LONG()))

    def first(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        assert state.is_empty()
        state.put_all({"x": 1, "y": 2, LONG_KEY: 3})
        state["z"] = 4
        backend.context.key = "b"
        state.put("x", 10)

    def second(backend: KeyedBackend) -> None:
        backend.context.key = "a"
        assert state.get("x") == state["x"] == 1
        assert state.get("missing") is None
        state.put("y", 20)
        state.remove("z")
        state.remove("never there")
        assert ("z" in state, "x" in state, state.contains(LONG_KEY)) == (False, True, True)
        assert dict(state.items()) == {"x": 1, "y": 20, LONG_KEY: 3}
        assert sorted(state.keys()) == sorted(state) == sorted(["x", "y", LONG_KEY])
        assert sorted(state.values()) == [1, 3, 20]
        backend.context.key = "b"
        state.clear()
        assert state.is_empty()
        state.put("new", 5)
        assert (state.get("x"), dict(state.items())) == (None, {"new": 5})

    subtask.round(first)
    subtask.round(second)
    found = subtask.round(lambda b: [at(b, key, lambda: dict(state.items())) for key in ("a", "b")])
    assert found == [{"x": 1, "y": 20, LONG_KEY: 3}, {"new": 5}]


def test_a_map_may_hold_none(subtask: Subtask) -> None:
    state = subtask.backend.state(MapStateDescriptor("m", None, None))
    subtask.round(lambda b: at(b, "a", lambda: state.put(("k", 1), None)))
    assert subtask.round(lambda b: at(b, "a", lambda: (("k", 1) in state, state.keys()))) == (True, [("k", 1)])


def test_states_of_one_operator_do_not_mix(subtask: Subtask) -> None:
    names = ["a", "ab", "b", "a\x00"]
    states = [subtask.backend.state(MapStateDescriptor(name, None, None)) for name in names]

    def write(backend: KeyedBackend) -> None:
        for key in ("k", "kk", "b"):
            backend.context.key = key
            for name, state in zip(names, states, strict=True):
                state.put("entry", (name, key))

    def read(backend: KeyedBackend) -> Any:
        return [at(backend, key, lambda s=state: s.items()) for state in states for key in ("k", "kk", "b")]  # type: ignore[misc]

    subtask.round(write)
    assert subtask.round(read) == [[("entry", (name, key))] for name in names for key in ("k", "kk", "b")]


DESCRIPTORS: list[StateDescriptor] = [
    ValueStateDescriptor("s", Types.LONG()),
    ValueStateDescriptor("s", None),
    ListStateDescriptor("s", None),
    MapStateDescriptor("s", None, None),
    ReducingStateDescriptor("s", max, None),
    AggregatingStateDescriptor("s", Average(), None),
]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: f"{d.kind}-{d.type_info}")
def test_state_without_a_key_is_refused(subtask: Subtask, descriptor: StateDescriptor) -> None:
    state = subtask.backend.state(descriptor)
    subtask.begin()
    calls = {
        "value": (lambda: state.value(), lambda: state.update(1), state.clear),
        "list": (lambda: state.get(), lambda: state.add(1), lambda: state.update([1]), state.clear),
        "map": (lambda: state.get(1), lambda: state.put(1, 1), lambda: state.items(), lambda: 1 in state, state.clear),
        "reducing": (lambda: state.get(), lambda: state.add(1), state.clear),
        "aggregating": (lambda: state.get(), lambda: state.add(1), state.clear),
    }[descriptor.kind]
    assert subtask.backend.context.key is NO_KEY
    for call in calls:
        with pytest.raises(StateAccessError) as caught:
            call()
        text = str(caught.value)
        assert text.startswith("Keyed state and timers are only available in a keyed context")
        assert "where: state 's' of operator 'totals'" in text
        assert "cure: call key_by before this operation" in text
    assert subtask.finish() is None


def test_what_python_cannot_hash_is_a_key_by_its_bytes(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("s", Types.LONG()))
    identity = subtask.backend.identity
    keys = [["list"], {"a": 1}, bytearray(b"x"), ("t", [1]), Row([1])]

    def write(backend: KeyedBackend) -> None:
        for number, key in enumerate(keys):
            at(backend, identity(key), lambda n=number: state.update(n))  # type: ignore[misc]

    subtask.round(write)
    subtask.backend = subtask.new_backend()
    state = subtask.backend.state(ValueStateDescriptor("s", Types.LONG()))
    assert subtask.round(lambda b: [at(b, identity(key), state.value) for key in keys]) == [0, 1, 2, 3, 4]
    subtask.begin().context.key = identity(keys[0])
    assert subtask.backend.context.visible_key == ["list"]


def test_a_key_that_is_not_in_the_form_of_the_engine_is_our_bug(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("s", Types.LONG()))
    subtask.begin().context.key = ["list"]
    for call in (state.value, lambda: state.update(1)):
        with pytest.raises(InternalError, match=r"where: state 's' of operator 'totals'\n  found: list \['list'\]"):
            call()


def test_a_value_that_cannot_be_stored_names_the_state(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("sum", Types.LONG()))
    table = subtask.backend.state(MapStateDescriptor("table", None, Types.LONG()))
    backend = subtask.begin()
    backend.context.key = "a"
    state.update(2**64)
    with pytest.raises(StateFormatError) as caught:
        subtask.finish()
    assert "where: state 'sum' of operator 'totals'\n  found: int 18446744073709551616: " in str(caught.value)
    state.update(1)
    table.put("x", "text")
    with pytest.raises(StateFormatError, match="where: state 'table' of operator 'totals'\n  found: str 'text'"):
        subtask.finish()
    backend.end()
    assert subtask.round(lambda b: at(b, "a", state.value)) is None  # nothing of the failed round is left


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_value_of_another_type_names_the_state(subtask: Subtask, prefetch: bool) -> None:
    state = subtask.backend.state(ValueStateDescriptor("sum", Types.STRING()))
    subtask.round(lambda b: at(b, "a", lambda: state.update("text")))
    subtask.backend = subtask.new_backend()
    state = subtask.backend.state(ValueStateDescriptor("sum", Types.TUPLE([Types.LONG()])))
    subtask.begin().context.key = "a"
    with pytest.raises(StateFormatError) as caught:
        state.prefetch(["a"]) if prefetch else state.value()
    assert str(caught.value).startswith("A stored value cannot be read with the declared type, TUPLE<LONG>.")
    assert "where: state 'sum' of operator 'totals'" in str(caught.value)


def test_a_key_of_another_subtask_is_our_bug(make_subtask: Make) -> None:
    half = make_subtask(0, 2)
    foreign = next(key for key in range(100) if not half.owns(key))
    states = [
        half.backend.state(ValueStateDescriptor("v", Types.LONG())),
        half.backend.state(MapStateDescriptor("m", None, None)),
    ]
    half.begin().context.key = foreign
    states[0].prefetch([foreign])
    for call in (states[0].value, lambda: states[1].get(1)):
        with pytest.raises(InternalError, match=r"A record is in a subtask that does not own its key group\."):
            call()
    states[0].update(1)
    with pytest.raises(InternalError, match="key groups 0-7"):
        half.finish()


def test_the_same_name_gives_the_same_state(subtask: Subtask) -> None:
    backend = subtask.backend
    first = backend.state(ValueStateDescriptor("v", Types.LONG()))
    assert backend.state(ValueStateDescriptor("v", Types.LONG())) is first
    with pytest.raises(StateAccessError) as caught:
        backend.state(ListStateDescriptor("v", Types.LONG()))
    text = str(caught.value)
    assert text.startswith("Two states with the same name differ in kind, types or time to live.")
    assert "kind='list'" in text
    assert "kind='value'" in text
    with pytest.raises(StateAccessError, match="type='STRING'"):
        backend.state(ValueStateDescriptor("v", Types.STRING()))
    with pytest.raises(StateAccessError, match="The argument is not a state descriptor"):
        backend.state("v")  # type: ignore[arg-type]


def test_schemas_and_classes(subtask: Subtask) -> None:
    backend = subtask.backend
    assert isinstance(backend.state(ValueStateDescriptor("fast", Types.LONG())), ImmutableValueState)
    assert isinstance(backend.state(ValueStateDescriptor("any", None)), KeyedValueState)
    backend.state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
    assert backend.schemas() == [
        StateSchema("any", "value", "pickle"),
        StateSchema("fast", "value", "LONG"),
        StateSchema("map", "map", "LONG", "STRING"),
    ]


@pytest.mark.parametrize("scale", [1, 1 << 40])
@pytest.mark.parametrize("start", [0, -50, -(1 << 63)])
def test_numbers_in_columns_are_found_once(start: int, scale: int) -> None:
    numbers = [start + scale * (n * 7919 % 97) for n in range(500)]
    columns = [np.array(numbers[at : at + 120]) for at in range(0, 500, 120)]
    assert sorted(distinct(columns)) == sorted(set(numbers))
    assert distinct([np.array([3, 100], np.int8), np.array([100, 30_000], np.int16)]) == [3, 100, 30_000]


def test_noted_keys_are_written_with_those_updated(subtask: Subtask) -> None:
    state = subtask.backend.state(ValueStateDescriptor("n", Types.LONG()))

    def write(backend: KeyedBackend) -> None:
        state.cells.update({1: 10, 2: 20, 3: 30})
        state.note(np.array([1, 2], np.int16))
        state.note(np.array([2, 3]))
        for key in (3, 4):
            at(backend, key, lambda key=key: state.update(-key))  # type: ignore[misc]

    subtask.round(write)
    subtask.backend = subtask.new_backend()  # which knows nothing but the files
    read = subtask.backend.state(ValueStateDescriptor("n", Types.LONG()))
    assert subtask.round(lambda b: [at(b, key, read.value) for key in (1, 2, 3, 4, 5)]) == [10, 20, -3, -4, None]
