"""The classes that functions of window joins extend: Java's, in PyFlink's spelling. ``functions.py`` has what holds for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from tidegate.operators.contracts.functions import FunctionObject


class JoinFunction(FunctionObject, ABC):
    """Joins two streams by key and window: called for each pair, one result each."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """One result for each pair of records that have key and window in common."""


class FlatJoinFunction(FunctionObject, ABC):
    """As JoinFunction, with any number of results for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any]:
        """Any number of results for each pair of records that have key and window in common: yield them."""


class CoGroupFunction(FunctionObject, ABC):
    """Called once for each key and window, with the records of both streams; sees also those without a partner."""

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any]:
        """Any number of results for each key and window in which one of the streams has records; the other may have none."""
