"""Streams, by PyFlink's module path."""

from tidegate.datastream.cached_stream import CachedDataStream
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream, DataStreamSink
from tidegate.datastream.windowed_stream import AllWindowedStream, WindowedStream
from tidegate.operators.windows.operation import CONTENTS as WINDOW_STATE_NAME

__all__ = [
    "WINDOW_STATE_NAME",
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CachedDataStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]
