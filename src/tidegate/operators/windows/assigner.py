"""Window assigners choose the windows of a record. Flink's own are in ``time_assigners.py``, ``sessions.py`` and
``counting.py``."""

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
    """Put each record into any number of windows. One object serves all keys."""

    class WindowAssignerContext(ABC):
        """Give an assigner its context. Valid during the call only."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the clock, in milliseconds."""

        @abstractmethod
        def get_runtime_context(self) -> Any:
            """Return the operator's runtime context; its states are those of the record's key."""

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """Return the windows of a record. ``timestamp``: the least 64-bit integer if the record has none."""

    @abstractmethod
    def get_default_trigger(self, env: object) -> Trigger[T, W]:
        """Return the trigger of windows without a trigger of their own."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """Return the serializer that writes the windows into state."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Tell whether windows end by the watermark; otherwise they end by the clock."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows are merged, for example sessions."""

    class MergeCallback(ABC, Generic[W2]):
        """Receive the windows that become one."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """Merge these windows into this window."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback[W]) -> None:
        """Call the callback with the windows of a key that become one."""


TIME_NEEDED = "Records need timestamps to be put into event-time windows"


def by_timestamp(assign_windows: F) -> F:
    """Mark a method that refuses records without a timestamp. A program is then refused before its first record."""
    assign_windows.needs_time = True  # type: ignore[attr-defined]
    return assign_windows


def needs_time(assigner: WindowAssigner[T, W]) -> bool:
    """Tell whether the assigner refuses records without a timestamp."""
    return bool(getattr(type(assigner).assign_windows, "needs_time", False))


def timed(timestamp: int) -> int:
    """Return the timestamp of a record, or raise if the record has none."""
    if timestamp <= MIN_WATERMARK:
        raise no_timestamp()
    return timestamp


def no_timestamp() -> UserCodeError:
    """Return the error for a record without a timestamp in an event-time window."""
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
            cure=f"use the remainder of the offset by the {what}: it gives the same windows",
        )
    return offset
