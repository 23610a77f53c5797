"""Bucket assigners and rolling policies of a file sink.

A bucket assigner chooses the directory below the sink's path for each record. A rolling policy decides when the sink
finishes a part file and begins another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.connectors.functions.function_sink import SinkContext

CLOCK_TOLERANCE_MS = 60_000
"""A bucket of time is complete this long after its end. A clock that is set back by less does no harm."""

BucketContext = SinkContext
"""The former name of the context of ``get_bucket_id``."""


class BucketAssigner:
    """Extend it with ``get_bucket_id``. A bucket is a directory below the sink's path; ``""`` is the path itself."""

    def get_bucket_id(self, value: Any, context: SinkContext, /) -> str:
        """Return the directory of a record, below the directory of the sink."""
        raise NotImplementedError

    def common_bucket(self, now_ms: int) -> str | None:
        """Return the bucket of all records of a round, if it does not depend on the value. None: ask for each record."""
        return None

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        """Return whether no record that is processed at ``now_ms`` or later can belong to this bucket, for success markers.

        The last record of the bucket was written at ``written_ms``. If this always returns False, markers are written when the
        input has ended.
        """
        return False

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Write all files directly into the directory of the sink."""
        return _BasePath()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """Choose the bucket by processing time. ``format_str`` is a Java date pattern; the default zone is the machine's."""
        return _DateTime(format_str, timezone_id)

    @staticmethod
    def of(assigner: Any) -> BucketAssigner:
        """Make an assigner of a BucketAssigner, an object with ``get_bucket_id``, or a function of the value."""
        if isinstance(assigner, BucketAssigner):
            return assigner
        method = getattr(assigner, "get_bucket_id", None)
        if method is not None:
            return _Custom(method, getattr(assigner, "is_over", None))
        if callable(assigner):
            return _Custom(lambda value, context: assigner(value))
        raise ArgumentTypeError(
            "with_bucket_assigner takes an object with get_bucket_id(value, context), or a function of the value",
            where="FileSink.with_bucket_assigner",
            found=type(assigner).__name__,
            cure="pass BucketAssigner.date_time_bucket_assigner(), or a function of the value",
        )


class _BasePath(BucketAssigner):
    def get_bucket_id(self, value: Any, context: SinkContext) -> str:
        return ""

    def common_bucket(self, now_ms: int) -> str | None:
        return ""


class _DateTime(BucketAssigner):
    def __init__(self, pattern: str, timezone_id: str | None) -> None:
        self._pattern = parse_java_pattern(pattern)
        self._timezone_id = timezone_id
        zone(timezone_id)  # reports a wrong name while the program is built

    def get_bucket_id(self, value: Any, context: SinkContext) -> str:
        return self.common_bucket(context.current_processing_time())

    def common_bucket(self, now_ms: int) -> str:
        local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone(self._timezone_id))
        return "".join(part if literal else _FIELDS[part](local) for literal, part in self._pattern)

    def is_over(self, bucket_id: str, written_ms: int, now_ms: int) -> bool:
        """The bucket is a period that contains ``written_ms``. The clock of the task may have been ahead of ``now_ms``."""
        late_ms = now_ms - CLOCK_TOLERANCE_MS
        return written_ms < late_ms and self.common_bucket(late_ms) != bucket_id


class _Custom(BucketAssigner):
    def __init__(
        self,
        method: Callable[[Any, SinkContext], str],
        is_over: Callable[[str, int, int], bool] | None = None,
    ) -> None:
        self._method, self._is_over = method, is_over

    def get_bucket_id(self, value: Any, context: SinkContext) -> str:
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
    """Split a Java date pattern into pieces: (is literal, text or field)."""
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
        "The date pattern of a bucket contains an unknown field or an open quote",
        where="BucketAssigner.date_time_bucket_assigner",
        found=f"{found} in {pattern!r}",
        cure=f"use {', '.join(_FIELDS)}; put other letters between single quotes",
    )


def zone(timezone_id: str | None) -> tzinfo | None:
    """Find a zone by name (``Europe/Rome``) or offset (``GMT-08:00``). None is the zone of the machine."""
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
            "The time zone of a bucket assigner is unknown",
            where="BucketAssigner.date_time_bucket_assigner",
            found=repr(timezone_id),
            cure="use a name such as Europe/Rome or an offset such as GMT-08:00",
        ) from None


@dataclass(frozen=True)
class PartInfo:
    """The facts that a policy decides on."""

    bucket: str
    size: int
    created_ms: int
    updated_ms: int


class RollingPolicy:
    """Extend it for a rule of your own. Time is the start of the round. The end of input finishes every part."""

    def should_roll_on_event(self, part: PartInfo) -> bool:
        """Called before a record is added."""
        return False

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        """Called in rounds that carry the barrier of a checkpoint."""
        return False

    def should_roll_on_processing_time(self, part: PartInfo, now_ms: int) -> bool:
        """Called at the end of every round."""
        return False

    def free_bytes(self, size: int) -> int:
        """Return how many bytes may be added to a part of this size before ``should_roll_on_event`` can return True.

        Writing whole batches is much faster than a call for each record. 0: always call.
        """
        return 0

    @staticmethod
    def default_rolling_policy(
        part_size: int = 1024 * 1024 * 128, rollover_interval: int = 60 * 1000, inactivity_interval: int = 60 * 1000
    ) -> DefaultRollingPolicy:
        """Finish a part above ``part_size`` bytes, after ``rollover_interval`` ms, or after ``inactivity_interval`` ms without a
        record.
        """
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """Finish parts with every checkpoint, and only then."""
        return OnCheckpointRollingPolicy()


class DefaultRollingPolicy(RollingPolicy):
    """Begin a new file by size, age or idleness."""

    def __init__(self, part_size: int, rollover_interval: int, inactivity_interval: int) -> None:
        limits = {
            "part_size": part_size,
            "rollover_interval": rollover_interval,
            "inactivity_interval": inactivity_interval,
        }
        for name, value in limits.items():
            if value <= 0:
                raise ConfigurationError(
                    f"{name} of a rolling policy is not above zero",
                    where="RollingPolicy.default_rolling_policy",
                    found=str(value),
                    cure="pass 1 or more",
                )
        self._part_size, self._rollover_ms, self._inactivity_ms = part_size, rollover_interval, inactivity_interval

    def should_roll_on_event(self, part: PartInfo) -> bool:
        return part.size > self._part_size

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        return part.size > self._part_size

    def should_roll_on_processing_time(self, part: PartInfo, now_ms: int) -> bool:
        return now_ms - part.created_ms >= self._rollover_ms or now_ms - part.updated_ms >= self._inactivity_ms

    def free_bytes(self, size: int) -> int:
        return max(0, self._part_size - size)


class OnCheckpointRollingPolicy(RollingPolicy):
    """Begin a new file with every checkpoint."""

    def should_roll_on_checkpoint(self, part: PartInfo) -> bool:
        return True

    def free_bytes(self, size: int) -> int:
        return 1 << 62
