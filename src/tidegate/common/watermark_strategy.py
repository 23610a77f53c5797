"""Watermark strategies: how event timestamps are read and how far event time has come."""

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
    """Reads the event timestamp of a record. Called once for every record, before any operator behind it."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since 1970. ``record_timestamp``: what the record had so far, or the least 64-bit integer."""


class WatermarkOutput(ABC):
    """What a generator says how far event time has come to. The output of one split, or of one subtask of an operator."""

    @abstractmethod
    def emit_watermark(self, watermark: int) -> None:
        """No record at or before this time (milliseconds) will come. One that is lower than an earlier one changes nothing. The
        split is active again."""

    @abstractmethod
    def mark_idle(self) -> None:
        """The split no longer holds back event time, until it emits a watermark or is marked as active."""

    @abstractmethod
    def mark_active(self) -> None:
        """The split holds back event time again."""


class WatermarkGenerator(ABC):
    """Says how far event time has come, from the records it sees: one object for each split of a source, or for each subtask of
    ``assign_timestamps_and_watermarks``.

    Its attributes are its state. They are kept with every round and every checkpoint, and an object of the next attempt gets
    them back: they must be picklable. ``__getstate__`` and ``__setstate__`` may say what is kept instead.
    """

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """For every record. What is emitted here stands exactly behind this record, also for operators in other subtasks: a
        watermark with every record is slow."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Behind every batch of records, at the end of every round, and every ``pipeline.auto-watermark-interval`` while no
        record comes. Not called if that is 0."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """Immutable: every ``with_...`` returns a new one. Made by the four static methods.

    What the engine reads: ``kind`` ("none", "monotonous", "bounded", "custom"), ``out_of_orderness_ms``, ``generator`` (makes a
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

    @staticmethod
    def for_generator(generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of the user's own. ``generator``: makes one, for each split: a class that extends WatermarkGenerator, or a
        callable without arguments."""
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
        """The same strategy, with timestamps taken from the records by this assigner."""
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
        """Sources of the same group wait for each other: what is read of one whose event time is more than the drift ahead of the
        group's slowest is planned into a later round. ``update_interval``: how often the slowest is looked up."""
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
