"""An f-string of an inlined function writes floats as the function itself does."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.test_inlining import same
from tests.unit.operators.written_functions import is_inlined
from tidegate.operators.contracts.specs import MapSpec
from tidegate.operators.loop.rewrites import inline
from tidegate.operators.loop.rewrites.inline import float_text


class Mine(float):
    def __str__(self) -> str:
        return "mine"

    def __format__(self, spec: str) -> str:
        return f"mine {spec}"

    def __truediv__(self, other: Any) -> Any:
        return Mine(9.5)


class Pretends:
    """Says that it is a float."""

    __class__ = float  # type: ignore[assignment]

    def __truediv__(self, other: Any) -> Any:
        return self

    __mul__ = __rmul__ = __truediv__

    def __repr__(self) -> str:
        return "Pretends()"  # part of a test's name, which must be the same in all processes

    def __format__(self, spec: str) -> str:
        return f"none {spec}"


def quotient(value: Any) -> str:
    return f"{value / 3},{value / 7:.3f},{value / 2!r},{1.5 * value},{value - 0.1}"


def in_variables(value: Any) -> str:
    price = 0.908 * value
    half = price / 2
    if value == 8:
        half = "eight"
    return f"{price},{half} {price:>12} {half!s}"


def plain(value: Any) -> str:
    return f"{value},{value * 2},{value / 3:.2f}"


PLACES = [
    1e-4,
    9.999999999999999e-5,
    1e16,
    9999999999999998.0,
    1e15,
    0.0,
    5e-324,
    math.inf,
    math.nan,
    1 / 3,
    5.0,
    0.1 + 0.2,
]
OTHERS = [
    8,
    2**70,
    True,
    Mine(3.0),
    np.float64(2.5),
    np.float32(0.1),
    Decimal("1.10"),
    Fraction(1, 3),
    1 + 2j,
    Pretends(),
    "a",
    None,
]


@given(
    st.one_of(st.floats(), st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]))
)
@settings(max_examples=3000, deadline=None)
def test_any_float_is_written_as_python_writes_it(value: float) -> None:
    assert f"{float_text(value)}" == f"{value}"


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
@settings(max_examples=3000, deadline=None)
def test_any_quotient_is_written_as_python_writes_it(value: int, other: int) -> None:
    assert f"{float_text(value / other)}" == f"{value / other}"


@pytest.mark.parametrize("value", [*PLACES, *(-value for value in PLACES), *OTHERS], ids=repr)
@pytest.mark.parametrize("function", [quotient, in_variables])
def test_an_inlined_f_string_gives_the_same_text_or_error(function: Any, value: Any) -> None:
    assert is_inlined(function)
    same([MapSpec(function)], [6, value])


def test_floats_of_f_strings_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(inline, "float_text", lambda value: (seen.append(value), value)[1])
    same([MapSpec(quotient)], [6])
    assert seen == [2.0, 9.0, 5.9]


@pytest.mark.parametrize(("function", "noted"), [(quotient, True), (in_variables, True), (plain, False)])
def test_explain_tells_which_functions_write_floats_in_the_fast_way(function: Any, noted: bool) -> None:
    rewrite = inline.Inline()
    assert rewrite.notes(rewrite.prepare(function)) == ["floats of f-strings are written by faster code"] * noted
