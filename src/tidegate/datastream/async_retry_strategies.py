"""Retry strategies of asynchronous functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidegate.base.errors import ProgramError
from tidegate.datastream.async_functions import AsyncRetryPredicate, AsyncRetryStrategy

__all__ = [
    "NO_RETRY_STRATEGY",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

OUT = TypeVar("OUT")
ResultPredicate = Callable[[list[Any]], bool] | None
ExceptionPredicate = Callable[[Exception], bool] | None


class RetryPredicate(AsyncRetryPredicate):
    def __init__(self, result_predicate: ResultPredicate, exception_predicate: ExceptionPredicate) -> None:
        self._result_predicate, self._exception_predicate = result_predicate, exception_predicate

    def result_predicate(self) -> ResultPredicate:
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate:
        return self._exception_predicate


class NoRetryStrategy(AsyncRetryStrategy):
    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy):
    """``max_attempts``: calls after the first."""

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> None:
        _check("FixedDelayRetryStrategy", max_attempts=max_attempts, backoff_time_millis=backoff_time_millis)
        self._max_attempts, self._backoff_time_millis = max_attempts, backoff_time_millis
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._backoff_time_millis

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    """``max_attempts``: calls after the first. Each pause is ``multiplier`` times the previous pause of the same record."""

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ) -> None:
        _check(
            "ExponentialBackoffDelayRetryStrategy",
            max_attempts=max_attempts,
            initial_delay=initial_delay,
            max_retry_delay=max_retry_delay,
            multiplier=multiplier,
        )
        self._max_attempts, self._initial_delay = max_attempts, initial_delay
        self._max_retry_delay, self._multiplier = max_retry_delay, multiplier
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        delay: float = self._initial_delay
        for _ in range(current_attempts - 1):
            delay = min(delay * self._multiplier, self._max_retry_delay)
        return int(delay)

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


def _check(strategy: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not number > 0:
            raise ProgramError(
                f"{name} of a {strategy} is not above zero", found=repr(number), cure=f"for example {name}=3"
            )


NO_RETRY_STRATEGY: AsyncRetryStrategy = NoRetryStrategy()
