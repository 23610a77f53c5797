"""Wrappers of user functions: results converted to the declared type, key selectors and partitioners as callables.

``common/conversion.py`` has the conversions. The engine calls the plain callables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import StateAccessError
from tidegate.common.conversion import Conversion, Converter, converter
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream.functions import Function, KeySelector, Partitioner
from tidegate.datastream.output_tag import OutputTag
from tidegate.operators.contracts.functions import FunctionWrapper, method_of


class _Typed(FunctionWrapper):
    """Around the user's function."""

    _method = ""

    def __init__(self, function: Any, conversion: Converter) -> None:
        super().__init__(function)
        self._conversion = conversion  # pickled as its type
        self._convert = conversion
        self._call: Callable[..., Any] = method_of(function, self._method)

    def open(self, runtime_context: Any) -> None:
        if isinstance(self._conversion, Conversion):
            self._convert = self._conversion.call
        super().open(runtime_context)


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
    """Converts all but side outputs, which have their own types."""

    def __init__(self, function: Any, conversion: Converter) -> None:
        super().__init__(function, conversion)
        self._call = function.process_element

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._each(self._call(value, ctx))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return self._each(self.wrapped.on_timer(timestamp, ctx))

    def _each(self, results: Iterable[Any] | None) -> Iterator[Any]:
        return converted(results, self._convert)


class TypedCoMap(FunctionWrapper):
    def __init__(self, function: Any, convert: Converter) -> None:
        super().__init__(function)
        self._convert = convert

    def map1(self, value: Any) -> Any:
        result = self.wrapped.map1(value)
        return None if result is None else self._convert(result)

    def map2(self, value: Any) -> Any:
        result = self.wrapped.map2(value)
        return None if result is None else self._convert(result)


class TypedCoFlatMap(FunctionWrapper):
    def __init__(self, function: Any, convert: Converter) -> None:
        super().__init__(function)
        self._convert = convert

    def flat_map1(self, value: Any) -> Iterator[Any]:
        for result in self.wrapped.flat_map1(value) or ():
            yield self._convert(result)

    def flat_map2(self, value: Any) -> Iterator[Any]:
        for result in self.wrapped.flat_map2(value) or ():
            yield self._convert(result)


class TypedCoProcess(FunctionWrapper):
    """As ``TypedProcess``."""

    def __init__(self, function: Any, convert: Converter) -> None:
        super().__init__(function)
        self._convert = convert

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.process_element1(value, ctx), self._convert)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.process_element2(value, ctx), self._convert)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.on_timer(timestamp, ctx), self._convert)


class TypedBroadcast(FunctionWrapper):
    """As ``TypedProcess``, for both sides."""

    def __init__(self, function: Any, convert: Converter) -> None:
        super().__init__(function)
        self._convert = convert

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.process_element(value, ctx), self._convert)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.process_broadcast_element(value, ctx), self._convert)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.on_timer(timestamp, ctx), self._convert)


class TypedJoin(FunctionWrapper):
    def __init__(self, function: Any, convert: Converter) -> None:
        super().__init__(function)
        self._convert = convert

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        return converted(self.wrapped.process_element(left, right, ctx), self._convert)


def converted(results: Iterable[Any] | None, convert: Converter) -> Iterator[Any]:
    """Convert the records of a process function. Side outputs have their own types."""
    for result in results or ():
        tagged = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], OutputTag)
        yield result if tagged else convert(result)


class TypedAsync(_Typed):
    _method = "async_invoke"

    async def async_invoke(self, value: Any) -> Any:
        return self._each(await self._call(value))

    def timeout(self, value: Any) -> Any:
        return self._each(self.wrapped.timeout(value))

    def _each(self, results: Any) -> Any:
        """The operator refuses a result that is not a list."""
        return list(map(self._convert, results)) if isinstance(results, list | tuple) else results


def typed(wrapper: Callable[[Any, Converter], Any], function: Any, info: TypeInformation | None) -> Any:
    """Return the function itself if there is nothing to convert, so that it costs nothing."""
    convert = converter(info)
    return function if convert is None else wrapper(function, convert)


def key_callable(method: str, selector: Any) -> Callable[[Any], Any]:
    """Return the function value -> key. The edge then converts the key to its declared type (``state/keys.py``)."""
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
