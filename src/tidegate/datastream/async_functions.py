"""What users extend for asynchronous I/O: the function, and when a call is made again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import GenericAlias
from typing import Any

from tidegate.operators.contracts.functions import FunctionObject


class AsyncRetryPredicate(ABC):
    """Which outcomes of a call make another one. None: no result, or no exception, does."""

    __class_getitem__: Any = classmethod(GenericAlias)

    @abstractmethod
    def result_predicate(self) -> Callable[[list[Any]], bool] | None:
        """Says for a result whether to try again; None: results are never tried again."""

    @abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        """Says for an exception whether to try again; None: exceptions are never tried again."""


class AsyncRetryStrategy(ABC):
    """When a call is made again. Asked in the event loop: it must not block."""

    __class_getitem__: Any = classmethod(GenericAlias)

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """``current_attempts``: how many calls were made for the record, from 1."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """How long to wait before the next one."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """What decides whether a result or an exception is tried again."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Every record is called for once."""
        from tidegate.datastream.async_retry_strategies import NO_RETRY_STRATEGY

        return NO_RETRY_STRATEGY

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: Callable[[list[Any]], bool] | None,
        exception_predicate: Callable[[Exception], bool] | None,
    ) -> AsyncRetryStrategy:
        """So many more calls, each after the same time."""
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
        """So many more calls, each after a longer time."""
        from tidegate.datastream.async_retry_strategies import ExponentialBackoffDelayRetryStrategy

        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class AsyncFunction(FunctionObject, ABC):
    """A function that waits for something outside, for many records at once (``AsyncDataStream``).

    ``open``, ``close`` and all calls run in the worker's event loop: sessions and locks of asyncio may be made in ``open``, and
    nothing may block. A call that was made may be made again after a failure. It has no keyed state.
    """

    __class_getitem__: Any = classmethod(GenericAlias)

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """The results for a record, any number. An exception fails the job, unless the retry strategy wants another call."""

    def timeout(self, value: Any) -> list[Any]:
        """Called, not awaited, when a record has taken too long, all its calls together; the call is cancelled. What it returns is
        emitted instead."""
        raise TimeoutError(f"Async function call has timed out for input: {value}")
