"""File source and file sink."""

from tidegate.connectors.bucket_assigners import BucketAssigner
from tidegate.connectors.file_compaction import FileCompactor, FileCompactStrategy
from tidegate.connectors.file_format import BulkFormat
from tidegate.connectors.file_sink import FileSink, OutputFileConfig
from tidegate.connectors.file_source import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
)
from tidegate.connectors.rolling import DefaultRollingPolicy, OnCheckpointRollingPolicy, RollingPolicy
from tidegate.connectors.streaming_file_sink import StreamingFileSink
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
    "FileSplitAssignerProvider",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
    "StreamingFileSink",
]
