"""Session windows: they last until no record of the key has come for a while."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import UserCodeError
from tidegate.common.serializer import TypeSerializer
from tidegate.common.time import millis_of
from tidegate.operators.windows.assigner import MergingWindowAssigner, by_timestamp, check_positive, timed
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger
from tidegate.operators.windows.window import TimeWindow, TimeWindowSerializer


class SessionWindowTimeGapExtractor(ABC):
    """Says for each record how many milliseconds its session stays open behind it."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """How long the session of this record waits for the next one, in milliseconds; more than 0."""


class _Sessions(MergingWindowAssigner[Any, TimeWindow]):
    """Every record opens a window from its time to the end of its gap; windows that overlap or touch are one session."""

    def _gap(self, element: Any) -> int:
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

    def _gap(self, element: Any) -> int:
        return self._session_gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session_gap})"


class _DynamicGap(_Sessions):
    def __init__(self, session_window_time_gap_extractor: Any) -> None:
        extractor = session_window_time_gap_extractor
        self._extractor = extractor
        self._extract = getattr(extractor, "extract", extractor)
        if isinstance(extractor, type) or not callable(self._extract):
            cure = "extend SessionWindowTimeGapExtractor and pass an object of it"
            raise wrong("with_dynamic_gap", "a SessionWindowTimeGapExtractor", extractor, cure)

    def _gap(self, element: Any) -> int:
        gap = self._extract(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
            raise UserCodeError(
                "Dynamic session time gap must satisfy 0 < gap",
                found=f"{gap!r}, of record {element!r:.200}",
                cure="return whole milliseconds, more than 0, from extract()",
            )
        return gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._extractor).__name__})"


class _ByEventTime(_Sessions):
    @by_timestamp
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        start = timed(timestamp)
        return [TimeWindow(start, start + self._gap(element))]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class _ByProcessingTime(_Sessions):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        start = context.get_current_processing_time()
        return [TimeWindow(start, start + self._gap(element))]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


class EventTimeSessionWindows(_FixedGap, _ByEventTime):
    """Sessions by the timestamps of records: they end where the next record comes later than the gap."""

    @staticmethod
    def with_gap(size: Any) -> EventTimeSessionWindows:
        """A session ends when no record has come for so long."""
        return EventTimeSessionWindows(millis_of("EventTimeSessionWindows.with_gap", size))

    @staticmethod
    def with_dynamic_gap(extractor: Any) -> DynamicEventTimeSessionWindows:
        """Every record says how long its session stays open behind it."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_FixedGap, _ByProcessingTime):
    """Sessions by the clock of the machine."""

    @staticmethod
    def with_gap(size: Any) -> ProcessingTimeSessionWindows:
        """A session ends when no record has come for so long."""
        return ProcessingTimeSessionWindows(millis_of("ProcessingTimeSessionWindows.with_gap", size))

    @staticmethod
    def with_dynamic_gap(extractor: Any) -> DynamicProcessingTimeSessionWindows:
        """Every record says how long its session stays open behind it."""
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(_DynamicGap, _ByEventTime):
    """Sessions by the timestamps of records, each of which says how long its session waits for the next."""

    @staticmethod
    def with_dynamic_gap(extractor: Any) -> DynamicEventTimeSessionWindows:
        """Every record says how long its session stays open behind it."""
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_DynamicGap, _ByProcessingTime):
    """Sessions by the clock of the machine, for which each record says how long its session waits for the next."""

    @staticmethod
    def with_dynamic_gap(extractor: Any) -> DynamicProcessingTimeSessionWindows:
        """Every record says how long its session stays open behind it."""
        return DynamicProcessingTimeSessionWindows(extractor)
