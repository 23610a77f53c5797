"""Keys and values to bytes and back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import ArgumentTypeError, StateFormatError
from tidegate.common.typeinfo import Types
from tidegate.common.types import Row
from tidegate.state.codecs import Codec, codec_for, expiring, expiry_of, list_codec_for
from tidegate.state.keys import decode_key, encode_key, encode_keys, form_of, forms_of, identify

simple = st.one_of(
    st.integers(),
    st.text(),
    st.binary(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.integers(2**63, 2**66),
)
keys = st.recursive(simple, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@dataclasses.dataclass(frozen=True)
class Point:
    x: str
    y: str


def _same(left: Any, right: Any) -> bool:
    return left == right and repr(left) == repr(right)


@given(keys)
def test_keys_come_back_with_their_types(key: Any) -> None:
    assert _same(decode_key(encode_key(key)), key)


@given(st.lists(keys, max_size=8))
def test_many_keys_are_encoded_like_one(many: list[Any]) -> None:
    assert encode_keys(many) == [encode_key(key) for key in many]


@given(st.lists(keys))
def test_many_forms_are_made_like_one(many: list[Any]) -> None:
    forms = forms_of([encode_key(key) for key in many])
    assert forms == [form_of(encode_key(key)) for key in many] == [identify(key) for key in many]
    assert list(map(type, forms)) == [type(identify(key)) for key in many]


@pytest.mark.parametrize(
    ("info", "values"),
    [(Types.LONG(), [1, None, 2**40]), (Types.STRING(), ["a", None, ""]), (None, [(1, 2), None, "x"])],
)
def test_many_values_are_decoded_like_one(info: Any, values: list[Any]) -> None:
    codec = codec_for(info)
    encoded = codec.encode_all(values)
    assert codec.decode_all(encoded) == values
    assert codec.decode_all(encoded[:1]) == values[:1]
    assert codec.decode_all([]) == []


def test_among_many_values_an_unreadable_one_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        codec_for(Types.LONG()).decode_all([b"\x01", b"\xc1", None])


@given(keys, keys)
def test_different_keys_have_different_bytes(left: Any, right: Any) -> None:
    assert (encode_key(left) == encode_key(right)) == _same(left, right)


def test_other_keys_are_pickled() -> None:
    for key in (
        Point("a", "b"),
        decimal.Decimal("1.5"),
        datetime.date(2024, 1, 2),
        ("a", Point("c", "d")),
        (1.5, 2**80),
        [1],
        ("a", [1]),
        {"a": [1]},
        bytearray(b"x"),
        Row(1, [2]),
    ):
        assert decode_key(encode_key(key)) == key
        assert encode_key(key)[:1] == b"\xc1"


def test_plain_keys_beyond_msgpack_stand_for_themselves() -> None:
    for key in ("\ud800", 2**80, ("a", (2**80, "\ud800"))):
        assert identify(key) is key
        assert form_of(encode_key(key)) == decode_key(encode_key(key)) == key
        assert encode_key(key)[:1] == b"\xc8"


def test_identity_of_equal_parts_does_not_show() -> None:
    text, same = "ab" * 50, "".join(["ab"] * 50)
    assert text is not same
    assert encode_key(Point(text, text)) == encode_key(Point(text, same))


def test_bytes_of_a_key_are_the_same_in_another_process() -> None:
    key = ("a", 1, -2.5, b"x", (True, None), 2**70)
    code = f"from tidegate.state.keys import encode_key; print(encode_key({key!r}).hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == encode_key(key).hex()


class ByIdentity:
    pass


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({1}, "a set has no stable order\n  cure: use tuple(sorted(...)) in the key selector"),
        (
            [Point("a", {"deep": {1}})],  # type: ignore[arg-type]
            "a set has no stable order",
        ),
        (frozenset({1}), "a set has no stable order\n  cure: use tuple(sorted(...)) in the key selector"),
        (("a", frozenset({1})), "a set has no stable order"),
        (ByIdentity(), "its class compares by identity\n  cure: give it __eq__ and __hash__, or use a field as key"),
        (lambda: 1, "its class compares by identity"),
    ],
)
def test_keys_without_stable_bytes_are_refused(key: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        encode_key(key)
    assert str(caught.value).startswith("The key has no stable bytes: equal keys could differ between processes.")
    assert message in str(caught.value)


def _round_trip(codec: Codec, value: Any) -> Any:
    (data,) = codec.encode_all([value])
    assert data is not None
    return codec.decode(data)


@pytest.mark.parametrize(
    ("info", "value"),
    [
        (Types.LONG(), -(2**63)),
        (Types.STRING(), "ü"),
        (Types.DOUBLE(), 0.1),
        (Types.BOOLEAN(), True),
        (Types.BYTE(), 7),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"raw"),
        (Types.TUPLE([Types.LONG(), Types.TUPLE([Types.STRING(), Types.DOUBLE()])]), (1, ("a", 2.5))),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (1, None)),
        (Types.LIST(Types.TUPLE([Types.LONG(), Types.STRING()])), [(1, "a"), (2, "b")]),
        (Types.MAP(Types.LONG(), Types.STRING()), {1: "a"}),
        (Types.BIG_DEC(), decimal.Decimal("1.50")),
        (Types.BIG_INT(), 2**200),
        (Types.SQL_TIMESTAMP(), datetime.datetime(2024, 1, 2, 3, 4, 5, 6)),
        (Types.PICKLED_BYTE_ARRAY(), {"any": {1, 2}}),
        (None, Point("a", "b")),
    ],
)
def test_values_come_back_as_they_were(info: Any, value: Any) -> None:
    codec = codec_for(info)
    assert _same(_round_trip(codec, value), value)
    assert _same(_round_trip(expiring(codec), (value, -5)), (value, -5))
    assert _same(_round_trip(list_codec_for(info), [value, value]), [value, value])
    assert _same(_round_trip(list_codec_for(info, with_expiry=True), [(9, value)]), [(9, value)])


def test_descriptions_are_those_of_the_types() -> None:
    assert codec_for(Types.LONG()).describe == "LONG"
    assert codec_for(None).describe == codec_for(Types.PICKLED_BYTE_ARRAY()).describe == "pickle"


def test_only_primitive_types_are_immutable() -> None:
    assert [
        codec_for(info).immutable for info in (Types.LONG(), Types.STRING(), Types.TUPLE([Types.LONG()]), None)
    ] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("info", "value", "found"),
    [
        (Types.LONG(), 2**63, "int 9223372036854775808: it does not fit in 64 bits"),
        (Types.LONG(), -(2**63) - 1, "int -9223372036854775809: it does not fit in 64 bits"),
        (Types.LONG(), 2**64, "int 18446744073709551616: Integer value out of range"),
        (Types.LONG(), "text", "str 'text': another type than declared"),
        (Types.LONG(), decimal.Decimal(1), "Decimal Decimal('1'): another type than declared"),
        (Types.STRING(), b"raw", "bytes b'raw': another type than declared"),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (1, 2), "tuple (1, 2): Expected `str | null`, got `int`"),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (1,), "tuple (1,): Expected `array` of length 2"),
    ],
)
def test_values_of_another_type_are_refused(info: Any, value: Any, found: str) -> None:
    codec = codec_for(info)
    good: Any = {"LONG": 1, "STRING": "a"}.get(codec.describe, (1, "a"))
    with pytest.raises(StateFormatError) as caught:
        codec.encode_all([good, None, value, good])
    text = str(caught.value)
    assert text.startswith(f"The value does not fit the declared type of its state, {codec.describe}.")
    assert found.split(":", maxsplit=1)[0] in text
    assert "cure: declare a wider type: Types.BIG_INT() for ints over 64 bits" in text


def test_absent_becomes_none_and_none_may_be_a_value() -> None:
    absent = object()
    encoded = codec_for(Types.LONG()).encode_all([1, absent, None], absent)
    assert encoded == [b"\x01", None, b"\xc0"]


def test_a_class_of_main_is_pickled_by_value() -> None:
    local = dataclasses.make_dataclass("Local", ["x"])
    local.__module__ = "__main__"
    assert _round_trip(codec_for(None), local(3)).x == 3


def test_expiry_is_read_without_the_value() -> None:
    (data,) = expiring(codec_for(Types.STRING())).encode_all([("value", 1_700_000_000_000)])
    assert data is not None
    assert expiry_of(data) == 1_700_000_000_000
