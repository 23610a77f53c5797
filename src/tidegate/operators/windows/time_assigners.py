"""Tumbling and sliding windows, by event time and by processing time, and the single global window."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.common.serializer import TypeSerializer
from tidegate.common.time import Span, millis_of
from tidegate.operators.windows.assigner import WindowAssigner, by_timestamp, check_offset, check_positive, timed
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from tidegate.operators.windows.window import (
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)


class _Aligned(WindowAssigner[object, TimeWindow]):
    """Windows of one size that start every ``slide`` milliseconds, at the same times for all keys."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self._size, self._slide, self._offset = size, slide, offset

    def _windows(self, time: int) -> Collection[TimeWindow]:
        last = TimeWindow.get_window_start_with_offset(time, self._offset, self._slide)
        return [TimeWindow(start, start + self._size) for start in range(last, time - self._size, -self._slide)]

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
