"""TimerService: time and timers of a process function."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """Time and timers, from the context of a process function.

    A timer belongs to the current key and exists once per key, time and kind: registering it again changes nothing. Timers
    are state: they are part of checkpoints. ``on_timer`` is called at the given time or later, never before; timers of one
    key fire in order of time. Setting or deleting one needs a keyed stream.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return milliseconds since 1970 by the clock of the machine that runs the function."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time so far: no record with a timestamp at or below it is expected. The least 64-bit integer at first."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the clock passes the time. A duplicate changes nothing."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the watermark passes the time. A duplicate changes nothing."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer. It may be missing."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer. It may be missing."""
