"""The two kinds of time a timer can belong to."""

from __future__ import annotations

from enum import Enum


class TimeDomain(Enum):
    """Which clock a timer was set on."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
