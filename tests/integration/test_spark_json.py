"""JSON in user functions on Spark: the workers answer by faster code, the driver keeps the standard library."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import loads
from typing import Any

import pytest

from tidegate.datastream import StreamExecutionEnvironment

STANDARD = json.__file__


def parsed(line: str) -> tuple[Any, bool, bool]:
    return repr(json.loads(line)["a"]), json.loads.__code__.co_filename == STANDARD, loads is json.loads


@pytest.mark.parametrize("fast", [True, False])
def test_workers_read_json_faster_unless_it_is_switched_off(
    make_env: Callable[..., StreamExecutionEnvironment], fast: bool
) -> None:
    env = make_env({"tidegate.json.fast": fast})
    lines = env.from_collection(['{"a": 1}', '{"a": NaN}', '{"a": 1.50}'])
    found = sorted(lines.map(lambda line: parsed(line)).execute_and_collect())
    assert [value for value, *_ in found] == ["1", "1.5", "nan"]
    assert {standard for _, standard, _ in found} == {not fast}
    assert json.loads.__code__.co_filename == STANDARD
