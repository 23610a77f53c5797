"""Errors of inlined functions: every error of a chain has the user's line that it came from."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError, UserCodeError


class NotRead(Exception):
    pass


def read(text: Any) -> Any:
    try:
        return json.loads(text)["id"]
    except ValueError as error:
        raise NotRead("an order must be JSON") from error


def clean(text: Any) -> Any:
    try:
        return json.loads(text)["id"]
    except ValueError:
        return int("no number")


def line_of(text: str, nth: int = 0) -> int:
    lines = Path(__file__).read_text().split("\n")
    return [n for n, line in enumerate(lines, 1) if line.strip() == text][nth]


def failure(function: Any, value: Any, simulated: Simulated, inline: bool) -> JobFailedError:
    env = simulated(**{"tidegate.functions.inline": inline, "parallelism.default": 1})
    env.from_collection([value]).map(function).print()
    with pytest.raises(JobFailedError) as failed:
        env.execute()
    return failed.value


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    ("function", "nth", "raised"),
    [(read, 0, 'raise NotRead("an order must be JSON") from error'), (clean, 1, 'return int("no number")')],
)
def test_every_error_of_the_chain_shows_the_users_line(
    function: Any, nth: int, raised: str, inline: bool, simulated: Simulated
) -> None:
    shown = "".join(traceback.format_exception(failure(function, "{", simulated, inline)))
    first, second = line_of('return json.loads(text)["id"]', nth), line_of(raised)
    assert f'{__file__}", line {first}, in {function.__name__}' in shown
    assert f'{__file__}", line {second}, in {function.__name__}' in shown
    assert shown.index(f"line {first}, in") < shown.index(f"line {second}, in")


def test_our_own_frames_do_not_stand_between_the_users(simulated: Simulated) -> None:
    failed = failure(read, "{", simulated, True)
    assert isinstance(failed.__cause__, UserCodeError)
    assert "attempt.py" not in "".join(traceback.format_exception(failed))


def leave(value: Any) -> Any:
    raise KeyboardInterrupt


def test_an_error_without_a_text_has_no_colon(simulated: Simulated) -> None:
    assert "found: KeyboardInterrupt; record 'x'" in str(failure(leave, "x", simulated, True))
