"""Asynchronous I/O: order, several results or none, timeouts, retries."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compat.differential.catalog import program, whole
from tests.compat.differential.engine_api import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    Time,
    Types,
    empty_result_predicate,
    has_exception_predicate,
)


class Squares(AsyncFunction):
    """Records with an even number take longer; some have no result, some have two."""

    async def async_invoke(self, value: int) -> Any:
        await asyncio.sleep(0.002 * (1 - value % 2))
        return [value * value] * (value % 3)


@program(parallelisms=(1,), key=whole)
def ordered_asynchronous_calls(env: Any) -> Any:
    return AsyncDataStream.ordered_wait(env.from_collection(list(range(60))), Squares(), Time.seconds(30), 10)


@program(parallelisms=(1, 2))
def unordered_asynchronous_calls(env: Any) -> Any:
    numbers = env.from_collection(list(range(60)), Types.INT())
    return AsyncDataStream.unordered_wait(numbers, Squares(), Time.seconds(30), 10, Types.INT())


class Hangs(Squares):
    async def async_invoke(self, value: int) -> Any:
        await asyncio.sleep(60 if value == 3 else 0)
        return [value]

    def timeout(self, value: int) -> Any:
        return [-value, "timed out"]


@program(parallelisms=(1,), key=whole)
def a_call_that_takes_too_long(env: Any) -> Any:
    return AsyncDataStream.ordered_wait(env.from_collection(list(range(6))), Hangs(), Time.milliseconds(1500))


class Hesitates(AsyncFunction):
    """The first calls for a record fail or have no result."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}

    async def async_invoke(self, value: int) -> Any:
        self.calls[value] = self.calls.get(value, 0) + 1
        if self.calls[value] <= value % 4:
            if value % 2:
                raise ValueError("not yet")
            return []
        return [(value, self.calls[value])]


@program(parallelisms=(1,), key=whole)
def calls_that_are_made_again(env: Any) -> Any:
    """Three more calls at most are enough for all of them."""
    retry = AsyncRetryStrategy.fixed_delay(3, 10, empty_result_predicate, has_exception_predicate)
    numbers = env.from_collection(list(range(12)))
    return AsyncDataStream.ordered_wait_with_retry(numbers, Hesitates(), Time.seconds(30), retry)


@program(parallelisms=(1,), key=whole)
def calls_that_are_not_made_often_enough(env: Any) -> Any:
    """No result, three times: then there is none."""
    retry = AsyncRetryStrategy.exponential_backoff(1, 5, 50, 2.0, empty_result_predicate, has_exception_predicate)
    numbers = env.from_collection([0, 2, 4, 6])
    return AsyncDataStream.ordered_wait_with_retry(numbers, Hesitates(), Time.seconds(30), retry)


@program(parallelisms=(1,), fails_with="ValueError")
def a_call_that_fails(env: Any) -> Any:
    return AsyncDataStream.unordered_wait(env.from_collection([1]), Hesitates(), Time.seconds(30))
