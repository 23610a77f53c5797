"""Rolling aggregations, with the results real PyFlink 2.3 gave for the same records."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

import cloudpickle
import pytest

from tests.programs import transformations_of
from tidegate.base.errors import ArgumentTypeError
from tidegate.common import Row, Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.operators.contracts.specs import ReduceSpec

DATA = [("a", 3, "x"), ("a", 1, "y"), ("a", 1, "z"), ("a", 3, "w"), ("a", 0, "q")]
BY_PYFLINK = {
    "sum": [("a", 3, "x"), ("a", 4, "x"), ("a", 5, "x"), ("a", 8, "x"), ("a", 8, "x")],
    "min": [("a", 3, "x"), ("a", 1, "x"), ("a", 1, "x"), ("a", 1, "x"), ("a", 0, "x")],
    "max": [("a", 3, "x")] * 5,
    "min_by": [("a", 3, "x"), ("a", 1, "y"), ("a", 1, "y"), ("a", 1, "y"), ("a", 0, "q")],
    "max_by": [("a", 3, "x")] * 5,
}
Order = namedtuple("Order", "key n tag")


@dataclass
class Record:
    key: str
    n: int
    tag: str


def function(method: str, field: int | str, info: Any = None) -> Any:
    env = StreamExecutionEnvironment()
    getattr(env.from_collection([], info).key_by(lambda v: 0), method)(field)
    spec = transformations_of(env)[-1].spec
    assert isinstance(spec, ReduceSpec)
    assert spec.value_type == info
    return cloudpickle.loads(cloudpickle.dumps(spec.function))


@pytest.mark.parametrize("method", BY_PYFLINK)
def test_as_pyflink(method: str) -> None:
    expected = BY_PYFLINK[method]
    assert list(accumulate(DATA, function(method, 1))) == expected
    assert list(accumulate(map(list, DATA), function(method, 1))) == [list(row) for row in expected]
    assert list(accumulate((Order(*row) for row in DATA), function(method, "n"))) == [Order(*row) for row in expected]
    assert list(accumulate((Record(*row) for row in DATA), function(method, "n"))) == [Record(*row) for row in expected]
    named = Row("key", "n", "tag")
    for field in (1, "n"):
        assert list(accumulate((named(*row) for row in DATA), function(method, field))) == [
            named(*row) for row in expected
        ]
    dicts = [dict(zip(Order._fields, row, strict=True)) for row in DATA]
    assert list(accumulate(dicts, function(method, "n")))[-1]["n"] == expected[-1][1]


def test_values_without_fields_have_one() -> None:
    assert list(accumulate([1, 2, 3], function("sum", 0, Types.LONG()))) == [1, 3, 6]
    assert list(accumulate(["a", "b"], function("sum", 0))) == ["a", "ab"]
    assert list(accumulate(["b", "a"], function("min", 0))) == ["b", "a"]
    assert function("sum", 2)(DATA[0], DATA[1]) == ("a", 3, "xy")


def test_a_plain_object_is_copied_and_changed() -> None:
    class Plain:
        def __init__(self, n: int) -> None:
            self.n = n

    first = Plain(1)
    assert function("sum", "n")(first, Plain(2)).n == 3
    assert first.n == 1


def test_positions_count_from_the_end_too_and_named_tuples_stay_named() -> None:
    total = reduce(function("sum", -2), [Order("a", 1, "x"), Order("a", 2, "y")])
    assert total == Order("a", 3, "x")
    assert isinstance(total, Order)


def test_records_are_not_changed_in_place() -> None:
    first, second = Row("a", 1), Row("a", 2)
    assert function("sum", 1)(first, second) == Row("a", 3)
    assert first == Row("a", 1)


@pytest.mark.parametrize(("value", "field"), [((1, 2), 9), (5, 1), ((1, 2), "n"), (Row(a=1), "b"), ({"a": 1}, "b")])
def test_a_missing_field_is_named_with_the_record(value: Any, field: int | str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        function("sum", field)(value, value)
    assert caught.value.where == f"sum, min, max, min_by or max_by of field {field!r}"
    assert repr(value) in str(caught.value.found)
