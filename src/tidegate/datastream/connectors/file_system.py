"""File source and file sink."""

from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.connectors.files.compaction import FileCompactor, FileCompactStrategy
from tidegate.connectors.files.file_format import BulkFormat
from tidegate.connectors.files.rolling import DefaultRollingPolicy, OnCheckpointRollingPolicy, RollingPolicy
from tidegate.connectors.files.sink import FileSink, OutputFileConfig, StreamingFileSink
from tidegate.connectors.files.source import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
)
from tidegate.connectors.files.text_lines import StreamFormat

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
