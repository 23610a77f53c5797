"""Time as an input: everything that waits or measures takes a Clock."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock in milliseconds, a monotonic one for durations, and an interruptible wait."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set (True) or the seconds are over (False)."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


class ManualClock:
    """A clock that moves only when told, or when somebody waits on it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now = float(start_ms)

    def advance(self, ms: float) -> None:
        self._now += ms

    def now_ms(self) -> int:
        return int(self._now)

    def monotonic(self) -> float:
        return self._now / 1000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self._now += max(0.0, seconds) * 1000
        return event.is_set()
