"""Checks of arguments handed to the API: the wrong type gives one error that names method, value and cure."""

from __future__ import annotations

import reprlib
from typing import Any

from tidegate.common.errors import ArgumentTypeError


def shown(value: Any) -> str:
    """A value for an error message: its type and its repr, cut to a sane length."""
    return f"{type(value).__name__} {reprlib.repr(value)}"


def wrong(method: str, wanted: str, value: Any, cure: str) -> ArgumentTypeError:
    """The error for a value of the wrong type; the caller raises it."""
    return ArgumentTypeError(f"{method} takes {wanted}", found=shown(value), cure=cure)


def expect_int(method: str, value: Any, cure: str) -> int:
    """An int that is not a bool."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(method, "a whole number", value, cure)
    return value


def expect_text(method: str, value: Any, cure: str) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(method, "a non-empty text", value, cure)
    return value
