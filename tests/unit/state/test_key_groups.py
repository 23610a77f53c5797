"""Key groups and the router."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state import key_groups
from tidegate.state.key_groups import (
    BLOCK,
    IntRouter,
    KeyRouter,
    encode_and_group,
    group_of,
    groups_of_ints,
    hashes_of_ints,
    key_hash,
    owners,
    range_for,
    subtask_for,
)
from tidegate.state.keys import encode_key, identify


@given(st.integers(1, 300), st.integers(1, 300))
def test_ranges_cover_every_group_once_and_agree_with_subtask_for(parallelism: int, extra: int) -> None:
    maximum = parallelism + extra
    owned = [group for subtask in range(parallelism) for group in _groups(subtask, parallelism, maximum)]
    assert owned == list(range(maximum))
    for subtask in range(parallelism):
        assert {subtask_for(group, parallelism, maximum) for group in _groups(subtask, parallelism, maximum)} == {
            subtask
        }


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 100))
def test_owners_of_former_ranges_are_all_subtasks_with_one_of_their_groups(now: int, before: int, extra: int) -> None:
    maximum = max(now, before) + extra
    for subtask in range(before):
        groups = range_for(subtask, before, maximum)
        expected = [n for n in range(now) if range_for(n, now, maximum).intersect(groups) is not None]
        assert list(owners(groups, now, maximum)) == expected


def _groups(subtask: int, parallelism: int, maximum: int) -> range:
    found = range_for(subtask, parallelism, maximum)
    return range(found.first, found.last + 1)


def test_groups_of_keys_never_change() -> None:
    # checkpoints depend on these numbers: if this fails, old state can no longer be found
    keys = [0, 1, -1, 2**40, "", "customer-17", b"raw", 1.5, True, None, ("a", 1), 2**70]
    assert [group_of(identify(key), 128) for key in keys] == [89, 46, 19, 118, 120, 46, 113, 104, 37, 76, 61, 5]


def test_hashes_of_ints_never_change() -> None:
    keys = [0, 1, -1, 42, 2**31, -(2**31), 2**63 - 1, -(2**63), 1234567]
    hashes = [
        14374147212387527897,
        3439722301264460078,
        5841669975847748627,
        15395265915043915720,
        7714710879142532484,
        14007457584996024573,
        11687913294787043142,
        9407778237848358495,
        15660173113819508995,
    ]
    assert [key_hash(key, b"") for key in keys] == hashes
    assert hashes_of_ints(np.array(keys, np.int64)).tolist() == hashes
    assert [key_hash(key, encode_key(key)) for key in (2**63, -(2**63) - 1)] == [
        1407119778136835603,
        2723696717452576145,
    ]


_SIZES = [1 << bits for bits in range(64)]
_EDGES = [edge for size in _SIZES for edge in (*range(size - 3, size + 4), *range(-size - 3, -size + 4))]


def _assert_same_groups(keys: list[int], max_parallelism: int) -> None:
    groups = groups_of_ints(np.array(keys, np.int64), max_parallelism)
    assert groups.dtype == np.int64
    assert groups.tolist() == [group_of(key, max_parallelism) for key in keys]


@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 128, 1000, 32768])
def test_groups_of_many_ints_are_those_of_each_around_every_power_of_two(max_parallelism: int) -> None:
    edges = [edge for edge in _EDGES if -(1 << 63) <= edge < 1 << 63]
    _assert_same_groups(edges, max_parallelism)
    for edge in edges:
        _assert_same_groups([edge], max_parallelism)


def test_groups_of_all_ints_of_up_to_three_bytes() -> None:
    _assert_same_groups(list(range(-(1 << 15), 1 << 16)), 32768)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.integers(1, 32768))
def test_groups_of_many_ints_are_those_of_each(keys: list[int], max_parallelism: int) -> None:
    _assert_same_groups(keys, max_parallelism)


@given(st.integers(0, 62), st.randoms(use_true_random=False))
def test_groups_of_ints_of_one_magnitude(bits: int, random: Random) -> None:
    keys = [random.randrange(1 << bits, 1 << bits + 1) for _ in range(100)]
    _assert_same_groups(keys, 1 << 15)
    _assert_same_groups([-key for key in keys], 1 << 15)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_groups_of_more_ints_than_a_block(count: int) -> None:
    _assert_same_groups([number * 977 for number in range(count)], 128)


def test_groups_of_every_second_int_of_an_array() -> None:
    numbers = np.arange(1000, dtype=np.int64)
    assert groups_of_ints(numbers[::2], 128).tolist() == groups_of_ints(numbers, 128).tolist()[::2]


@pytest.mark.parametrize(
    "keys", [[], [1, 2**40, -5], [1, 2**63], [2**70, 1], [True, 1], ["a", 1, ("t", 2)], [1.5, None, b"raw"]]
)
def test_many_keys_are_encoded_and_grouped_like_one(keys: list[Any]) -> None:
    keys = list(map(identify, keys))
    encoded, groups = encode_and_group(keys, 1000)
    assert encoded == [encode_key(key) for key in keys]
    assert groups.tolist() == [group_of(key, 1000) for key in keys]


def test_router_gives_the_target_of_the_owner() -> None:
    route = KeyRouter(["zero", "one", "two"], 128)
    for key in ("a", "b", 7, ("x", 1)):
        expected = subtask_for(group_of(key, 128), 3, 128)
        assert route[key] == ("zero", "one", "two")[expected]
        assert route[key] == ("zero", "one", "two")[expected]
    assert len(route) == 4


def test_router_forgets_above_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_groups, "ROUTER_LIMIT", 3)
    route = KeyRouter(["only"], 128)
    _ = [route[key] for key in range(3)]
    route.trim()
    assert len(route) == 3
    _ = route[3]
    route.trim()
    assert len(route) == 0
    assert route[3] == "only"


@pytest.mark.parametrize("max_parallelism", [1, 7, 128, 1000])
@pytest.mark.parametrize("step", [1, 37, 1 << 30])
@pytest.mark.parametrize("start", [0, -3_000, -(1 << 63), (1 << 63) - 5_000 * (1 << 30)])
def test_an_int_router_finds_the_subtask_of_every_key(start: int, step: int, max_parallelism: int) -> None:
    parallelism = min(3, max_parallelism)
    ints, keys = IntRouter(parallelism, max_parallelism), KeyRouter(range(parallelism), max_parallelism)
    for batch in range(30):  # some in the table, some beyond it, more than there may be tables
        numbers = [start + (batch * 100 + i) * step for i in range(100)]
        assert ints.subtasks(np.array(numbers)).tolist() == [keys[number] for number in numbers]
        ends = [start, numbers[-1]]
        assert ints.subtasks(np.array(ends)).tolist() == [keys[number] for number in ends]


def test_an_int_router_at_the_ends_of_the_ints() -> None:
    ints, keys = IntRouter(5, 128), KeyRouter(range(5), 128)
    for numbers in ([-(1 << 63), (1 << 63) - 1], [(1 << 63) - 1], [-(1 << 63)], [(1 << 63) - 2, (1 << 63) - 1]):
        assert ints.subtasks(np.array(numbers)).tolist() == [keys[number] for number in numbers]
