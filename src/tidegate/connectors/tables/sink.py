"""Rows into a table that other engines read: tasks keep columns on checkpoint storage, the driver appends them, a commit for each
checkpoint, which carries its id."""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar
from urllib.parse import unquote

from tidegate.base import faults, secrets
from tidegate.base.errors import CommitError, ConfigurationError, OutputLostError, RetryableCommitError
from tidegate.base.files import FileHandle, Files
from tidegate.connectors.directory_mark import mark_for, mark_of
from tidegate.connectors.formats.arrow_types import arrow_schema
from tidegate.connectors.formats.libraries import library
from tidegate.connectors.formats.parquet_files import RowColumnWriterFactory
from tidegate.connectors.functions.numbered import behind, number_of, with_numbers
from tidegate.connectors.staged_file import StagedFile
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
_LENGTH = struct.Struct(">Q")
_SECRET = re.compile(
    r"(secret|token|password|credential|authorization|(access|account|master|sas).key|connection.string)$",
    re.IGNORECASE,
)
"""Names of options whose values are in no file of ours; ``token-refresh-enabled`` is none, and ``s3.access-key-id``."""
_PASSWORD = re.compile(r"://[^/@:]*:([^/]+)@")


class TableSink(Sink):
    """Tasks turn records into columns and keep them on checkpoint storage; when the checkpoint is complete the driver writes them
    as one commit, which carries the checkpoint's id. A commit whose id the table has, or a later one, is nothing.

    ``kind``: what the table is called in errors. The four methods are called on the driver.
    """

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    marks_checkpoints = True
    kind: ClassVar[str]

    def __init__(self, row_type: Any, partition_by: Sequence[str], options: Mapping[str, Any]) -> None:
        """``options``: those that may be secret."""
        self.row_type, self.partition_by = row_of(type(self).__name__, row_type), list(partition_by)
        hide_secrets(options)
        unknown = set(self.partition_by) - set(self.row_type.get_field_names())
        if unknown:
            raise ConfigurationError(
                f"A table of {self.kind} is partitioned by columns of its rows",
                where=type(self).__name__,
                found=f"no column {sorted(unknown)[0]}",
            )
        arrow_schema(self.row_type)  # a type without a column is refused now

    @property
    @abstractmethod
    def where(self) -> str:
        """Of the table, for errors."""

    @abstractmethod
    def table(self) -> Any:
        """In its newest version. None: it is not there."""

    @abstractmethod
    def create_table(self) -> Any:
        """Without rows: who makes it at the same moment makes the same."""

    @abstractmethod
    def number_in(self, table: Any, application: str) -> int | None:
        """The last number that this version of the table has for that name."""

    @abstractmethod
    def append(self, table: Any, rows: Any, application: str, number: int) -> None:
        """The rows and the number, in one commit, to **that** version of the table, which was looked at and has no such number.
        Somebody who commits the same in between (a driver that was paused, and wakes up) must make this an error: appended to
        the newest version instead, the rows would be there twice."""

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _BatchWriter(RowColumnWriterFactory(self.row_type), context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _TableCommitter(self, context)


def hide_secrets(options: Mapping[str, Any]) -> None:
    """By the names of options, and passwords within addresses; options may hold options."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            hide_secrets(value)
        elif isinstance(value, str):
            written = [value] if _SECRET.search(name) else _PASSWORD.findall(value)
            secrets.hide([*written, *map(unquote, written)])


def package(name: str, kind: str) -> Any:
    """A module of the library of that kind of table."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"The sink of {kind} needs the package {name.partition('.')[0]}",
            found=f"it cannot be imported: {error}",
            cure=f"pip install 'tidegate[{kind.lower()}]'",
        ) from error


class _BatchWriter(SinkWriter):
    """Packed batches in a file of the attempt's own, each behind its length."""

    def __init__(self, columns: RowColumnWriterFactory, context: WriterContext) -> None:
        self._columns, self._context = columns, context
        self._file = StagedFile(context, _STAGED)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        packed = self._columns.pack(values)
        self._file.write(_LENGTH.pack(len(packed)), packed)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """With a checkpoint also without records: its id is the one that records of the rounds before it are committed under."""
        context = self._context
        if not self._file.has_content and (context.checkpoint_id is None or context.publishes):
            return Prepared()
        kept = None
        if self._file.has_content:
            faults.point("K1.table.flush", round=context.round)
            kept = list(self._file.finish())
        application = f"tidegate:{context.job_id}:{context.sink_id}:{mark_of(context)}"
        if context.publishes:
            application += ":rounds"  # whose numbers are others
        number = number_of(context)
        return Prepared([{"file": kept, "checkpoint": number, "round": context.round, "application": application}])

    def abort(self) -> None:
        self._file.drop()


class _TableCommitter(Committer):
    def __init__(self, sink: TableSink, context: CommitterContext) -> None:
        self._sink, self._context = sink, context
        self._rule = f"The rows of a completed checkpoint must be committed to their {sink.kind} table"
        mark_for(context)

    def commit(self, committables: list[Any]) -> None:
        numbered = [(number, item) for number, item in with_numbers(committables) if item["file"] is not None]
        if not numbered:
            return
        kept, number = [item for _, item in numbered], max(number for number, _ in numbered)
        faults.point("K3.table.before-commit", checkpoint=number)
        try:
            self._commit(numbered, kept[0]["application"], number)
        except CommitError:
            raise
        except Exception as error:
            raise RetryableCommitError(
                self._rule,
                where=f"{self._sink.where}, checkpoint {number}",
                found=secrets.masked(f"{type(error).__name__}: {error}"),
                cure="see what the table or its storage says; the commit is tried again",
            ) from error
        faults.point("K3.table.committed", checkpoint=number)
        self.abort(kept)

    def _commit(self, numbered: list[tuple[int, Any]], application: str, number: int) -> None:
        """Load, look, append to what was looked at; who is refused comes again, and looks again."""
        sink, arrow = self._sink, library("pyarrow", f"{self._sink.kind} tables")
        table = sink.table() or sink.create_table()
        done = sink.number_in(table, application)
        if done is not None and done >= number:
            return
        schema = arrow_schema(sink.row_type)
        packed = [batch for item in behind(done, numbered) for batch in self._batches(item["file"])]
        rows = arrow.Table.from_batches(
            [arrow.ipc.read_record_batch(arrow.py_buffer(b), schema) for b in packed], schema
        )
        faults.point("K3.table.append", checkpoint=number)
        sink.append(table, rows, application, number)

    def _batches(self, file: list[Any]) -> Iterator[bytes]:
        address, size, content = file
        directory, _, name = address.rpartition("/")
        files = Files(directory)
        if not files.exists(name):
            raise OutputLostError(
                self._rule,
                where=self._sink.where,
                found=f"no file {address}, and the table does not have the checkpoint",
                cure="restore an older checkpoint; look for who deleted the file",
            )
        data, at = files.read(FileHandle(name, size, content)), 0
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            yield data[at + _LENGTH.size : at + _LENGTH.size + length]
            at += _LENGTH.size + length

    def abort(self, committables: list[Any]) -> None:
        for item in committables:
            if item["file"] is not None:
                directory, _, name = item["file"][0].rpartition("/")
                Files(directory).delete(name)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        files = Files(self._context.staging)
        wanted = {item["file"][0] for item in committables if item["file"] is not None}
        listed = files.list(_STAGED)
        faults.point("K2.table.listed", files=len(listed))
        self._context.check_lease()
        for path in listed:
            if files.location(path) not in wanted:
                files.delete(path)
