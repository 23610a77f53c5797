"""Wrappers that give a function's results what its declared output type promises (see common/row_conversion.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidegate.common.row_conversion import Converter, converter
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream.output_tag import OutputTag


class _Typed:
    """Holds the user's function and passes its life cycle on."""

    _method = ""

    def __init__(self, function: Any, convert: Converter) -> None:
        self._function, self._convert = function, convert
        self._call: Callable[..., Any] = getattr(function, self._method, function)

    def open(self, runtime_context: Any) -> None:
        self._pass_on("open", runtime_context)

    def close(self) -> None:
        self._pass_on("close")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_aborted", checkpoint_id)

    def _pass_on(self, hook: str, *arguments: Any) -> None:
        method = None if isinstance(self._function, type) else getattr(self._function, hook, None)
        if method is not None:
            method(*arguments)


class TypedMap(_Typed):
    _method = "map"

    def map(self, value: Any) -> Any:
        return self._convert(self._call(value))


class TypedFlatMap(_Typed):
    _method = "flat_map"

    def flat_map(self, value: Any) -> Iterator[Any]:
        for result in self._call(value) or ():
            yield self._convert(result)


class TypedReduce(_Typed):
    _method = "reduce"

    def reduce(self, value1: Any, value2: Any) -> Any:
        return self._convert(self._call(value1, value2))


class TypedProcess(_Typed):
    """Side outputs have a type of their own and pass as they are."""

    _method = "process_element"

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._each(self._call(value, ctx))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return self._each(self._function.on_timer(timestamp, ctx))

    def _each(self, results: Iterable[Any] | None) -> Iterator[Any]:
        for result in results or ():
            tagged = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], OutputTag)
            yield result if tagged else self._convert(result)


def typed(wrapper: Callable[[Any, Converter], Any], function: Any, info: TypeInformation | None) -> Any:
    """The function itself where there is nothing to convert, so that it costs nothing."""
    convert = converter(info)
    return function if convert is None else wrapper(function, convert)
