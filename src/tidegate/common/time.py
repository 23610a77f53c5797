"""Time spans and instants: PyFlink's Time, Duration and Instant."""

from __future__ import annotations

from datetime import timedelta
from functools import total_ordering

import msgspec

from tidegate.base.arguments import wrong

__all__ = ["Duration", "Instant", "Time", "millis_of"]

_NANOS_PER_MILLI = 1_000_000
_NANOS_PER_SECOND = 1_000_000_000


@total_ordering
class Duration:
    """A span of time with the resolution of a nanosecond. Made by its ``of_...`` methods; immutable."""

    __slots__ = ("_nanos",)

    def __init__(self, nanos: int = 0) -> None:
        self._nanos = int(nanos)

    @classmethod
    def of_days(cls, days: int) -> Duration:
        """Return a span of days of 24 hours."""
        return cls.of_hours(24 * days)

    @classmethod
    def of_hours(cls, hours: int) -> Duration:
        """Return a span of hours."""
        return cls.of_minutes(60 * hours)

    @classmethod
    def of_minutes(cls, minutes: int) -> Duration:
        """Return a span of minutes."""
        return cls.of_seconds(60 * minutes)

    @classmethod
    def of_seconds(cls, seconds: int) -> Duration:
        """Return a span of seconds."""
        return cls(seconds * _NANOS_PER_SECOND)

    @classmethod
    def of_millis(cls, millis: int) -> Duration:
        """Return a span of milliseconds."""
        return cls(millis * _NANOS_PER_MILLI)

    @classmethod
    def of_nanos(cls, nanos: int) -> Duration:
        """Return a span of nanoseconds."""
        return cls(nanos)

    def to_millis(self) -> int:
        """Whole milliseconds, rounded down."""
        return self._nanos // _NANOS_PER_MILLI

    def to_nanos(self) -> int:
        """In nanoseconds."""
        return self._nanos

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self._nanos == other._nanos

    def __lt__(self, other: Duration) -> bool:
        return self._nanos < other._nanos

    def __hash__(self) -> int:
        return hash(self._nanos)

    def __repr__(self) -> str:
        if self._nanos % _NANOS_PER_MILLI:
            return f"Duration.of_nanos({self._nanos})"
        return f"Duration.of_millis({self.to_millis()})"


@total_ordering
class Time:
    """A span of time in milliseconds (PyFlink's older class, still used by time to live and windows)."""

    __slots__ = ("_milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = int(milliseconds)

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Time:
        """Return a span of milliseconds."""
        return cls(milliseconds)

    @classmethod
    def seconds(cls, seconds: int) -> Time:
        """Return a span of seconds."""
        return cls(1000 * seconds)

    @classmethod
    def minutes(cls, minutes: int) -> Time:
        """Return a span of minutes."""
        return cls.seconds(60 * minutes)

    @classmethod
    def hours(cls, hours: int) -> Time:
        """Return a span of hours."""
        return cls.minutes(60 * hours)

    @classmethod
    def days(cls, days: int) -> Time:
        """Return a span of days."""
        return cls.hours(24 * days)

    def to_milliseconds(self) -> int:
        """Return the value in milliseconds."""
        return self._milliseconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and self._milliseconds == other._milliseconds

    def __lt__(self, other: Time) -> bool:
        return self._milliseconds < other._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"

    def __repr__(self) -> str:
        return f"Time.milliseconds({self._milliseconds})"


class Instant(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A point on the time line: seconds since 1970-01-01T00:00Z and nanoseconds of that second (0 .. 999,999,999).

    A msgspec struct, so that typed state holds it without pickle.
    """

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Return the instant of milliseconds since the beginning of 1970, UTC."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * _NANOS_PER_MILLI)

    def to_epoch_milli(self) -> int:
        """Return milliseconds since the beginning of 1970, UTC, rounded down."""
        return self.seconds * 1000 + self.nanos // _NANOS_PER_MILLI

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"


Span = Duration | Time | timedelta
"""A length of time that names its unit."""


def millis_of(method: str, value: object) -> int:
    """Return the milliseconds of a Duration, Time or timedelta. A bare number is refused: it could be seconds."""
    if isinstance(value, Duration):
        return value.to_millis()
    if isinstance(value, Time):
        return value.to_milliseconds()
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    raise wrong(method, "a Duration, a Time or a datetime.timedelta", value, "for example Duration.of_seconds(5)")
