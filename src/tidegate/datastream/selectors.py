"""Key selectors and partitioners as plain callables, for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import StateAccessError
from tidegate.datastream.functions import Function, KeySelector, Partitioner


def key_callable(method: str, selector: Any) -> Callable[[Any], Any]:
    """Return the function value -> key. The edge then converts the key to its declared type (``state/key_types.py``)."""
    return _plain(method, selector, KeySelector, "get_key", "lambda value: value[0]")


def partition_callable(method: str, partitioner: Any) -> Callable[[Any, int], int]:
    """Return the function (key, number of partitions) -> index."""
    return _plain(method, partitioner, Partitioner, "partition", "lambda key, n: hash_of(key) % n")


def _plain(method: str, function: Any, base: type[Function], name: str, example: str) -> Callable[..., Any]:
    if isinstance(function, type) and issubclass(function, Function):
        raise wrong(method, f"a {base.__name__} object", function, f"pass an object: {function.__name__}()")
    bound: Callable[..., Any] | None = getattr(function, name, None)
    if bound is None:
        if not callable(function):
            raise wrong(method, f"a {base.__name__} or a callable", function, f"for example {example}")
        return function  # type: ignore[no-any-return]
    opens = getattr(type(function), "open", Function.open) is not Function.open
    return OpenedOnFirstUse(function, name) if opens else bound


class OpenedOnFirstUse:
    """Calls ``open`` of the selector in every process that uses it, before the first record."""

    def __init__(self, function: Any, name: str) -> None:
        self._function, self._name = function, name
        self._call: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._call is None:
            self._function.open(_NowhereContext())
            self._call = getattr(self._function, self._name)
        return self._call(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_call": None}


class _NowhereContext:
    """The context of selectors and partitioners, which run between two operators: every call raises."""

    def __getattr__(self, name: str) -> Any:
        raise StateAccessError(
            "A key selector or partitioner has no runtime context",
            where=f"{name}() in open() of a KeySelector or Partitioner",
            cure="compute the value in a map() before, and put it into the record",
        )
