"""Types of results by the annotations of user functions: ``def parse(line: str) -> Order``.

An annotation counts where the program declares no type, and only with ``tidegate.types.from-annotations``: a declared type refuses
values, prints them in Flink's way, and is part of stored state, while PyFlink and most programs treat annotations as comments.
"""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.common.object_types import Declared, type_of
from tidegate.common.options import TYPES_FROM_ANNOTATIONS
from tidegate.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from tidegate.datastream.output_tag import OutputTag

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment

_MANY: frozenset[Any] = frozenset(
    {
        *(collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator, collections.abc.Collection),
        *(collections.abc.Sequence, list),
    }
)
"""Annotations of functions that give any number of results. The first parameter is the type of a result."""


class Result(NamedTuple):
    """The type of an operator's results. ``annotated``: the function whose annotation gave the type; None: the program declared the
    type, or there is none."""

    type: TypeInformation | None
    annotated: str | None = None


def result_type(
    env: StreamExecutionEnvironment, method: str, declared: Declared, function: Any, *gives: str, many: bool = True
) -> Result:
    """Return the declared type, or the type that the function's annotations give.

    ``gives``: the methods of the function that give results; a plain callable takes the place of the first. All methods that the
    user has written must be annotated, with the same type: otherwise there is none. ``many``: a method gives an iterable of
    results.
    """
    if declared is not None or function is None or not env._configuration.read(TYPES_FROM_ANNOTATIONS):
        return Result(type_of(method, declared))
    called = [found for name in gives if (found := getattr(function, name, None)) is not None]
    written = [call for call in called if not _is_ours(call)] if called else [function]
    found = [_result_of(call, many=many) for call in written]
    if not found or found[0] is None or any(info != found[0] for info in found):
        return Result(None)
    return Result(found[0], getattr(written[0], "__qualname__", None))


def _is_ours(method: Any) -> bool:
    """Tell whether a method is not of the user: the base classes annotate their methods with type variables."""
    return str(getattr(method, "__module__", "")).startswith("tidegate.")


def _result_of(call: Callable[..., Any], *, many: bool) -> TypeInformation | None:
    hints = getattr(call, "__func__", call)
    hints = hints.func if isinstance(hints, functools.partial) else hints
    if not isinstance(hints, types.FunctionType | types.MethodType):  # an object with __call__
        hints = type(hints).__call__ if callable(hints) else None
    try:
        annotation = typing.get_type_hints(hints).get("return") if hints is not None else None
    except (NameError, TypeError, AttributeError):  # of names that exist for type checkers alone
        return None
    if many:
        annotation = _element(annotation)
    if annotation in (None, Any, object, type(None)):
        return None
    try:
        info = type_of("a function", annotation)
    except TypeError:  # not a class: a type variable, a literal
        return None
    return None if isinstance(info, PickledBytesTypeInfo) else info


def _element(annotation: Any) -> Any:
    """Return the annotation of one result; None if it is unknown. Side outputs have types of their own."""
    kinds = [part for part in _united(annotation) if part is not type(None)]
    if len(kinds) != 1 or typing.get_origin(kinds[0]) not in _MANY:
        return None
    results = [part for part in _united(typing.get_args(kinds[0])[0]) if not _is_tagged(part)]
    return functools.reduce(lambda one, other: one | other, results) if results else None


def _united(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _united(part)
    else:
        yield annotation


def _is_tagged(annotation: Any) -> bool:
    parts = typing.get_args(annotation)
    return (
        typing.get_origin(annotation) is tuple
        and len(parts) == 2
        and OutputTag in (parts[0], typing.get_origin(parts[0]))
    )
