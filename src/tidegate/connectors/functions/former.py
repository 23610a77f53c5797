"""Sources and sinks under names of former Flink versions: ``add_source`` and ``add_sink`` take them."""

from __future__ import annotations

import warnings

from tidegate.common import WatermarkStrategy
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.source import Source


class AddedSource(Source):
    """A source that PyFlink has as a ``SourceFunction``: for ``add_source``."""

    watermark_strategy = WatermarkStrategy.no_watermarks()


class AddedSink(Sink):
    """A sink that PyFlink has as a ``SinkFunction``: for ``add_sink``."""


def deprecated(name: str, instead: str) -> None:
    """Tell the user what replaces a class of a former Flink version. Called by the constructor of that class."""
    warnings.warn(f"{name} is deprecated: use {instead} instead", DeprecationWarning, stacklevel=3)
