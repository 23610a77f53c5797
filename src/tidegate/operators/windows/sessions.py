"""Session windows: a session ends when no record of the key has arrived for a while."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable

from tidegate.base.arguments import wrong
from tidegate.base.errors import UserCodeError
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.serializer import TypeSerializer
from tidegate.common.time import Span, millis_of
from tidegate.operators.windows.assigner import MergingWindowAssigner, by_timestamp, check_positive, timed
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger
from tidegate.operators.windows.window import TimeWindow, TimeWindowSerializer


class SessionWindowTimeGapExtractor(ABC):
    """Return for each record how many milliseconds its session stays open after the record."""

    @abstractmethod
    def extract(self, element: UserValue, /) -> int:
        """Return how long the session of this record waits for the next record, in milliseconds; must be greater than
        0."""


GapExtractor = SessionWindowTimeGapExtractor | Callable[[UserValue], int]


class _Sessions(MergingWindowAssigner[object, TimeWindow]):
    """Open a window from each record's time to the end of its gap. Windows that overlap or touch are one session."""

    def _gap(self, element: object) -> int:
        raise NotImplementedError

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        TimeWindow.merge_windows(windows, callback)

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()


class _FixedGap(_Sessions):
    def __init__(self, session_gap: int) -> None:
        self._session_gap = check_positive(type(self).__name__, "gap", session_gap)

    def _gap(self, element: object) -> int:
        return self._session_gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session_gap})"


class _DynamicGap(_Sessions):
    def __init__(self, session_window_time_gap_extractor: GapExtractor) -> None:
        extractor = session_window_time_gap_extractor
        self._extractor = extractor
        extract: UserValue = getattr(extractor, "extract", extractor)
        self._extract: UserFunction = extract
        if isinstance(extractor, type) or not callable(extract):
            cure = "extend SessionWindowTimeGapExtractor and pass an object of it"
            raise wrong("with_dynamic_gap", "a SessionWindowTimeGapExtractor", extractor, cure)

    def _gap(self, element: object) -> int:
        gap = self._extract(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
            raise UserCodeError(
                "Dynamic session time gap must satisfy 0 < gap",
                found=f"{gap!r}, of record {element!r:.200}",
                cure="return a number of milliseconds greater than 0 from extract()",
            )
        return gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._extractor).__name__})"


class _ByEventTime(_Sessions):
    @by_timestamp
    def assign_windows(
        self, element: object, timestamp: int, context: MergingWindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        start = timed(timestamp)
        return [TimeWindow(start, start + self._gap(element))]

    def get_default_trigger(self, env: object) -> Trigger[object, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class _ByProcessingTime(_Sessions):
    def assign_windows(
        self, element: object, timestamp: int, context: MergingWindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        start = context.get_current_processing_time()
        return [TimeWindow(start, start + self._gap(element))]

    def get_default_trigger(self, env: object) -> Trigger[object, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


class EventTimeSessionWindows(_FixedGap, _ByEventTime):
    """Sessions by the timestamps of records: a session ends when the next record is later than the gap."""

    @staticmethod
    def with_gap(size: Span) -> EventTimeSessionWindows:
        """End a session when no record has arrived for this long."""
        return EventTimeSessionWindows(millis_of("EventTimeSessionWindows.with_gap", size))

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Let every record say how long its session stays open after it."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_FixedGap, _ByProcessingTime):
    """Sessions by the clock of the machine."""

    @staticmethod
    def with_gap(size: Span) -> ProcessingTimeSessionWindows:
        """End a session when no record has arrived for this long."""
        return ProcessingTimeSessionWindows(millis_of("ProcessingTimeSessionWindows.with_gap", size))

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Let every record say how long its session stays open after it."""
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(_DynamicGap, _ByEventTime):
    """Sessions by the timestamps of records; each record says how long its session waits for the next record."""

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Let every record say how long its session stays open after it."""
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_DynamicGap, _ByProcessingTime):
    """Sessions by the clock of the machine; each record says how long its session waits for the next record."""

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Let every record say how long its session stays open after it."""
        return DynamicProcessingTimeSessionWindows(extractor)


def is_event_time_session(assigner: object) -> bool:
    """Tell whether the assigner is one of Flink's event-time sessions. A subclass may assign windows as it likes."""
    return type(assigner) in (EventTimeSessionWindows, DynamicEventTimeSessionWindows)


def fixed_gap(assigner: object) -> int | None:
    """Return the gap that all records share; None if every record has a gap of its own."""
    return assigner._session_gap if isinstance(assigner, _FixedGap) else None
