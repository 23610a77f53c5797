"""Rows into a table that other engines read. Tasks stage columns, and the driver commits them, once for each checkpoint."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote

from tidegate.base import faults, secrets
from tidegate.base.errors import CommitError, ConfigurationError, OutputLostError, RetryableCommitError
from tidegate.base.files import Files
from tidegate.base.imports import library
from tidegate.connectors.formats.parquet_files import RowColumnWriterFactory
from tidegate.connectors.staged_file import (
    StagedFile,
    delete_lingering,
    delete_staged,
    file_at,
    frames_of,
    mark_for,
    mark_of,
    number_of,
    read_staged,
    with_numbers,
    without_done,
)
from tidegate.operators.contracts.arrow_types import arrow_schema
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.table.types import row_of

_STAGED = "batches"
_SECRET = re.compile(
    r"(secret|token|password|credential|authorization|(access|account|master|sas).key|connection.string)$",
    re.IGNORECASE,
)
"""Names of options whose values appear in no file of ours. ``token-refresh-enabled`` and ``s3.access-key-id`` are no secrets."""
_PASSWORD = re.compile(r"://[^/@:]*:([^/]+)@")


class TableSink(Sink):
    """Write rows to a table with one commit for each checkpoint. The commit carries the id of the checkpoint.

    Tasks turn records into columns and stage them on checkpoint storage. When the checkpoint is complete, the driver appends them.
    A commit is skipped if the table contains its id or a later one.

    ``kind`` names the format of the table in errors. The driver calls the abstract methods.
    """

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    marks_checkpoints = True
    kind: ClassVar[str]

    def __init__(self, row_type: Any, partition_by: Sequence[str], options: Mapping[str, Any]) -> None:
        """Check the columns, and hide secrets among the options from errors and logs."""
        self.row_type, self.partition_by = row_of(type(self).__name__, row_type), list(partition_by)
        hide_secrets(options)
        unknown = set(self.partition_by) - set(self.row_type.get_field_names())
        if unknown:
            raise ConfigurationError(
                f"partition_by of a sink of {self.kind} names a column that its rows do not have",
                where=type(self).__name__,
                found=f"no column {min(unknown)}",
                cure=f"use columns of the row type: {', '.join(self.row_type.get_field_names())}",
            )
        arrow_schema(self.row_type)  # reports types that no column can hold

    @property
    @abstractmethod
    def where(self) -> str:
        """The place of the table, for errors."""

    @abstractmethod
    def table(self) -> Any:
        """Load the newest version of the table. None: the table does not exist."""

    @abstractmethod
    def create_table(self) -> Any:
        """Create the table without rows. Two processes that create it at the same time get the same table."""

    @abstractmethod
    def number_in(self, table: Any, application: str) -> int | None:
        """Return the last number that this version of the table holds for the application."""

    @abstractmethod
    def append(self, table: Any, rows: Any, application: str, number: int) -> None:
        """Add rows and number, in one commit, to **this** version of the table, which is known not to contain the number.

        Raise an error if another process (a driver that was paused and wakes up) has committed to the table in between. Appended
        to the newest version instead, the rows could be duplicated.
        """

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _TableWriter(RowColumnWriterFactory(self.row_type), context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _TableCommitter(self, context)


def hide_secrets(options: Mapping[str, Any]) -> None:
    """Hide values of options with secret names, and passwords in addresses. Options may contain options."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            hide_secrets(value)
        elif isinstance(value, str):
            written = [value] if _SECRET.search(name) else _PASSWORD.findall(value)
            secrets.hide([*written, *map(unquote, written)])


class _TableWriter(SinkWriter):
    """Stage packed columns as frames of one file."""

    def __init__(self, columns: RowColumnWriterFactory, context: WriterContext) -> None:
        self._columns, self._context = columns, context
        self._file = StagedFile(context, _STAGED)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if values:
            self._file.write_frame(self._columns.pack(values))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """Return a committable with every checkpoint, also without records: earlier rounds are committed under its id."""
        context = self._context
        if not self._file.has_content and (context.checkpoint_id is None or context.publishes):
            return Prepared()
        staged = None
        if self._file.has_content:
            faults.point("K1.table.flush", round=context.round)
            staged = list(self._file.finish())
        application = f"tidegate:{context.job_id}:{context.sink_id}:{mark_of(context)}"
        if context.publishes:
            application += ":rounds"  # numbers of rounds are no ids of checkpoints
        number = number_of(context)
        return Prepared([{"file": staged, "checkpoint": number, "round": context.round, "application": application}])

    def abort(self) -> None:
        self._file.drop()


class _TableCommitter(Committer):
    def __init__(self, sink: TableSink, context: CommitterContext) -> None:
        self._sink, self._context = sink, context
        mark_for(context)

    def commit(self, committables: list[Any]) -> None:
        numbered = [(number, item) for number, item in with_numbers(committables) if item["file"] is not None]
        if not numbered:
            return
        items, number = [item for _, item in numbered], max(number for number, _ in numbered)
        faults.point("K3.table.before-commit", checkpoint=number)
        try:
            self._commit(numbered, items[0]["application"], number)
        except CommitError:
            raise
        except Exception as error:
            raise RetryableCommitError(
                f"The commit of a completed checkpoint to its {self._sink.kind} table failed",
                where=f"{self._sink.where}, checkpoint {number}",
                found=secrets.masked(f"{type(error).__name__}: {error}"),
                cure="check the table and its storage; the job retries the commit",
            ) from error
        faults.point("K3.table.committed", checkpoint=number)
        self.abort(items)

    def _commit(self, numbered: list[tuple[int, Any]], application: str, number: int) -> None:
        """Load the table, look for the number, append to the version that was looked at. A retry loads the table again."""
        sink, arrow = self._sink, library("pyarrow", f"{self._sink.kind} tables")
        table = sink.table() or sink.create_table()
        done = sink.number_in(table, application)
        if done is not None and done >= number:
            return
        schema = arrow_schema(sink.row_type)
        packed = [frame for item in without_done(done, numbered) for frame in self._frames(*item["file"])]
        rows = arrow.Table.from_batches(
            [arrow.ipc.read_record_batch(arrow.py_buffer(frame), schema) for frame in packed], schema
        )
        faults.point("K3.table.append", checkpoint=number)
        sink.append(table, rows, application, number)

    def _frames(self, address: str, size: int, content_hash: str) -> Iterator[bytes]:
        files, name = file_at(address)
        if not files.exists(name):
            raise OutputLostError(
                f"Rows of a completed checkpoint are missing and cannot be committed to their {self._sink.kind} table",
                where=self._sink.where,
                found=f"no file {address}, and the table does not contain the checkpoint",
                cure="restore an older checkpoint; find out which process deleted the file",
            )
        yield from frames_of(read_staged(address, size, content_hash))

    def abort(self, committables: list[Any]) -> None:
        for item in committables:
            if item["file"] is not None:
                delete_staged(item["file"][0])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {item["file"][0] for item in committables if item["file"] is not None}
        delete_lingering(self._context, Files(self._context.staging).list(_STAGED), wanted, "K2.table.listed")
