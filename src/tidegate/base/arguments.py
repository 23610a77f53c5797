"""Checks of the API's arguments: a wrong type gives one error that names method, value and cure."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from tidegate.base.errors import ArgumentTypeError

C = TypeVar("C", bound=type)


def shown(value: Any) -> str:
    """Return the type and the shortened repr of a value, for an error message."""
    return f"{type(value).__name__} {reprlib.repr(value)}"


def wrong(method: str, wanted: str, value: Any, cure: str) -> ArgumentTypeError:
    """Return the error for a value of the wrong type."""
    return ArgumentTypeError(f"{method} takes {wanted}", found=shown(value), cure=cure)


def expect_int(method: str, value: Any, cure: str) -> int:
    """Return the value, or raise if it is not an int or is a bool."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(method, "a whole number", value, cure)
    return value


def expect_text(method: str, value: Any, cure: str) -> str:
    """Return the value, or raise if it is not a non-empty text."""
    if not isinstance(value, str) or not value:
        raise wrong(method, "a non-empty text", value, cure)
    return value


def made_by(maker: str, first: type = object) -> Callable[[C], C]:
    """Decorate a class that only its builder or static methods make: other constructor calls raise and name ``maker``.

    ``first``: the type of the first argument, where any single value would fit the signature.
    """

    def decorate(made: C) -> C:
        plain = made.__init__  # type: ignore[misc]
        signature = inspect.signature(plain)

        @wraps(plain)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                signature.bind(self, *args, **kwargs)
                fits = not args or isinstance(args[0], first)
            except TypeError:
                fits = False
            if not fits:
                # Only the types of positional arguments and the names of others: a value may be a secret
                given = ", ".join([*(type(arg).__name__ for arg in args), *(f"{key}=..." for key in kwargs)])
                name = type(self).__name__
                raise ArgumentTypeError(
                    f"{name} is not made by its constructor", found=f"{name}({given})", cure=f"use {maker}"
                )
            plain(self, *args, **kwargs)

        made.__init__ = __init__  # type: ignore[misc]
        return made

    return decorate
