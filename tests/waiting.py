"""Waiting for a condition, with a limit: tests never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
LIMIT = 90.0
"""Seconds; generous, since it is only reached when a test fails."""


def eventually(condition: Callable[[], T | Literal[False] | None], what: str = "", *, timeout: float = LIMIT) -> T:
    """The first true answer of ``condition``; AssertionError with the last one after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what or condition}; last answer {answer!r}")
        time.sleep(0.01)
    return answer
