"""Triggers decide when the records of a window are handed to its function. Flink's own triggers are in
``triggers.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from tidegate.metrics.metricbase import MetricGroup
from tidegate.state.descriptors import StateDescriptor

T = TypeVar("T", contravariant=True)
W = TypeVar("W", contravariant=True)


class TriggerResult(Enum):
    """Say what happens to a window: whether its function is called, and whether its contents are discarded after
    that."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Tell whether the window's function is called."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Tell whether the window is emptied."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decide when a window fires. Called for every record that enters a window, and when one of its timers for the
    window is due.

    One object serves all keys and windows, and another copy of it may serve the next round. So a trigger keeps what it
    has to remember in ``ctx.get_partitioned_state``, which is the state of the key and the window.
    """

    class TriggerContext(ABC):
        """Give time, timers and state of the window of the call. Valid during the call only."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the clock, in milliseconds."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Return the group in which the trigger registers its metrics."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the operator's watermark."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Have ``on_processing_time`` called when the clock passes the time."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Have ``on_event_time`` called when the watermark passes the time."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete a processing-time timer of this window."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete an event-time timer of this window."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """Return the state of this key in this window."""

    class OnMergeContext(TriggerContext):
        """Give ``on_merge`` its context: the window is the result of the merge."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Move the state of the merged windows into the state of the new window. For list, reducing and aggregating
            states."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        """Handle a record that was added to the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        """Handle a due processing-time timer of the window."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext, /) -> TriggerResult:
        """Handle a due event-time timer of the window."""

    def can_merge(self) -> bool:
        """Tell whether the trigger may be used with an assigner that merges windows; ``on_merge`` is then called."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext, /) -> None:
        """Handle the merge of windows into this window: move their state here, and set their timers again."""

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext, /) -> None:
        """Delete the timers and the state of a window that has ended."""
