"""File source and file sink."""

from tidegate.connectors.bucket_assigners import BucketAssigner
from tidegate.connectors.file_compaction import FileCompactor, FileCompactStrategy
from tidegate.connectors.file_format import BulkFormat
from tidegate.connectors.file_sink import FileSink, OutputFileConfig
from tidegate.connectors.file_source import FileEnumeratorProvider, FileSource, FileSourceBuilder
from tidegate.connectors.rolling import DefaultRollingPolicy, OnCheckpointRollingPolicy, RollingPolicy
from tidegate.connectors.text_lines import StreamFormat

__all__ = [
    "BucketAssigner",
    "BulkFormat",
    "DefaultRollingPolicy",
    "FileCompactStrategy",
    "FileCompactor",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]
