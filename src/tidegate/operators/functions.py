"""User functions: a plain callable or an object of PyFlink's function classes becomes one callable plus hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.graph.transformation import (
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
)
from tidegate.operators.blame import user_error

_PACKAGE = __name__.partition(".")[0]
_METHODS = {
    MapSpec: "map",
    FlatMapSpec: "flat_map",
    FilterSpec: "filter",
    ProcessSpec: "process_element",
    ReduceSpec: "reduce",
}


def callable_of(spec: OperatorSpec) -> Callable[..., Any]:
    """What the loop calls for each record."""
    function: Any = spec.function  # type: ignore[union-attr]
    method: Callable[..., Any] = getattr(function, _METHODS[type(spec)], function)
    return method


class Hooks:
    """Life cycle of one function object: ``open`` before its first record, ``close`` behind its last one, notifications between.

    A function that was closed and is needed again, because its last round is repeated, is opened again.
    """

    def __init__(self, function: Any, where: str) -> None:
        self._function, self._where = function, where
        self._is_open = False
        hook: Any = getattr(type(getattr(function, "_function", function)), "notify_checkpoint_complete", None)
        self.listens = hook is not None and not hook.__module__.startswith(f"{_PACKAGE}.")
        """Whether it wants to hear of checkpoints: then it is closed when it has heard of the last one."""

    def open(self, context: Any) -> None:
        self._context = context
        self.reopen()

    def reopen(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._call("open", self._context)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._call("close")

    def notify(self, completed: tuple[int, ...], aborted: tuple[int, ...]) -> None:
        for checkpoint_id in completed:
            self._call("notify_checkpoint_complete", checkpoint_id)
        for checkpoint_id in aborted:
            self._call("notify_checkpoint_aborted", checkpoint_id)

    def _call(self, name: str, *arguments: Any) -> None:
        method = getattr(self._function, name, None)
        if method is None or isinstance(self._function, type):
            return
        try:
            method(*arguments)
        except BaseException as error:
            raise user_error(error, f"{name}() of {self._where}", None) from error
