"""All connectors, by one import path: PyFlink's, and Tidegate's own.

Connectors that need a library of an extra are imported when their name is used. If the library is missing, the import of that
name raises an error that names the extra; the other connectors are not affected.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.base.imports import library
from tidegate.connectors.frames.for_each_checkpoint import ForEachCheckpointSink
from tidegate.connectors.frames.sources import DataFrameSource, StreamReaderSource
from tidegate.connectors.sockets.source import SocketSource
from tidegate.connectors.sql.table import Table
from tidegate.datastream.connectors.base import (
    DatabaseCheckpointCommitter,
    DeliveryGuarantee,
    FileCheckpointCommitter,
    GenericWriteAheadSink,
    Sink,
    Source,
    UpsertSink,
)
from tidegate.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
    StreamingFileSink,
)
from tidegate.datastream.connectors.hybrid_source import HybridSource
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

if TYPE_CHECKING:
    from tidegate.connectors.redis.sink import RedisSink as RedisSink
    from tidegate.connectors.tables.delta import DeltaSink as DeltaSink
    from tidegate.connectors.tables.iceberg import IcebergSink as IcebergSink
    from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer as KafkaOffsetsInitializer
    from tidegate.datastream.connectors.kafka import (
        KafkaRecordDeserializationSchema as KafkaRecordDeserializationSchema,
    )
    from tidegate.datastream.connectors.kafka import KafkaRecordSerializationSchema as KafkaRecordSerializationSchema
    from tidegate.datastream.connectors.kafka import KafkaSink as KafkaSink
    from tidegate.datastream.connectors.kafka import KafkaSource as KafkaSource
    from tidegate.datastream.connectors.mysql import MySqlSink as MySqlSink
    from tidegate.datastream.connectors.postgresql import PostgreSqlSink as PostgreSqlSink

_KAFKA = ("tidegate.datastream.connectors.kafka", "kafka", ("kafka", "aiokafka"))
_LATER = {
    "DeltaSink": ("tidegate.connectors.tables.delta", "delta", ("deltalake", "pyarrow")),
    "IcebergSink": ("tidegate.connectors.tables.iceberg", "iceberg", ("pyiceberg", "pyarrow")),
    "KafkaOffsetsInitializer": _KAFKA,
    "KafkaRecordDeserializationSchema": _KAFKA,
    "KafkaRecordSerializationSchema": _KAFKA,
    "KafkaSink": _KAFKA,
    "KafkaSource": _KAFKA,
    "MySqlSink": ("tidegate.datastream.connectors.mysql", "mysql", ("pymysql",)),
    "PostgreSqlSink": ("tidegate.datastream.connectors.postgresql", "postgresql", ("psycopg",)),
    "RedisSink": ("tidegate.connectors.redis.sink", "redis", ("redis",)),
}
"""Name -> its module, the extra it needs, and the libraries of the extra."""

__all__ = [
    "BucketAssigner",
    "DataFrameSource",
    "DataGeneratorSource",
    "DatabaseCheckpointCommitter",
    "DeliveryGuarantee",
    "FileCheckpointCommitter",
    "FileCompactStrategy",
    "FileCompactor",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "ForEachCheckpointSink",
    "GenericWriteAheadSink",
    "HybridSource",
    "NumberSequenceSource",
    "OutputFileConfig",
    "RateLimiterStrategy",
    "RollingPolicy",
    "Sink",
    "SocketSource",
    "Source",
    "StreamFormat",
    "StreamReaderSource",
    "StreamingFileSink",
    "Table",
    "UpsertSink",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    home, extra, packages = _LATER[name]
    for package in packages:
        library(package, name, extra)
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
