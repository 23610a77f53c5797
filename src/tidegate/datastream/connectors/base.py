"""The base of all connectors."""

from abc import ABC, abstractmethod
from typing import Any

from tidegate.connectors.functions.function_sink import UpsertSink
from tidegate.connectors.functions.write_ahead import (
    CheckpointCommitter,
    DatabaseCheckpointCommitter,
    FileCheckpointCommitter,
    GenericWriteAheadSink,
)
from tidegate.operators.contracts.sink import DeliveryGuarantee, Sink
from tidegate.operators.contracts.source import Source

__all__ = [
    "CheckpointCommitter",
    "DatabaseCheckpointCommitter",
    "DeliveryGuarantee",
    "FileCheckpointCommitter",
    "GenericWriteAheadSink",
    "Sink",
    "Source",
    "StreamTransformer",
    "SupportsPreprocessing",
    "UpsertSink",
]


class StreamTransformer(ABC):
    """Transforms a stream before its sink."""

    @abstractmethod
    def apply(self, ds: Any) -> Any:
        """Return the stream for the sink, made from ``ds``. Called once, when the program is built."""


class SupportsPreprocessing(ABC):
    """A sink with its own steps before it: ``sink_to`` applies the transformer first."""

    @abstractmethod
    def get_transformer(self) -> StreamTransformer | None:
        """Return the transformer; None: the sink takes the stream unchanged."""
