"""File source and file sink."""

from tidegate.connectors.files.bucket_assigners import (
    BucketAssigner,
    DefaultRollingPolicy,
    OnCheckpointRollingPolicy,
    RollingPolicy,
)
from tidegate.connectors.files.file_format import BulkFormat, StreamFormat
from tidegate.connectors.files.parts import FileCompactor, FileCompactStrategy
from tidegate.connectors.files.sink import FileSink, OutputFileConfig, StreamingFileSink
from tidegate.connectors.files.source import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
)

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
