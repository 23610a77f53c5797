"""The classes window functions extend. What holds for all functions stands in ``functions.py``."""

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
        """Called for a key whenever a window fires: yield results. ``inputs``: the records in it, in the order in which they came;
        behind ``reduce`` or ``aggregate`` the one result."""


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
            """The window that fires."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The clock, in milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The operator's watermark."""

        @abstractmethod
        def window_state(self) -> _StateStore:
            """State of this key in this window: for windows that fire more than once. Delete it in ``clear``. Windows that merge
            have none."""

        @abstractmethod
        def global_state(self) -> _StateStore:
            """State of this key, for all its windows."""

    @abstractmethod
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Called for a key whenever a window fires: yield results."""

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Called for every key and window when the window is over, allowed lateness included."""

    clear.does_nothing = True  # type: ignore[attr-defined]


class ProcessAllWindowFunction(FunctionObject, ABC):
    """As ``ProcessWindowFunction``, of a stream without keys."""

    __class_getitem__: Any = classmethod(GenericAlias)

    class Context(ABC):
        """Valid during the call only."""

        __class_getitem__: Any = classmethod(GenericAlias)

        @abstractmethod
        def window(self) -> Any:
            """The window that fires."""

        @abstractmethod
        def window_state(self) -> _StateStore:
            """State of this window alone; ``clear`` has to clear it."""

        @abstractmethod
        def global_state(self) -> _StateStore:
            """State that all windows share."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Called whenever a window fires: yield results."""

    def clear(self, context: ProcessAllWindowFunction.Context) -> None:
        """Called for every window when it is over, allowed lateness included."""

    clear.does_nothing = True  # type: ignore[attr-defined]
