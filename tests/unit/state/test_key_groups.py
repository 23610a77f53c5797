"""Key groups and the router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state import key_groups
from tidegate.state.codecs import encode_key
from tidegate.state.key_groups import KeyRouter, key_group, range_for, subtask_for


@given(st.integers(1, 300), st.integers(1, 300))
def test_ranges_cover_every_group_once_and_agree_with_subtask_for(parallelism: int, extra: int) -> None:
    maximum = parallelism + extra
    owned = [group for subtask in range(parallelism) for group in _groups(subtask, parallelism, maximum)]
    assert owned == list(range(maximum))
    for subtask in range(parallelism):
        assert {subtask_for(group, parallelism, maximum) for group in _groups(subtask, parallelism, maximum)} == {
            subtask
        }


def _groups(subtask: int, parallelism: int, maximum: int) -> range:
    found = range_for(subtask, parallelism, maximum)
    return range(found.first, found.last + 1)


def test_groups_of_keys_never_change() -> None:
    # checkpoints depend on these numbers: if this fails, old state can no longer be found
    keys = [0, 1, -1, 2**40, "", "customer-17", b"raw", 1.5, True, None, ("a", 1), 2**70]
    assert [key_group(encode_key(key), 128) for key in keys] == [91, 107, 46, 13, 120, 46, 113, 104, 37, 76, 61, 113]


def test_router_gives_the_target_of_the_owner() -> None:
    route = KeyRouter(["zero", "one", "two"], 128)
    for key in ("a", "b", 7, ("x", 1)):
        expected = subtask_for(key_group(encode_key(key), 128), 3, 128)
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
