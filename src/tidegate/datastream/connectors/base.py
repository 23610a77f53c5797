"""What all connectors share."""

from abc import ABC, abstractmethod
from typing import Any

from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.functions.function_sink import UpsertSink
from tidegate.connectors.functions.write_ahead import (
    CheckpointCommitter,
    DatabaseCheckpointCommitter,
    FileCheckpointCommitter,
    GenericWriteAheadSink,
)
from tidegate.operators.contracts.sink import Sink
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
    """Changes a stream before a sink takes it."""

    @abstractmethod
    def apply(self, ds: Any) -> Any:
        """The stream the sink reads, made from ``ds``. Called once, when the program is built."""


class SupportsPreprocessing(ABC):
    """A sink with steps of its own in front of it: ``sink_to`` applies the transformer first."""

    @abstractmethod
    def get_transformer(self) -> StreamTransformer | None:
        """None: the sink takes the stream as it is."""
