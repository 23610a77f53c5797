"""The classes that functions of windows and of window joins extend. ``functions.py`` has the contract of all functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tidegate.base.generics import Generic, In, In1, In2, Key, Out, TypeVar, Window
from tidegate.datastream.output_tag import OutputTag
from tidegate.operators.contracts.functions import FunctionObject

Fired = TypeVar("Fired", covariant=True, default=Any)

if TYPE_CHECKING:
    Emitted: TypeAlias = Iterable[Out | tuple[OutputTag[Any], Any]] | None
    """What window functions return: records, and ``tag, value`` for side outputs."""


class _StateStore(Protocol):
    """See ``KeyedStateStore``."""

    def get_state(self, state_descriptor: Any) -> Any: ...

    def get_list_state(self, state_descriptor: Any) -> Any: ...

    def get_map_state(self, state_descriptor: Any) -> Any: ...

    def get_reducing_state(self, state_descriptor: Any) -> Any: ...

    def get_aggregating_state(self, state_descriptor: Any) -> Any: ...


class WindowFunction(FunctionObject, Generic[In, Out, Key, Window], ABC):
    """Gets all records of a key's window at once."""

    @abstractmethod
    def apply(self, key: Key, window: Window, inputs: Iterable[In], /) -> Iterable[Out]:
        """Yield results. Called for a key whenever a window fires. ``inputs``: its records in the order of arrival; after
        ``reduce`` or ``aggregate`` the one result."""


class AllWindowFunction(FunctionObject, Generic[In, Out, Window], ABC):
    """Gets all records of a window of a whole stream at once."""

    @abstractmethod
    def apply(self, window: Window, inputs: Iterable[In], /) -> Iterable[Out]:
        """As ``WindowFunction.apply``, of a stream without keys."""


class ProcessWindowFunction(FunctionObject, Generic[In, Out, Key, Window], ABC):
    """A window function that sees time and state. ``yield tag, value`` with an OutputTag goes to that side output."""

    class Context(Generic[Fired], ABC):
        """Valid during the call only."""

        @abstractmethod
        def window(self) -> Fired:
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
    def process(
        self, key: Key, context: ProcessWindowFunction.Context[Window], elements: Iterable[In], /
    ) -> Emitted[Out]:
        """Yield results. Called for a key whenever a window fires."""

    def clear(self, context: ProcessWindowFunction.Context[Window], /) -> None:
        """Clear the state of the window. Called for every key and window when the window and its allowed lateness have ended."""

    clear.does_nothing = True  # type: ignore[attr-defined]


class ProcessAllWindowFunction(FunctionObject, Generic[In, Out, Window], ABC):
    """As ``ProcessWindowFunction``, of a stream without keys."""

    class Context(Generic[Fired], ABC):
        """Valid during the call only."""

        @abstractmethod
        def window(self) -> Fired:
            """Return the window that fires."""

        @abstractmethod
        def window_state(self) -> _StateStore:
            """State of this window alone; ``clear`` has to clear it."""

        @abstractmethod
        def global_state(self) -> _StateStore:
            """State that all windows share."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[Window], elements: Iterable[In], /) -> Emitted[Out]:
        """Yield results. Called whenever a window fires."""

    def clear(self, context: ProcessAllWindowFunction.Context[Window], /) -> None:
        """Clear the state of the window. Called for every window when it and its allowed lateness have ended."""

    clear.does_nothing = True  # type: ignore[attr-defined]


class JoinFunction(FunctionObject, Generic[In1, In2, Out], ABC):
    """Joins two streams by key and window: called for each pair, one result each."""

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Out:
        """Return one result for a pair of records with the same key and window."""


class FlatJoinFunction(FunctionObject, Generic[In1, In2, Out], ABC):
    """As JoinFunction, with any number of results for each pair."""

    @abstractmethod
    def join(self, first: In1, second: In2, /) -> Iterable[Out] | None:
        """Yield any number of results for a pair of records with the same key and window."""


class CoGroupFunction(FunctionObject, Generic[In1, In2, Out], ABC):
    """Called once for each key and window, with the records of both streams, also those without a partner."""

    @abstractmethod
    def co_group(self, first: Iterable[In1], second: Iterable[In2], /) -> Iterable[Out] | None:
        """Yield any number of results for a key and window in which at least one stream has records."""
