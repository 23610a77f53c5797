"""The file sink: records in part files that become visible, as a whole, with the checkpoint that covers them."""

from __future__ import annotations

from typing import Any, Self

from tidegate.base.arguments import expect_int, made_by, wrong
from tidegate.base.errors import ArgumentTypeError, ConfigurationError
from tidegate.base.files import Files
from tidegate.common.configuration import notice
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.bucket_assigners import BucketAssigner, OnCheckpointRollingPolicy, RollingPolicy
from tidegate.connectors.files.committer import FileCommitter
from tidegate.connectors.files.file_format import SINK, full_path
from tidegate.connectors.files.parts import Compaction, FileCompactor, FileCompactStrategy
from tidegate.connectors.files.writer import FileSinkSettings, FileSinkWriter
from tidegate.connectors.functions.function_sink import AddedSink
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)


class OutputFileConfig:
    """Set prefix and suffix of part files: ``<prefix>-<uid>-<counter><suffix>``."""

    def __init__(self, part_prefix: str, part_suffix: str) -> None:
        for text in (part_prefix, part_suffix):
            if "/" in text:
                raise ConfigurationError(
                    "The prefix or suffix of part files contains a '/'",
                    where="OutputFileConfig",
                    found=repr(text),
                    cure="remove the '/'; use a bucket assigner for directories",
                )
        self._prefix, self._suffix = part_prefix, part_suffix

    def get_part_prefix(self) -> str:
        """The beginning of file names."""
        return self._prefix

    def get_part_suffix(self) -> str:
        """The end of file names."""
        return self._suffix

    @staticmethod
    def builder() -> OutputFileConfig.OutputFileConfigBuilder:
        """Begin a description of file names."""
        return OutputFileConfig.OutputFileConfigBuilder()

    class OutputFileConfigBuilder:
        """Describes file names."""

        def __init__(self) -> None:
            self._prefix, self._suffix = "part", ""

        def with_part_prefix(self, prefix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """The beginning of file names."""
            self._prefix = prefix
            return self

        def with_part_suffix(self, suffix: str) -> OutputFileConfig.OutputFileConfigBuilder:
            """The end of file names."""
            self._suffix = suffix
            return self

        def build(self) -> OutputFileConfig:
            """Return the description."""
            return OutputFileConfig(self._prefix, self._suffix)


@made_by("FileSink.for_row_format(...) or FileSink.for_bulk_format(...), then build()", FileSinkSettings)
class FileSink(Sink):
    """Write records to files exactly once. Records go to hidden files. A finished file is renamed when its checkpoint completes.

    Part files are named ``<bucket>/<prefix>-<uid>-<counter><suffix>``. ``uid`` belongs to the subtask and round that finished the
    part, and ``counter`` numbers their parts. In at-least-once mode every round finishes its parts. Without checkpointing files
    appear at the end of the job.

    Unfinished parts are hidden files. They stay as long as a retained checkpoint of the job names them, so each such checkpoint can
    be restored. Another job that restores it continues with copies. If a job returns to an older checkpoint, records that were
    committed after it are written again.
    """

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(self, settings: FileSinkSettings) -> None:
        self.settings, self.marks_checkpoints = settings, settings.marks_success
        self.takes_columns = isinstance(settings.encoder, BulkWriterFactory)
        if settings.compaction is not None:
            self.holds_back = (
                f"FileSink at {settings.base_path} with enable_compact, which waits until there is enough for a file"
            )

    @staticmethod
    def for_row_format(base_path: str, encoder: Any) -> FileSink.RowFormatBuilder:
        """Begin a sink of rows. ``encoder`` has ``encode_batch(values) -> bytes`` or ``encode(value) -> bytes``."""
        return FileSink.RowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> FileSink.BulkFormatBuilder:
        """Begin a sink of whole files: CSV, JSON lines, Parquet, Avro, ORC. A part ends with a checkpoint."""
        return FileSink.BulkFormatBuilder(base_path, writer_factory)

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return FileSinkWriter(self.settings, context, state)

    def create_committer(self, context: CommitterContext) -> Committer:
        return FileCommitter(self.settings.base_path, context)

    def validate(self) -> None:
        path = self.settings.base_path
        files = Files(path, SINK)
        if files.exists("") and not files.is_directory():
            raise ConfigurationError(
                "The path of a file sink is a file, not a directory",
                where=f"FileSink at {path}",
                found="a file of this name",
                cure="choose another path, or move the file away",
            )
        files.make_directory()

    class BaseBuilder:
        """Describes a sink: what both kinds of formats share."""

        def __init__(self, base_path: str, encoder: Any, policy: RollingPolicy) -> None:
            self._base_path, self._encoder, self._policy = full_path(base_path), encoder, policy
            self._assigner = BucketAssigner.date_time_bucket_assigner()
            self._names = OutputFileConfig("part", "")
            self._compaction: Compaction | None = None
            self._marks_success = False

        def enable_compact(self, strategy: FileCompactStrategy, compactor: FileCompactor) -> Self:
            """Merge small files before they become visible: when the strategy has enough, or with the end of input.

            Files of different subtasks are not merged.
            """
            if not isinstance(strategy, FileCompactStrategy) or not isinstance(compactor, FileCompactor):
                cure = "pass FileCompactStrategy.builder()...build(), FileCompactor.concat_file_compactor()"
                raise wrong("FileSink.enable_compact", "a strategy and a compactor", (strategy, compactor), cure)
            delimiter = b"" if isinstance(self._encoder, BulkWriterFactory) else compactor.delimiter
            self._compaction = None if compactor.delimiter is None else Compaction(strategy, delimiter or b"")
            return self

        def disable_compact(self) -> Self:
            """Finish parts as the rolling policy decides."""
            self._compaction = None
            return self

        def with_success_markers(self) -> Self:
            """Write an empty file ``_SUCCESS`` into every complete bucket: all its files are visible, and no more will come.

            ``BucketAssigner.is_over`` or the end of input decides that no more will come.
            """
            self._marks_success = True
            return self

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            """Set when a new file begins."""
            self._policy = rolling_policy
            return self

        def with_bucket_assigner(self, bucket_assigner: Any) -> Self:
            """Take a BucketAssigner, an object with ``get_bucket_id(value, context)``, or a function of the value.

            The default is the hour of processing, ``yyyy-MM-dd--HH``.
            """
            self._assigner = BucketAssigner.of(bucket_assigner)
            return self

        def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
            """Set the names of part files."""
            self._names = output_file_config
            return self

        def with_bucket_check_interval(self, interval: int) -> Self:
            """Accepted without effect, in milliseconds: parts are checked in every round.

            While parts are open, every checkpoint has a round.
            """
            expect_int("FileSink.with_bucket_check_interval", interval, "pass milliseconds, for example 60_000")
            notice("FileSink.with_bucket_check_interval", "parts are checked in every round and at every checkpoint")
            return self

        def build(self) -> FileSink:
            """Return the sink."""
            prefix, suffix = self._names.get_part_prefix(), self._names.get_part_suffix()
            how = self._encoder, self._policy, self._assigner
            settings = FileSinkSettings(
                self._base_path, *how, prefix, suffix, self._compaction, marks_success=self._marks_success
            )
            return FileSink(settings)

    class RowFormatBuilder(BaseBuilder):
        """Describes a sink that encodes records one by one."""

        def __init__(self, base_path: str, encoder: Any) -> None:
            if isinstance(encoder, str) or not (hasattr(encoder, "encode_batch") or hasattr(encoder, "encode")):
                raise ArgumentTypeError(
                    "for_row_format takes an encoder with encode_batch(values) -> bytes or encode(value) -> bytes",
                    where="FileSink.for_row_format",
                    found=type(encoder).__name__,
                    cure="pass Encoder.simple_string_encoder()",
                )
            super().__init__(base_path, encoder, RollingPolicy.default_rolling_policy())

    class BulkFormatBuilder(BaseBuilder):
        """Describes a sink that writes files as a whole."""

        def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
            if not isinstance(writer_factory, BulkWriterFactory):
                raise wrong(
                    "FileSink.for_bulk_format",
                    "a BulkWriterFactory",
                    writer_factory,
                    "pass for example ParquetBulkWriters.for_row_type(...)",
                )
            super().__init__(base_path, writer_factory, RollingPolicy.on_checkpoint_rolling_policy())

        def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
            """Take a policy that ends every part with a checkpoint. As in Flink, bulk formats need one."""
            if not isinstance(rolling_policy, OnCheckpointRollingPolicy):
                cure = "pass RollingPolicy.on_checkpoint_rolling_policy(), or a subclass of OnCheckpointRollingPolicy"
                raise wrong("with_rolling_policy of a bulk format", "a policy of checkpoints", rolling_policy, cure)
            return super().with_rolling_policy(rolling_policy)


class StreamingFileSink(FileSink, AddedSink):
    """A FileSink under its former name, for ``add_sink``. It writes the same files."""

    @staticmethod
    def for_row_format(base_path: str, encoder: Any) -> StreamingFileSink.DefaultRowFormatBuilder:
        """Begin a sink, as ``FileSink`` does."""
        return StreamingFileSink.DefaultRowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(
        base_path: str, writer_factory: BulkWriterFactory
    ) -> StreamingFileSink.DefaultBulkFormatBuilder:
        """Begin a sink, as ``FileSink`` does."""
        return StreamingFileSink.DefaultBulkFormatBuilder(base_path, writer_factory)

    class BaseBuilder(FileSink.BaseBuilder):
        """Describes a sink: what both kinds of formats share."""

        def with_rolling_policy(self, policy: RollingPolicy) -> Self:
            """Set when a new file begins."""
            return super().with_rolling_policy(policy)

        def build(self) -> StreamingFileSink:
            """Return the sink."""
            return StreamingFileSink(super().build().settings)

    class DefaultRowFormatBuilder(BaseBuilder, FileSink.RowFormatBuilder):
        """Describes a sink that encodes records one by one."""

    class DefaultBulkFormatBuilder(BaseBuilder, FileSink.BulkFormatBuilder):
        """Describes a sink that writes files as a whole."""
