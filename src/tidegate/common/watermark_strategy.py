"""Watermark strategies: how event timestamps are read and how far event time has come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidegate.common.arguments import wrong
from tidegate.common.errors import ProgramError
from tidegate.common.time import Duration, millis_of

__all__ = ["TimestampAssigner", "WatermarkStrategy"]


class TimestampAssigner(ABC):
    """Reads the event timestamp of a record. Called once for every record, before any operator behind it."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since 1970. ``record_timestamp``: what the record had so far, or the least 64-bit integer."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """Immutable: every ``with_...`` returns a new one. Made by the three static methods.

    What the engine reads: ``kind`` ("none", "monotonous", "bounded"), ``out_of_orderness_ms``, ``idleness_ms`` and
    ``timestamp_assigner`` (an object with ``extract_timestamp``, or a callable). The alignment fields are kept, and
    not yet acted upon.
    """

    kind: str = "none"
    out_of_orderness_ms: int = 0
    idleness_ms: int | None = None
    timestamp_assigner: TimestampAssigner | Callable[[Any, int], int] | None = None
    alignment_group: str | None = None
    alignment_drift_ms: int | None = None
    alignment_interval_ms: int | None = None

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Event time stands still until the input ends."""
        return WatermarkStrategy()

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps never fall within a split of a source."""
        return WatermarkStrategy("monotonous")

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Records come at most so much later than the greatest timestamp seen."""
        return WatermarkStrategy("bounded", _span("for_bounded_out_of_orderness", max_out_of_orderness, least=0))

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        if not hasattr(timestamp_assigner, "extract_timestamp") and not callable(timestamp_assigner):
            raise wrong(
                "with_timestamp_assigner",
                "a TimestampAssigner or a callable",
                timestamp_assigner,
                "for example lambda value, timestamp: value.created_ms",
            )
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """A split without records for so long no longer holds back event time."""
        return replace(self, idleness_ms=_span("with_idleness", idle_timeout, least=1))

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Duration, update_interval: Duration | None = None
    ) -> WatermarkStrategy:
        """Kept for later: in this version sources of a group do not wait for each other."""
        interval = Duration.of_seconds(1) if update_interval is None else update_interval
        return replace(
            self,
            alignment_group=watermark_group,
            alignment_drift_ms=_span("with_watermark_alignment", max_allowed_watermark_drift, least=0),
            alignment_interval_ms=_span("with_watermark_alignment", interval, least=1),
        )


def _span(method: str, value: Any, *, least: int) -> int:
    ms = millis_of(method, value)
    if ms < least:
        raise ProgramError(f"{method} takes at least {least} ms", found=f"{ms} ms", cure="give a longer duration")
    return ms
