"""ORC files, for writing."""

from tidegate.connectors.formats.parquet_files import OrcBulkWriters

__all__ = ["OrcBulkWriters"]
