"""Time as an input: clocks and timers for everything that waits or measures, and the two ends of event time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Protocol

log = logging.getLogger(__name__)

FOREVER = float("inf")
Callback = Callable[[], None]


class Timer(Protocol):
    def cancel(self) -> None:
        """Do not call the callback any more, unless the call has begun."""
        ...


class Clock(Protocol):
    """A wall clock in milliseconds, a monotonic clock for durations, an interruptible wait, and planned calls."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set (True) or the seconds have passed (False). ``FOREVER``: until it is set."""
        ...

    def call_at(self, moment: float, callback: Callback) -> Timer:
        """Call back once ``monotonic()`` has reached ``moment``, from the clock's thread. The callback posts an event or starts
        something, and never waits."""
        ...


class SystemClock:
    """The machine's time. One thread, started with the first callback, makes all callbacks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds))

    def call_at(self, moment: float, callback: Callback) -> Timer:
        return _timetable.add(time.monotonic() + max(0.0, moment - self.monotonic()), callback)


class Stopwatch:
    """Measure the parts of a task's work. Called for a batch or a chunk, never for a record. Tests replace ``now``."""

    now: ClassVar[Callable[[], float]] = time.perf_counter


class ManualClock:
    """A clock that moves only by ``advance`` or by a wait. The thread that moves the clock makes the calls that are due."""

    def __init__(self, start_ms: int = 1_700_000_000_000, *, same_as: ManualClock | None = None) -> None:
        """``same_as``: share the time of that clock, but not its calls: calls of a stopped process are not made."""
        self._time: list[float] = same_as._time if same_as is not None else [float(start_ms)]
        self._timers: list[_Entry] = []
        self._numbers = itertools.count()

    @property
    def _now(self) -> float:
        return self._time[0]

    @_now.setter
    def _now(self, now: float) -> None:
        self._time[0] = now

    def advance(self, ms: float) -> None:
        self._move_to(self._now + ms, None)

    def now_ms(self) -> int:
        return int(self._now)

    def monotonic(self) -> float:
        return self._now / 1000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self._move_to(self._now + max(0.0, seconds) * 1000, event)
        return event.is_set()

    def call_at(self, moment: float, callback: Callback) -> Timer:
        # Seconds since 1970 as floats are inexact
        entry = _Entry(round(moment * 1000, 3), next(self._numbers), callback)
        heapq.heappush(self._timers, entry)
        return entry

    def _move_to(self, target: float, until: threading.Event | None) -> None:
        """Make the due calls in order, each at its time. Stop where a call sets the event."""
        while self._timers and self._timers[0].moment <= target:
            entry = heapq.heappop(self._timers)
            self._now = max(self._now, entry.moment)
            entry.call()
            if until is not None and until.is_set():
                return
        if target == FOREVER:
            raise AssertionError("a thread waits for ever: no planned call can set the event")
        self._now = max(self._now, target)


class _Entry:
    """A planned call, ordered by its moment and then by when it was planned."""

    def __init__(self, moment: float, number: int, callback: Callback) -> None:
        self.moment, self._number = moment, number
        self._callback: Callback | None = callback

    def __lt__(self, other: _Entry) -> bool:
        return (self.moment, self._number) < (other.moment, other._number)

    def cancel(self) -> None:
        self._callback = None

    def call(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def is_cancelled(self) -> bool:
        return self._callback is None


_MOST_ENTRIES = 64


class _Timetable:
    """The planned calls of this process, and the thread that makes them.

    Every round plans a call that is nearly always cancelled, and its moment may be years away (a patience times the tolerated
    failures). So cancelled calls do not stay until their moment: they are removed whenever the table has doubled.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._clear_at = _MOST_ENTRIES
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, moment: float, callback: Callback) -> _Entry:
        with self._changed:
            entry = _Entry(moment, next(self._numbers), callback)
            if len(self._entries) >= self._clear_at:
                self._entries = [each for each in self._entries if not each.is_cancelled]
                heapq.heapify(self._entries)
                self._clear_at = max(_MOST_ENTRIES, 2 * len(self._entries))
            heapq.heappush(self._entries, entry)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no such thread
                self._thread = threading.Thread(target=self._run, name="tidegate-clock", daemon=True)
                self._thread.start()
            if self._entries[0] is entry:  # else the thread wakes up early enough
                self._changed.notify()
            return entry

    def _run(self) -> None:
        while True:
            entry = self._next_due()
            try:
                entry.call()
            except Exception as error:
                log.error("a planned call failed: %r", error)

    def _next_due(self) -> _Entry:
        with self._changed:
            while True:
                now = time.monotonic()
                if self._entries and self._entries[0].moment <= now:
                    return heapq.heappop(self._entries)
                pause = self._entries[0].moment - now if self._entries else None
                self._changed.wait(None if pause is None else min(pause, threading.TIMEOUT_MAX))


_timetable = _Timetable()


MIN_WATERMARK = -(1 << 63)
"""There was no watermark yet."""
MAX_WATERMARK = (1 << 63) - 1
"""The input has ended."""
