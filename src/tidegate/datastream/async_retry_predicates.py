"""Predicates for retry strategies: which outcomes are retried."""

from __future__ import annotations

from typing import Any


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Retry an empty result."""
    return result is None or len(result) == 0


def has_exception_predicate(error: BaseException | None) -> bool:
    """Retry any exception."""
    return error is not None


def exception_type_predicate(error: BaseException | None, expected_error_type: type[BaseException]) -> bool:
    """Retry an exception of the type: ``lambda error: exception_type_predicate(error, ConnectionError)``."""
    return isinstance(error, expected_error_type)
