"""Streams, by PyFlink's module path."""

from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream, DataStreamSink

__all__ = ["CloseableIterator", "DataStream", "DataStreamSink", "KeyedStream"]
