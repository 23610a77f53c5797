"""Sources and sinks under names of former Flink versions, which ``add_source`` and ``add_sink`` take."""

from __future__ import annotations

import warnings

from tidegate.common import WatermarkStrategy
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.source import Source


class AddedSource(Source):
    """A source for ``add_source``: PyFlink has it as a ``SourceFunction``."""

    watermark_strategy = WatermarkStrategy.no_watermarks()


class AddedSink(Sink):
    """A sink for ``add_sink``: PyFlink has it as a ``SinkFunction``."""


def deprecated(name: str, instead: str) -> None:
    """Warn the user, and name the replacement. Called by the constructor of a class of a former Flink version."""
    warnings.warn(f"{name} is deprecated: use {instead} instead", DeprecationWarning, stacklevel=3)
