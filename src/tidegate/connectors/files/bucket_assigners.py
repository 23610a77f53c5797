"""Which directory below a file sink's path a record goes to."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.base.errors import ArgumentTypeError, ConfigurationError

CLOCK_TOLERANCE_MS = 60_000
"""A bucket of time counts as over so long behind its end: a clock that is set back by less does no harm."""


class BucketContext:
    """What an assigner can know besides the value. Processing time is the time the round started."""

    __slots__ = ("_now_ms", "_timestamp")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._timestamp: int | None = None

    def current_processing_time(self) -> int:
        return self._now_ms

    def timestamp(self) -> int | None:
        """The record's event time in milliseconds, None if it has none."""
        return self._timestamp

    def at(self, timestamp: int | None) -> BucketContext:
        self._timestamp = timestamp
        return self


class BucketAssigner:
    """Subclass it and write ``get_bucket_id``: the bucket is the directory below the sink's path, ``""`` the path
    itself.
    """

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The directory, below the sink's own, that a record belongs to."""
        raise NotImplementedError

    def common_bucket(self, now_ms: int) -> str | None:
        """The bucket of every record of a round, where the value does not matter; None: ask for each record."""
        return None

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        """For success markers: whether no record that is processed at ``now_ms`` or later can belong to this bucket, to which the
        last one was written at ``written_ms``. False always: the marker comes when the input has ended."""
        return False

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """All files right in the directory of the sink."""
        return _BasePath()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """By processing time. ``format_str`` is a Java date pattern; the default zone is this machine's."""
        return _DateTime(format_str, timezone_id)

    @staticmethod
    def of(assigner: Any) -> BucketAssigner:
        """An assigner out of what the user handed over: one of ours, an object with ``get_bucket_id``, or value ->
        bucket.
        """
        if isinstance(assigner, BucketAssigner):
            return assigner
        method = getattr(assigner, "get_bucket_id", None)
        if method is not None:
            return _Custom(method, getattr(assigner, "is_over", None))
        if callable(assigner):
            return _Custom(lambda value, context: assigner(value))
        raise ArgumentTypeError(
            "a bucket assigner has get_bucket_id(value, context) or is a function of the value",
            where="FileSink.with_bucket_assigner",
            found=type(assigner).__name__,
        )


class _BasePath(BucketAssigner):
    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        return ""

    def common_bucket(self, now_ms: int) -> str | None:
        return ""


class _DateTime(BucketAssigner):
    def __init__(self, pattern: str, timezone_id: str | None) -> None:
        self._pattern = parse_java_pattern(pattern)
        self._timezone_id = timezone_id
        zone(timezone_id)  # a wrong name is refused while the program is built

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        return self.common_bucket(context.current_processing_time())

    def common_bucket(self, now_ms: int) -> str:
        local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone(self._timezone_id))
        return "".join(part if literal else _FIELDS[part](local) for literal, part in self._pattern)

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        """A bucket is a stretch of time, and ``written_ms`` lies in it. A task's clock may have been ahead of ``now_ms`` then."""
        late_ms = now_ms - CLOCK_TOLERANCE_MS
        return written_ms < late_ms and self.common_bucket(late_ms) != bucket_id


class _Custom(BucketAssigner):
    def __init__(
        self,
        method: Callable[[Any, BucketContext], str],
        is_over: Callable[[str, int, int], bool] | None = None,
    ) -> None:
        self._method, self._is_over = method, is_over

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        return self._method(value, context)

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        return self._is_over is not None and self._is_over(bucket_id, written_ms, now_ms)


_FIELDS: dict[str, Callable[[datetime], str]] = {
    "yyyy": lambda t: f"{t.year:04d}",
    "uuuu": lambda t: f"{t.year:04d}",
    "yy": lambda t: f"{t.year % 100:02d}",
    "MM": lambda t: f"{t.month:02d}",
    "M": lambda t: str(t.month),
    "dd": lambda t: f"{t.day:02d}",
    "d": lambda t: str(t.day),
    "DDD": lambda t: f"{t.timetuple().tm_yday:03d}",
    "HH": lambda t: f"{t.hour:02d}",
    "H": lambda t: str(t.hour),
    "mm": lambda t: f"{t.minute:02d}",
    "m": lambda t: str(t.minute),
    "ss": lambda t: f"{t.second:02d}",
    "s": lambda t: str(t.second),
    "SSS": lambda t: f"{t.microsecond // 1000:03d}",
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def parse_java_pattern(pattern: str) -> list[tuple[bool, str]]:
    """A Java date pattern as pieces: (is literal, text or field)."""
    pieces: list[tuple[bool, str]] = []
    position = 0
    for match in _TOKEN.finditer(pattern):
        if match.start() != position:
            break
        position = match.end()
        if match.group(2) is None:
            quoted = match.group(1)
            pieces.append((True, match.group(0) if quoted is None else quoted.replace("''", "'") or "'"))
        elif match.group(0) in _FIELDS:
            pieces.append((False, match.group(0)))
        else:
            raise _bad_pattern(pattern, f"{match.group(0)!r}")
    if position != len(pattern):
        raise _bad_pattern(pattern, "an open quote")
    return pieces


def _bad_pattern(pattern: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        "a bucket's date pattern is made of known fields and quoted text",
        where="BucketAssigner.date_time_bucket_assigner",
        found=f"{found} in {pattern!r}",
        cure=f"use {', '.join(_FIELDS)}; put other letters between single quotes",
    )


def zone(timezone_id: str | None) -> tzinfo | None:
    """A zone by name (``Europe/Rome``) or offset (``GMT-08:00``); None is the machine's own."""
    if timezone_id is None:
        return None
    if match := _OFFSET.fullmatch(timezone_id):
        sign, hours, minutes = match.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(timezone_id)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            "a time zone must be known",
            where="BucketAssigner.date_time_bucket_assigner",
            found=repr(timezone_id),
            cure="use a name such as Europe/Rome or an offset such as GMT-08:00",
        ) from None
