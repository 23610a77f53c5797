"""StreamingFileSink: the name under which ``add_sink`` took what is a FileSink now. It writes the same files."""

from __future__ import annotations

from typing import Any, Self

from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.rolling import RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.functions.former import AddedSink


class StreamingFileSink(FileSink, AddedSink):
    """A FileSink, for ``add_sink``."""

    @staticmethod
    def for_row_format(base_path: str, encoder: Any) -> StreamingFileSink.DefaultRowFormatBuilder:
        """As of FileSink."""
        return StreamingFileSink.DefaultRowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(
        base_path: str, writer_factory: BulkWriterFactory
    ) -> StreamingFileSink.DefaultBulkFormatBuilder:
        """As of FileSink."""
        return StreamingFileSink.DefaultBulkFormatBuilder(base_path, writer_factory)

    class BaseBuilder(FileSink.BaseBuilder):
        """Describes a sink: what both kinds of formats share."""

        def with_rolling_policy(self, policy: RollingPolicy) -> Self:
            """When a new file begins."""
            return super().with_rolling_policy(policy)

        def build(self) -> StreamingFileSink:
            """The sink as described."""
            return StreamingFileSink(super().build().settings)

    class DefaultRowFormatBuilder(BaseBuilder, FileSink.RowFormatBuilder):
        """Describes a sink that encodes records one by one."""

    class DefaultBulkFormatBuilder(BaseBuilder, FileSink.BulkFormatBuilder):
        """Describes a sink that writes files as a whole."""
