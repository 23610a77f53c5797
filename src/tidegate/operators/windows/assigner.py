"""Window assigners: the windows of a record. Flink's own stand in ``time_assigners.py``, ``sessions.py`` and ``counting.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Generic, TypeVar

from tidegate.base.errors import ProgramError, UserCodeError
from tidegate.base.user_code import UserFunction
from tidegate.base.watermarks import MIN_WATERMARK
from tidegate.common.serializer import TypeSerializer
from tidegate.operators.windows.trigger import Trigger

T = TypeVar("T", contravariant=True)
W = TypeVar("W")
W2 = TypeVar("W2")
F = TypeVar("F", bound=UserFunction)


class WindowAssigner(ABC, Generic[T, W]):
    """Puts each record into any number of windows. One object serves all keys."""

    class WindowAssignerContext(ABC):
        """Valid during the call only."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The clock, in milliseconds."""

        @abstractmethod
        def get_runtime_context(self) -> Any:
            """The operator's runtime context; its states are those of the record's key."""

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """The windows of a record. ``timestamp``: the least 64-bit integer if it has none."""

    @abstractmethod
    def get_default_trigger(self, env: object) -> Trigger[T, W]:
        """The trigger of windows that set none."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """How its windows are written into state."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark; else by the clock."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows grow together: sessions."""

    class MergeCallback(ABC, Generic[W2]):
        """Told of windows that become one."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """These windows become this one."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback[W]) -> None:
        """Tell the callback which of the windows of a key become one."""


TIME_NEEDED = "Records need timestamps to be put into event-time windows"


def by_timestamp(assign_windows: F) -> F:
    """Mark a method that refuses records without a timestamp, so that a program is refused before its first record."""
    assign_windows.needs_time = True  # type: ignore[attr-defined]
    return assign_windows


def needs_time(assigner: WindowAssigner[T, W]) -> bool:
    """Whether the assigner refuses records without a timestamp."""
    return bool(getattr(type(assigner).assign_windows, "needs_time", False))


def timed(timestamp: int) -> int:
    """The timestamp of a record, if it has one."""
    if timestamp <= MIN_WATERMARK:
        raise no_timestamp()
    return timestamp


def no_timestamp() -> UserCodeError:
    """A record that has no timestamp has come to an event-time window."""
    return UserCodeError(
        TIME_NEEDED,
        found="Record has Java Long.MIN_VALUE timestamp (= no timestamp marker)",
        cure="call assign_timestamps_and_watermarks(...) before the window, or use processing-time windows",
    )


def check_positive(assigner: str, what: str, value: int) -> int:
    if value <= 0:
        raise ProgramError(
            f"The {what} of {assigner} must be greater than 0", found=f"{value} ms", cure="Time.seconds(5)"
        )
    return value


def check_offset(assigner: str, offset: int, limit: int, what: str) -> int:
    if abs(offset) >= limit:
        raise ProgramError(
            f"{assigner} parameters must satisfy abs(offset) < {what}",
            found=f"offset {offset} ms, {what} {limit} ms",
            cure=f"use the remainder of the offset and the {what}, which gives the same windows; the offset may be negative",
        )
    return offset
