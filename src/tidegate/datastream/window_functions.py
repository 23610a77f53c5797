"""The classes that functions of windows and of window joins extend. ``functions.py`` has the contract of all functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import GenericAlias
from typing import Any, Protocol

from tidegate.operators.contracts.functions import FunctionObject


class _StateStore(Protocol):
    """See ``KeyedStateStore``."""

    def get_state(self, state_descriptor: Any) -> Any: ...

    def get_list_state(self, state_descriptor: Any) -> Any: ...

    def get_map_state(self, state_descriptor: Any) -> Any: ...

    def get_reducing_state(self, state_descriptor: Any) -> Any: ...

    def get_aggregating_state(self, state_descriptor: Any) -> Any: ...


class WindowFunction(FunctionObject, ABC):
    """Gets all records of a key's window at once."""

    __class_getitem__: Any = classmethod(GenericAlias)

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Yield results. Called for a key whenever a window fires. ``inputs``: its records in the order of arrival; after
        ``reduce`` or ``aggregate`` the one result."""


class AllWindowFunction(FunctionObject, ABC):
    """Gets all records of a window of a whole stream at once."""

    __class_getitem__: Any = classmethod(GenericAlias)

    @abstractmethod
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """As ``WindowFunction.apply``, of a stream without keys."""


class ProcessWindowFunction(FunctionObject, ABC):
    """A window function that sees time and state. ``yield tag, value`` with an OutputTag goes to that side output."""

    __class_getitem__: Any = classmethod(GenericAlias)

    class Context(ABC):
        """Valid during the call only."""

        __class_getitem__: Any = classmethod(GenericAlias)

        @abstractmethod
        def window(self) -> Any:
            """Return the window that fires."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the clock, in milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the operator's watermark."""

        @abstractmethod
        def window_state(self) -> _StateStore:
            """Return the state of this key in this window, for windows that fire more than once. Delete it in ``clear``. Merging
            windows have none."""

        @abstractmethod
        def global_state(self) -> _StateStore:
            """State of this key, for all its windows."""

    @abstractmethod
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Yield results. Called for a key whenever a window fires."""

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear the state of the window. Called for every key and window when the window and its allowed lateness have ended."""

    clear.does_nothing = True  # type: ignore[attr-defined]


class ProcessAllWindowFunction(FunctionObject, ABC):
    """As ``ProcessWindowFunction``, of a stream without keys."""

    __class_getitem__: Any = classmethod(GenericAlias)

    class Context(ABC):
        """Valid during the call only."""

        __class_getitem__: Any = classmethod(GenericAlias)

        @abstractmethod
        def window(self) -> Any:
            """Return the window that fires."""

        @abstractmethod
        def window_state(self) -> _StateStore:
            """State of this window alone; ``clear`` has to clear it."""

        @abstractmethod
        def global_state(self) -> _StateStore:
            """State that all windows share."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Yield results. Called whenever a window fires."""

    def clear(self, context: ProcessAllWindowFunction.Context) -> None:
        """Clear the state of the window. Called for every window when it and its allowed lateness have ended."""

    clear.does_nothing = True  # type: ignore[attr-defined]


class JoinFunction(FunctionObject, ABC):
    """Joins two streams by key and window: called for each pair, one result each."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Return one result for a pair of records with the same key and window."""


class FlatJoinFunction(FunctionObject, ABC):
    """As JoinFunction, with any number of results for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any]:
        """Yield any number of results for a pair of records with the same key and window."""


class CoGroupFunction(FunctionObject, ABC):
    """Called once for each key and window, with the records of both streams, also those without a partner."""

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any]:
        """Yield any number of results for a key and window in which at least one stream has records."""
