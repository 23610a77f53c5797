"""The canonical layout of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError, InternalError, StateFormatError
from tidegate.state import layout
from tidegate.state.refs import KeyGroupRange

TIMES = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**40))
def test_varints_come_back(number: int) -> None:
    data = layout.varint(number)
    assert layout.read_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))
    assert layout.LENGTHS[number] == data


@given(TIMES, TIMES)
def test_times_sort_as_bytes(left: int, right: int) -> None:
    assert (layout.time_bytes(left) < layout.time_bytes(right)) == (left < right)


@given(st.integers(0, 32767), st.integers(0, 1), TIMES, st.binary(max_size=255), st.binary(min_size=1, max_size=700))
def test_timers_change_their_order_and_back(group: int, domain: int, time: int, namespace: bytes, key: bytes) -> None:
    timer = layout.timer_key(group, domain, layout.time_bytes(time), namespace, key)
    local = layout.timer_to_local(timer)
    assert layout.timer_from_local(local) == timer
    assert layout.split_local_timer(local) == (time, namespace, key)
    assert local[0] == domain


def test_a_state_key_is_what_the_format_says() -> None:
    prefixes = layout.state_prefixes("sum", KeyGroupRange(1, 2), 4)
    assert prefixes == [None, b"\x00\x01\x03sum\x00", b"\x00\x02\x03sum\x00", None]
    assert prefixes[1] is not None
    key = prefixes[1] + layout.LENGTHS[2] + b"ab"
    assert layout.split_entry(key) == (b"", b"ab")
    scoped = prefixes[1][:-1] + layout.namespace_bytes(b"window") + layout.LENGTHS[2] + b"ab"
    assert scoped == b"\x00\x01\x03sum\x06window\x02ab"
    assert layout.split_entry(scoped) == (b"window", b"ab")
    assert layout.state_name(key) == layout.state_name(scoped) == "sum"


def test_long_namespaces_are_refused() -> None:
    with pytest.raises(InternalError, match=r"A namespace is longer than 255 bytes\.\n  found: 256 bytes"):
        layout.namespace_bytes(b"n" * 256)


def test_long_state_names_are_refused() -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"The state name is empty or longer than 255 bytes\.\n  found: 300 bytes"
    ):
        layout.state_prefixes("n" * 300, KeyGroupRange(0, 0), 1)


def test_times_beyond_64_bits_are_refused() -> None:
    with pytest.raises(
        StateFormatError, match=r"The time of a timer does not fit in 64 bits\.\n  found: 9223372036854775808\n  cure"
    ):
        layout.time_bytes(2**63)
