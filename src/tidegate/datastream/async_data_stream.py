"""Asynchronous I/O: many concurrent calls to an external system, for the records of a stream."""

from __future__ import annotations

import inspect
from typing import Any

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import TypeVar
from tidegate.base.user_code import calling_line
from tidegate.common.object_types import Declared
from tidegate.common.time import Duration, Time, millis_of
from tidegate.datastream.annotations import result_type
from tidegate.datastream.async_functions import AsyncFunction, AsyncRetryStrategy
from tidegate.datastream.async_retry_strategies import NO_RETRY_STRATEGY
from tidegate.datastream.stream import DataStream
from tidegate.datastream.typed_functions import TypedAsync, typed
from tidegate.operators.contracts.specs import AsyncSpec

__all__ = ["AsyncDataStream"]

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


class AsyncDataStream:
    """Adds an ``AsyncFunction`` to a stream. At most ``capacity`` calls of a subtask run at once. Each may take ``timeout``,
    retries included; 0: no limit.

    Ordered: results in the order of the records. Unordered: results as they arrive, but never past a watermark.
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, R],
        timeout: Time | Duration,
        capacity: int = 100,
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Emit results as they arrive, between two watermarks. ``capacity``: most concurrent calls of a subtask."""
        return AsyncDataStream.unordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, R],
        timeout: Time | Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Retry calls by the strategy. The timeout of the record includes its retries."""
        method = "unordered_wait"
        return _waiting(
            method, data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=False
        )

    @staticmethod
    def ordered_wait(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, R],
        timeout: Time | Duration,
        capacity: int = 100,
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Emit results in the order of their records. ``capacity``: most concurrent calls of a subtask."""
        return AsyncDataStream.ordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream[T],
        async_function: AsyncFunction[T, R],
        timeout: Time | Duration,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Declared = None,
    ) -> DataStream[R]:
        """Retry calls by the strategy. The timeout of the record includes its retries."""
        method = "ordered_wait"
        return _waiting(
            method, data_stream, async_function, timeout, async_retry_strategy, capacity, output_type, ordered=True
        )


def _waiting(
    method: str,
    stream: Any,
    function: Any,
    timeout: Any,
    strategy: Any,
    capacity: Any,
    output_type: Declared,
    *,
    ordered: bool,
) -> DataStream[R]:
    if not isinstance(stream, DataStream):
        raise wrong(method, "a DataStream", stream, "pass the stream first, then the function")
    _check_function(method, function)
    if expect_int(method, capacity, "capacity=100") < 1:
        raise ProgramError(f"The capacity of {method} is less than 1", found=str(capacity), cure="use capacity=100")
    timeout_ms = timeout.to_milliseconds() if isinstance(timeout, Time) else millis_of(method, timeout)
    retry = _checked_retry(method, strategy, timeout_ms)
    result = result_type(stream._env, method, output_type, function, "async_invoke", "timeout")
    spec = AsyncSpec(typed(TypedAsync, function, result.type), ordered, timeout_ms, capacity, retry)
    return stream._then("async wait operator", spec, *result)


def _check_function(method: str, function: Any) -> None:
    if isinstance(function, type) or not hasattr(function, "async_invoke"):
        raise wrong(method, "an AsyncFunction object", function, "extend AsyncFunction and pass an object of it")
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise ProgramError(
            "async_invoke of an AsyncFunction is not declared as 'async def'",
            where=f"{method}, {calling_line()}, class {type(function).__name__}",
            found="an async generator, which yields"
            if inspect.isasyncgenfunction(function.async_invoke)
            else "a plain function",
            cure="write async def async_invoke(self, value), await in it, and return a list; for calls that block use map()",
        )


def _checked_retry(method: str, strategy: Any, timeout_ms: int) -> AsyncRetryStrategy | None:
    """None: calls are made once."""
    if not isinstance(strategy, AsyncRetryStrategy):
        raise wrong(method, "an AsyncRetryStrategy", strategy, "AsyncRetryStrategy.no_restart() if you want none")
    predicate = strategy.get_retry_predicate()
    if predicate is None:
        raise ProgramError(
            "The retry strategy has no predicate", where=f"{method}, class {type(strategy).__name__}", found="None"
        )
    if strategy is not NO_RETRY_STRATEGY and timeout_ms <= 0:
        raise ProgramError(
            "Retries need a timeout",
            where=method,
            found=f"{timeout_ms} ms",
            cure="give a timeout, for example Time.seconds(10)",
        )
    has_rule = predicate.result_predicate() is not None or predicate.exception_predicate() is not None
    return strategy if has_rule else None
