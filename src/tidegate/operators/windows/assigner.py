"""Window assigners, which choose the windows of a record: the contract, tumbling, sliding and global windows.

Tumbling and sliding windows exist for event time and for processing time. Flink's other assigners are in
``sessions.py`` and ``counting.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

from tidegate.base.clock import MIN_WATERMARK
from tidegate.base.errors import ProgramError, UserCodeError
from tidegate.base.user_code import UserFunction
from tidegate.common.serializer import TypeSerializer
from tidegate.common.time import Span, millis_of
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from tidegate.operators.windows.window import (
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)

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
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext, /
    ) -> Collection[W]:
        """Return the windows of a record. ``timestamp``: the least 64-bit integer if the record has none."""

    @abstractmethod
    def get_default_trigger(self, env: object, /) -> Trigger[T, W]:
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
    def merge_windows(self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback[W], /) -> None:
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


class _Aligned(WindowAssigner[object, TimeWindow]):
    """Windows of one size that start every ``slide`` milliseconds, at the same times for all keys."""

    _found: tuple[TimeWindow, ...] = ()
    """The windows of the times from ``_from`` up to ``_to``: most records are in the windows of the record before."""
    _from = _to = 0

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self._size, self._slide, self._offset = size, slide, offset

    def _windows(self, time: int) -> Collection[TimeWindow]:
        if self._from <= time < self._to:
            return list(self._found)
        last = TimeWindow.get_window_start_with_offset(time, self._offset, self._slide)
        found = [TimeWindow(start, start + self._size) for start in range(last, time - self._size, -self._slide)]
        if self._size % self._slide == 0:  # else the last windows end within the slide
            self._found, self._from, self._to = tuple(found), last, last + self._slide
        return found

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()


class _Tumbling(_Aligned):
    def __init__(self, size: int, offset: int = 0) -> None:
        name = type(self).__name__
        check_positive(name, "size", size)
        super().__init__(size, size, check_offset(name, offset, size, "size"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


class _Sliding(_Aligned):
    def __init__(self, size: int, slide: int, offset: int = 0) -> None:
        name = type(self).__name__
        check_positive(name, "size", size)
        check_positive(name, "slide", slide)
        super().__init__(size, slide, check_offset(name, offset, slide, "slide"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._slide}, {self._offset})"


class _ByEventTime(_Aligned):
    @by_timestamp
    def assign_windows(
        self, element: object, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return self._windows(timed(timestamp))

    def get_default_trigger(self, env: object) -> Trigger[object, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class _ByProcessingTime(_Aligned):
    def assign_windows(
        self, element: object, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return self._windows(context.get_current_processing_time())

    def get_default_trigger(self, env: object) -> Trigger[object, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


class TumblingEventTimeWindows(_Tumbling, _ByEventTime):
    """Consecutive windows of one size, by the timestamps of records."""

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingEventTimeWindows:
        """Return consecutive windows of ``size``, shifted by ``offset``."""
        return TumblingEventTimeWindows(*_spans("TumblingEventTimeWindows.of", size, offset=offset))


class TumblingProcessingTimeWindows(_Tumbling, _ByProcessingTime):
    """Consecutive windows of one size, by the clock of the machine."""

    @staticmethod
    def of(size: Span, offset: Span | None = None) -> TumblingProcessingTimeWindows:
        """Return consecutive windows of ``size``, shifted by ``offset``."""
        return TumblingProcessingTimeWindows(*_spans("TumblingProcessingTimeWindows.of", size, offset=offset))


class SlidingEventTimeWindows(_Sliding, _ByEventTime):
    """Windows of one size that start every ``slide``, by the timestamps of records."""

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> SlidingEventTimeWindows:
        """Return windows of ``size``, one starting every ``slide``, shifted by ``offset``."""
        return SlidingEventTimeWindows(*_spans("SlidingEventTimeWindows.of", size, slide, offset=offset))


class SlidingProcessingTimeWindows(_Sliding, _ByProcessingTime):
    """Windows of one size that start every ``slide``, by the clock of the machine."""

    @staticmethod
    def of(size: Span, slide: Span, offset: Span | None = None) -> SlidingProcessingTimeWindows:
        """Return windows of ``size``, one starting every ``slide``, shifted by ``offset``."""
        return SlidingProcessingTimeWindows(*_spans("SlidingProcessingTimeWindows.of", size, slide, offset=offset))


class GlobalWindows(WindowAssigner[object, GlobalWindow]):
    """One window for all records of a key. The window never ends: give it a trigger."""

    @staticmethod
    def create() -> GlobalWindows:
        """Return one window for all records of a key. The window never ends: it needs a trigger."""
        return GlobalWindows()

    def __init__(self) -> None:
        super().__init__()

    def assign_windows(
        self, element: object, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: object) -> Trigger[object, GlobalWindow]:
        return NeverTrigger()

    def get_window_serializer(self) -> TypeSerializer[GlobalWindow]:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"


def _spans(method: str, *spans: Span, offset: Span | None) -> list[int]:
    """Return the milliseconds of each span, and the offset last: 0 if there is none."""
    return [*(millis_of(method, span) for span in spans), 0 if offset is None else millis_of(method, offset)]


class AlignedWindows:
    """Size, slide and offset of event-time windows that start at the same times for all keys."""

    __slots__ = ("offset", "size", "slide")

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size, self.slide, self.offset = size, slide, offset


def aligned_event_time(assigner: object) -> AlignedWindows | None:
    """Return the windows of a tumbling or sliding event-time assigner. None for anything else, also for a subclass,
    which may assign windows as it likes."""
    if not isinstance(assigner, _Aligned) or type(assigner) not in (TumblingEventTimeWindows, SlidingEventTimeWindows):
        return None
    return AlignedWindows(assigner._size, assigner._slide, assigner._offset)


def by_processing_time(assigner: object) -> Callable[[int], Collection[TimeWindow]] | None:
    """Return the function that finds the windows of a tumbling or sliding processing-time assigner by the time. None for
    anything else, also for a subclass."""
    if isinstance(assigner, _Aligned) and type(assigner) in (
        TumblingProcessingTimeWindows,
        SlidingProcessingTimeWindows,
    ):
        return assigner._windows
    return None
