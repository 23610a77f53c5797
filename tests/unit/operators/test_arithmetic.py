"""Arithmetic on whole batches: what Python gives for each record, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.written_functions import exact, is_inlined, written
from tidegate.operators.contracts.batch import checked_column, int_column
from tidegate.operators.loop.rewrites.arithmetic import check_arithmetic, evaluate, mask_of
from tidegate.operators.loop.rewrites.bodies import body_of
from tidegate.operators.loop.rewrites.fields import Field, Inexact, Ints, field_of

LOW, HIGH = -(1 << 63), (1 << 63) - 1
EDGES = [LOW, LOW + 1, -(1 << 62), -(1 << 32), -(1 << 31), -7, -2, -1, 0, 1, 2, 3, 7, 1 << 31, 1 << 32, 1 << 62, HIGH]
GLOBALS = {"G": 11, "FLAG": True, "HUGE": 1 << 70, "TEXT": "11"}


def columns(record: list[Any]) -> Any:
    """A batch of scalars, or of tuples of them, as the walk gets it."""
    if isinstance(record[0], tuple):
        return tuple(field_of(checked_column(list(column))) for column in zip(*record, strict=True))
    return field_of(checked_column(record))


def values(result: Any, count: int) -> list[Any]:
    """What the walk gives, for every record."""
    if isinstance(result, tuple):
        return list(zip(*(values(field, count) for field in result), strict=True))
    if isinstance(result, Ints):
        found: list[Any] = result.column.tolist()
        assert result.low <= min(found) and max(found) <= result.high, "bounds"
        return found
    if isinstance(result, Field):
        return result.column.tolist()  # type: ignore[no-any-return]
    return [result] * count


def in_columns(function: Any, batch: list[Any]) -> list[Any] | None:
    """None: not for columns."""
    try:
        with np.errstate(all="ignore"):
            return values(evaluate(body_of(function), function, (columns(batch),)), len(batch))
    except Inexact:
        return None


def one_by_one(function: Callable[[Any], Any], batch: list[Any]) -> list[Any] | None:
    """None: one of them raises."""
    try:
        return [function(record) for record in batch]
    except (ArithmeticError, TypeError, IndexError, NameError):
        return None


def check(function: Any, batch: list[Any]) -> bool:
    """Whether it was done in columns; if it was, it is right."""
    found = in_columns(function, batch)
    assert found is None or list(map(exact, found)) == list(map(exact, one_by_one(function, batch) or ()))
    return found is not None


# -- random functions of random records --------------------------------------------------------------------------------

FIELDS = ["x", "r[0]", "r[1]", "r[-1]", "r[2]", "r[5]", "G", "c", "y"]
NUMBERS = st.sampled_from([*FIELDS, *FIELDS, *map(str, EDGES), "FLAG", "HUGE", "TEXT", "b", "t[0]", "t", "missing"])


def _numbers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "//", "%", "//", "%", "/", "&", "<<"])
    comparisons = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "is"])
    return st.one_of(
        st.builds("({} {} {})".format, inner, operators, inner),
        st.builds("(-{})".format, inner),
        st.builds("({} {} {})".format, inner, comparisons, inner),
        st.builds("({} {} {} {} {})".format, inner, comparisons, inner, comparisons, inner),
        st.builds("(not {})".format, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("({}, {})".format, inner, inner),
        st.builds("({}, {})[{}]".format, inner, inner, st.sampled_from(["0", "1", "-1", "-2"])),
    )


EXPRESSIONS = st.recursive(NUMBERS, _numbers, max_leaves=6)
SMALL = st.integers(-20, 20)
INTS = st.one_of(SMALL, st.integers(1, 1000), st.sampled_from(EDGES), st.integers(LOW, HIGH))


@st.composite
def batches(draw: st.DrawFn, width: int) -> list[Any]:
    kind = draw(st.sampled_from([SMALL, st.integers(1, 50), st.integers(-50, -1), INTS]))
    return draw(st.lists(st.tuples(*[kind] * width) if width else kind, min_size=1, max_size=8))


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.data())
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_random_function_gives_what_python_gives_or_nothing(first: str, last: str, data: st.DataObject) -> None:
    tuples = "r[" in first + last
    parameter = "r" if tuples else "x"
    text = f"def f({parameter}):\n    y = {first.replace('y', '1')}\n    return {last}"
    function = written(text, GLOBALS, c=5, b=True, t=(True, 2))
    if is_inlined(function):
        check(function, data.draw(batches(3 if tuples else 0)))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["+", "-", "*", "//", "%"]), st.lists(INTS, min_size=1, max_size=6), INTS, st.booleans())
def test_operators_at_the_bounds(operator: str, batch: list[int], constant: int, swapped: bool) -> None:
    text = f"({constant}) {operator} x" if swapped else f"x {operator} ({constant})"
    function = written(f"lambda x: {text}")
    expected = one_by_one(function, batch)
    done = check(function, batch)
    if expected is None:
        assert not done
    elif len(batch) == 1 and constant > LOW and batch[0] > LOW:  # then the bounds are the number itself
        assert done == (LOW <= expected[0] <= HIGH)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["+", "-", "*", "//", "%"]), st.lists(st.tuples(INTS, INTS), min_size=1, max_size=6))
def test_operators_on_two_columns(operator: str, batch: list[tuple[int, int]]) -> None:
    check(written(f"lambda r: (r[0] {operator} r[1], r[0])"), batch)


# -- floats and texts --------------------------------------------------------------------------------------------------

SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    1.7976931348623157e308,
    0.1,
    -2.5,
    2.0**53,
    9007199254740993.0,
]
DOUBLES = st.one_of(st.sampled_from(SPECIAL), st.floats())


def told(values: list[Any] | None) -> list[Any] | None:
    """Comparable: nan is nan, and -0.0 is not 0.0."""
    return None if values is None else [repr(value) for value in values]


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(st.tuples(INTS, DOUBLES, DOUBLES), min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_random_function_of_ints_and_floats(text: str, batch: list[Any]) -> None:
    function = written(
        f"lambda r: {text.replace('x', 'r[0]').replace('y', '0.1')}", GLOBALS, c=2.5, b=True, t=(True, 2)
    )
    found = in_columns(function, batch) if is_inlined(function) else None
    assert found is None or told(found) == told(one_by_one(function, batch))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["+", "-", "*", "/", "<", "<=", "==", "!=", ">", ">="]),
    st.lists(st.tuples(INTS, DOUBLES), min_size=1, max_size=4),
)
def test_operators_on_ints_and_floats(operator: str, batch: list[Any]) -> None:
    for text in (f"r[0] {operator} r[1]", f"r[1] {operator} r[0]", f"r[1] {operator} r[1]", f"r[0] {operator} r[0]"):
        function = written(f"lambda r: ({text}, r[1])")
        found = in_columns(function, batch)
        assert found is None or told(found) == told(one_by_one(function, batch))
        ordinary = all(0 < number < 1 << 31 and double for number, double in batch)
        assert found is not None or not ordinary


def test_texts_pass_through() -> None:
    batch = [("a", 1, 2.5, True), ("b", -1, 0.5, False), ("", 0, 1.0, True)]
    for text in (
        "lambda r: (r[0], r[1] * 2, r[3])",
        "lambda r: r[0]",
        "lambda r: (r[2] / 2, r[0], r[0], 'c'[0:0])[0:3]",
    ):
        function = written(text)
        assert (in_columns(function, batch) is None) == ("c" in text)
        check(function, batch)
    for text in ("r[0] + 'x'", "r[0] * 2", "r[0] == 'a'", "r[0] < r[0]", "-r[0]", "not r[0]", "r[3] + 1", "-r[3]"):
        assert in_columns(written(f"lambda r: {text}"), batch) is None


# -- that it is done at all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "lambda x: x",
        "lambda x: (x * 31 % 10007, x)",
        "lambda x: (x // 3, x // -3, x % 3, x % -3, -x)",
        "lambda x: (x, 1, -1, G, c)",
        "lambda x: ((x, G)[0], (x, 1)[-1])",
        "lambda x: x > 2",
        "lambda x: -5 <= x < 5 != x",
        "lambda x: not x % 2",
        "lambda x: (x > 2 and x < 5) or not (x == 9)",
        "lambda x: (x > 2, x == 3)",
        "lambda x: (x / 2, x / 0.1, 1 / c, x * 0.1 + 2.5 - x, -(x * 0.5))",
        "lambda x: x * 0.5 >= 1 or x < 2.5 or 1e300 * 1e300 > x",
        "lambda x: 7",
        "def f(x):\n    y = z = x + c\n    x = y * z\n    return x, y",
        "def f(x):\n    'Said.'\n    return x - 1",
    ],
)
def test_plain_arithmetic_is_done_in_columns(text: str) -> None:
    function = written(text, GLOBALS, c=5)
    check_arithmetic(body_of(function))
    assert check(function, list(range(-10, 11)))


@pytest.mark.parametrize(
    "text",
    [
        *("lambda x: x ** 2", "lambda x: x << 1", "lambda x: ~x", "lambda x: +x"),
        *("lambda x: x and 1", "lambda x: x or 1", "lambda x: x in (1, 2)"),
        *("lambda x: (x, FLAG)", "lambda x: (x, True)", "lambda x: (x, b)", "lambda x: (x, t[0])", "lambda x: t[1]"),
        *("lambda x: x + TEXT", "lambda x: x + HUGE", "lambda x: x < HUGE", "lambda x: x + missing", "lambda x: ()"),
        *("lambda x: x[0]", "lambda x: (x, 1)[2]", "lambda x: (x, 1)[x]", "lambda x: x < (x, 1)", "lambda x: not 3"),
        *("lambda x: 2 < 3", "lambda x: None", "lambda x: x.real", "lambda x: mask", "lambda x: x > 1 and mask"),
        *("lambda x: 1 // x", "lambda x: 1 % x", "lambda x: x + 9223372036854775807", "lambda x, y: x"),
    ],
)
def test_what_columns_could_get_wrong_is_left_to_python(text: str) -> None:
    function = written(text, GLOBALS, b=True, t=(True, 2), mask=np.array([True] * 21))
    assert in_columns(function, list(range(-10, 11))) is None


def test_a_variable_without_a_value_is_the_users_error() -> None:
    def outer() -> Any:
        def f(x: int) -> int:
            return x + later  # type: ignore[has-type]

        if f is None:
            later = 1
        return f

    function = outer()
    with pytest.raises(Inexact):
        evaluate(body_of(function), function, (columns([1, 2]),))


# -- methods -----------------------------------------------------------------------------------------------------------


class Scale:
    shared = 3

    def __init__(self, factor: Any) -> None:
        self.factor = factor

    @property
    def computed(self) -> int:
        return 4

    def by_factor(self, x: int) -> int:
        return x * self.factor

    def by_class(self, x: int) -> int:
        return x * self.shared

    def by_property(self, x: int) -> int:
        return x * self.computed

    def by_nothing(self, x: int) -> Any:
        return x, self

    def by_another(self, x: int) -> int:
        self = x  # type: ignore[assignment]
        return self + 1  # type: ignore[operator]


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 3

    def map(self, x: int) -> int:
        return x * self.factor


class Watching(Scale):
    def __getattribute__(self, name: str) -> Any:
        return 6 if name == "factor" else super().__getattribute__(name)


class Pair(tuple):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        return 40 + index

    def map(self, x: int) -> int:
        return x + self[0]


def test_a_number_in_the_function_object_is_read_for_every_batch() -> None:
    scale = Scale(2)
    assert check(scale.by_factor, [1, 2, 3])
    scale.factor = 5
    assert check(scale.by_factor, [1, 2, 3])
    assert in_columns(scale.by_factor, [1, 2]) == [5, 10]


def test_a_method_may_call_another_thing_self() -> None:
    assert check(Scale(2).by_another, [1, 2, 3])


@pytest.mark.parametrize(
    "function",
    [
        *(Scale(True).by_factor, Scale("a").by_factor, Scale(None).by_factor, Scale(1 << 64).by_factor),
        *(Scale(2).by_class, Scale(2).by_property, Scale(2).by_nothing),
        *(Slotted().map, Watching(2).by_factor, Pair((1, 2)).map),
    ],
)
def test_attributes_that_are_more_than_numbers_are_left_to_python(function: Any) -> None:
    assert not check(function, [1, 2, 3])


# -- what the path asks ------------------------------------------------------------------------------------------------


def test_a_filter_keeps_what_is_true() -> None:
    odd = written("lambda x: x % 2")
    assert mask_of(evaluate(body_of(odd), odd, (columns([1, 2, 3]),))).tolist() == [True, False, True]
    for nothing in (3, (columns([1]),), "text"):
        with pytest.raises(Inexact):
            mask_of(nothing)


@pytest.mark.parametrize(
    "batch",
    [
        range(-3, 4),
        range(LOW, LOW + 5),
        range(HIGH - 5, HIGH),
        range(9, -9, -2),
        range(0, (1 << 62) + 1, 1 << 55),
        [LOW, HIGH, 0],
    ],
)
def test_a_batch_of_ints_is_a_column(batch: Any) -> None:
    column = int_column(batch)
    assert column is not None and column.tolist() == list(batch)


@pytest.mark.parametrize("batch", [[1, True], [1, None], [1, 1 << 63], [np.int64(1)], range(HIGH, HIGH + 5), ["1"]])
def test_any_other_batch_is_none(batch: Any) -> None:
    assert int_column(batch) is None
