"""Durations as users hand them over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidegate.common.errors import ArgumentTypeError


def millis(duration: Any, where: str) -> int:
    """Milliseconds of a Duration (PyFlink's), a Time, a timedelta or a plain number of milliseconds."""
    if isinstance(duration, timedelta):
        return int(duration.total_seconds() * 1000)
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        return int(duration)
    for name in ("to_milliseconds", "to_millis"):
        method = getattr(duration, name, None)
        if callable(method):
            return int(method())
    raise ArgumentTypeError(
        "a duration is a Duration, a timedelta or a number of milliseconds",
        where=where,
        found=f"{type(duration).__name__}: {duration!r:.80}",
        cure="pass for example Duration.of_seconds(10)",
    )
