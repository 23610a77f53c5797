"""JSON objects that are parsed together give the rows that they give one by one."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.base.errors import UserCodeError
from tidegate.common import Row, Types
from tidegate.connectors.formats.json_rows import JsonRows

POINT = Types.ROW_NAMED(["x", "y"], [Types.DOUBLE(), Types.INT()])
NESTED = Types.ROW_NAMED(
    ["id", "name", "point", "points", "tags", "counts", "places", "flags"],
    [
        *(Types.LONG(), Types.STRING(), POINT, Types.OBJECT_ARRAY(POINT), Types.LIST(Types.STRING())),
        *(Types.MAP(Types.STRING(), Types.LONG()), Types.MAP(Types.STRING(), POINT)),
        Types.PRIMITIVE_ARRAY(Types.BOOLEAN()),
    ],
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text()
)
POINTS = st.fixed_dictionaries(
    {}, optional={"x": st.floats(-9, 9) | st.integers(-9, 9) | st.none(), "y": st.integers(-9, 9)}
)
FITTING = {
    "id": st.integers(-9, 9) | st.none(),
    "name": st.text() | st.none(),
    "point": POINTS | st.none(),
    "points": st.lists(POINTS | st.none(), max_size=3) | st.none(),
    "tags": st.lists(st.text() | st.none(), max_size=3) | st.none(),
    "counts": st.dictionaries(st.text(), st.integers(-9, 9) | st.none(), max_size=3) | st.none(),
    "places": st.dictionaries(st.text(), POINTS | st.none(), max_size=3) | st.none(),
    "flags": st.lists(st.booleans(), max_size=3) | st.none(),
    "other": SCALARS,
}
ANY = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from("xyz"), v, max_size=3))
OBJECTS = st.fixed_dictionaries({}, optional=FITTING)
DIFFERENT = st.fixed_dictionaries({}, optional={name: fitting | ANY for name, fitting in FITTING.items()})


def seen(value: Any) -> Any:
    if isinstance(value, Row):
        return "row", value._fields, [seen(part) for part in value._values]
    if isinstance(value, list):
        return [seen(part) for part in value]
    if isinstance(value, dict):
        return {key: seen(part) for key, part in value.items()}
    return type(value), repr(value)


def outcome(parse: Any) -> Any:
    try:
        return seen(parse())
    except UserCodeError as error:
        return str(error)


def check(objects: list[Any], *, strict: bool, lenient: bool) -> None:
    rows = JsonRows(NESTED, strict=strict, lenient=lenient)
    messages = [json.dumps(each).encode() for each in objects]
    assert outcome(lambda: rows.rows(messages)) == outcome(lambda: [rows.row(message) for message in messages])
    for message in messages:  # from parsed JSON, without a type for the parser
        try:
            untyped = seen(rows._convert(rows._decode(message)))
        except Exception:
            with nullcontext() if lenient else pytest.raises(UserCodeError):
                assert rows.row(message) is None
        else:
            assert seen(rows.row(message)) == untyped
    together: Any = rows.batch_of_lines(b"\n".join(messages))
    if together is not None:
        wanted = seen([rows.row(message) for message in messages])
        assert seen(together.rows()) == wanted
        assert seen(together.layout.rows(together.arrow)) == wanted


@given(st.lists(OBJECTS, min_size=1, max_size=4), st.booleans())
def test_objects_of_the_type_give_the_same_together_and_one_by_one(objects: list[Any], lenient: bool) -> None:
    check(objects, strict=False, lenient=lenient)


@given(st.lists(DIFFERENT, min_size=1, max_size=3), st.booleans())
def test_other_objects_give_the_same_together_and_one_by_one(objects: list[Any], lenient: bool) -> None:
    check(objects, strict=False, lenient=lenient)


@given(st.lists(OBJECTS | st.fixed_dictionaries(FITTING), min_size=1, max_size=3))
def test_missing_fields_give_the_same_together_and_one_by_one(objects: list[Any]) -> None:
    check(objects, strict=True, lenient=False)


def test_nested_rows_are_parsed_together() -> None:
    rows = pickle.loads(pickle.dumps(JsonRows(NESTED)))
    [row] = rows.batch_of_lines(b'{"id": 1, "point": {"x": 2}, "points": [{"y": 3}, null], "places": {"a": {"y": 4}}}')

    def point(x: float | None, y: int | None) -> Row:
        return Row(x=x, y=y)

    assert row.as_dict() == {
        **dict.fromkeys(NESTED.get_field_names()),
        "id": 1,
        "point": point(2.0, None),
        "points": [point(None, 3), None],
        "places": {"a": point(None, 4)},
    }
