"""The classes that users extend for asynchronous I/O: functions, and retry strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tidegate.base.generics import Generic, In, Out
from tidegate.operators.contracts.functions import FunctionObject


class AsyncRetryPredicate(Generic[Out], ABC):
    """Which outcomes of a call are retried."""

    @abstractmethod
    def result_predicate(self) -> Callable[[list[Any]], bool] | None:
        """Return a test whether a result is retried; None: results are never retried."""

    @abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        """Return a test whether an exception is retried; None: exceptions are never retried."""


class AsyncRetryStrategy(Generic[Out], ABC):
    """When a call is retried. Called in the event loop, so it must not block."""

    @abstractmethod
    def can_retry(self, current_attempts: int, /) -> bool:
        """Return whether another call is allowed. ``current_attempts``: the number of calls for the record, from 1."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int, /) -> int:
        """Return how long to wait before the next call."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return the predicate that decides about retries of results and exceptions."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Return a strategy without retries."""
        from tidegate.datastream.async_retry_strategies import NO_RETRY_STRATEGY

        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: Callable[[list[Any]], bool] | None,
        exception_predicate: Callable[[Exception], bool] | None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with a fixed pause between calls."""
        from tidegate.datastream.async_retry_strategies import FixedDelayRetryStrategy

        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: Callable[[list[Any]], bool] | None,
        exception_predicate: Callable[[Exception], bool] | None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with growing pauses between calls."""
        from tidegate.datastream.async_retry_strategies import ExponentialBackoffDelayRetryStrategy

        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class AsyncFunction(FunctionObject, Generic[In, Out], ABC):
    """A function that waits for an external system, for many records at once (``AsyncDataStream``).

    ``open``, ``close`` and all calls run in the worker's event loop: sessions and locks of asyncio may be made in ``open``, and
    nothing may block. A call may be repeated after a failure. The function has no keyed state.
    """

    @abstractmethod
    async def async_invoke(self, value: In, /) -> list[Out]:
        """Return any number of results for a record. An exception fails the job, unless the retry strategy allows another call."""

    def timeout(self, value: In, /) -> list[Out]:
        """Return the results for a record whose calls took longer than the timeout. The call is cancelled. Called, not awaited."""
        raise TimeoutError(f"Async function call has timed out for input: {value}")
