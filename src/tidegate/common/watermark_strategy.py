"""Watermark strategies: how event timestamps are read and how event time advances."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.time import Duration, millis_of

__all__ = ["TimestampAssigner", "WatermarkGenerator", "WatermarkOutput", "WatermarkStrategy"]


class TimestampAssigner(ABC):
    """Reads the event timestamp of a record. Called once for every record, before any downstream operator."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int, /) -> int:
        """Return milliseconds since 1970. ``record_timestamp``: the record's previous timestamp, or the least 64-bit integer."""


class WatermarkOutput(ABC):
    """Takes the watermarks of a generator: the output of one split, or of one subtask of an operator."""

    @abstractmethod
    def emit_watermark(self, watermark: int) -> None:
        """Declare that no record at or before this time (milliseconds) follows. A lower watermark than before changes nothing.
        The split becomes active."""

    @abstractmethod
    def mark_idle(self) -> None:
        """Let event time advance without the split, until it emits a watermark or is marked as active."""

    @abstractmethod
    def mark_active(self) -> None:
        """Let the split hold back event time again."""


class WatermarkGenerator(ABC):
    """Emits watermarks from the records it sees: one object for each split of a source, or for each subtask of
    ``assign_timestamps_and_watermarks``.

    Its attributes are its state. Every round and every checkpoint stores them, and the next attempt restores them: they must be
    picklable. ``__getstate__`` and ``__setstate__`` may define the state instead.
    """

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput, /) -> None:
        """Handle a record. A watermark that is emitted here follows exactly this record, also for operators in other subtasks: a
        watermark with every record is slow."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput, /) -> None:
        """Emit a watermark. Called after every batch of records, at the end of every round, and every
        ``pipeline.auto-watermark-interval`` while no record comes. Not called if that is 0."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """An immutable strategy, made by the four static methods; every ``with_...`` returns a new one.

    The engine reads ``kind`` ("none", "monotonous", "bounded", "custom"), ``out_of_orderness_ms``, ``generator`` (makes a
    WatermarkGenerator), ``idleness_ms``, ``timestamp_assigner`` (an object with ``extract_timestamp``, or a callable), and
    the alignment.
    """

    kind: str = "none"
    out_of_orderness_ms: int = 0
    idleness_ms: int | None = None
    timestamp_assigner: TimestampAssigner | Callable[[Any, int], int] | None = None
    alignment_group: str | None = None
    alignment_drift_ms: int | None = None
    alignment_interval_ms: int | None = None
    generator: Callable[[], WatermarkGenerator] | None = None

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy without watermarks: event time does not advance until the input ends."""
        return WatermarkStrategy()

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for timestamps that never decrease within a split of a source."""
        return WatermarkStrategy("monotonous")

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Return a strategy for records that are at most this much older than the greatest timestamp so far."""
        return WatermarkStrategy("bounded", _span("for_bounded_out_of_orderness", max_out_of_orderness, least=0))

    @staticmethod
    def for_generator(generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy with the user's generators. ``generator`` makes one for each split: a class that extends
        WatermarkGenerator, or a callable without arguments."""
        if isinstance(generator, WatermarkGenerator):
            cure = "every split needs an object of its own: pass the class, or lambda: MyGenerator(...)"
            raise wrong("for_generator", "what makes a WatermarkGenerator", generator, cure)
        if not callable(generator) or _needs_arguments(generator):
            cure = "pass a class that extends WatermarkGenerator, or lambda: MyGenerator(...)"
            raise wrong("for_generator", "what makes a WatermarkGenerator, called without arguments", generator, cure)
        return WatermarkStrategy("custom", generator=generator)

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        """Return the same strategy, with timestamps of this assigner."""
        if not hasattr(timestamp_assigner, "extract_timestamp") and not callable(timestamp_assigner):
            raise wrong(
                "with_timestamp_assigner",
                "a TimestampAssigner or a callable",
                timestamp_assigner,
                "for example lambda value, timestamp: value.created_ms",
            )
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """Let event time advance without a split that has no records for this long."""
        return replace(self, idleness_ms=_span("with_idleness", idle_timeout, least=1))

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Duration, update_interval: Duration | None = None
    ) -> WatermarkStrategy:
        """Let the sources of a group wait for each other: a source whose event time is more than the drift ahead of the slowest
        is read in a later round. ``update_interval``: how often the slowest is determined."""
        if not isinstance(watermark_group, str) or not watermark_group:
            raise wrong("with_watermark_alignment", "the name of a group", watermark_group, 'for example "orders"')
        interval = Duration.of_seconds(1) if update_interval is None else update_interval
        return replace(
            self,
            alignment_group=watermark_group,
            alignment_drift_ms=_span("with_watermark_alignment", max_allowed_watermark_drift, least=1),
            alignment_interval_ms=_span("with_watermark_alignment", interval, least=1),
        )


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a class written in C
        return False
    return False


def _span(method: str, value: Any, *, least: int) -> int:
    ms = millis_of(method, value)
    if ms < least:
        raise ProgramError(f"{method} takes at least {least} ms", found=f"{ms} ms", cure="give a longer duration")
    return ms
