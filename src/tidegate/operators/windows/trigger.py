"""Triggers: when the records of a window are handed to its function. Flink's own stand in ``triggers.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from tidegate.metrics.metricbase import MetricGroup
from tidegate.state.descriptors import StateDescriptor

T = TypeVar("T", contravariant=True)
W = TypeVar("W", contravariant=True)


class TriggerResult(Enum):
    """What becomes of a window: whether its function is called, and whether its contents are thrown away behind that."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Whether the window's function is called."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether the window is emptied."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Asked for every record that enters a window, and when a timer that it has set for the window comes due.

    One object serves all keys and windows, and another copy of it may serve the next round: what it has to remember belongs into
    ``ctx.get_partitioned_state``, which is that of the key and the window.
    """

    class TriggerContext(ABC):
        """Time, timers and state of the window of the call. Valid during the call only."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """The clock, in milliseconds."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Where the trigger registers what it measures."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """The operator's watermark."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """``on_processing_time`` is called when the clock passes the time."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """``on_event_time`` is called when the watermark passes the time."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Take back a timer of processing time of this window."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Take back a timer of event time of this window."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """The state of this key in this window."""

    class OnMergeContext(TriggerContext):
        """In ``on_merge``: the window is the one that came out of the merge."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Move the state of the merged windows into that of the new one. For list, reducing and aggregating states."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A record has been added to the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A processing-time timer of the window has come due."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An event-time timer of the window has come due."""

    def can_merge(self) -> bool:
        """Whether it may be used with an assigner that merges windows; then ``on_merge`` has work to do."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Windows have been merged into this one: move their state here, and set their timers again."""

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """The window is gone: delete its timers and state."""
