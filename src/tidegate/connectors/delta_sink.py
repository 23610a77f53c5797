"""Rows into a Delta table, through ``deltalake``: one commit for each checkpoint, with its id as application transaction."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from tidegate.common import faults, secrets
from tidegate.common.data_types import row_of
from tidegate.common.errors import CommitError, ConfigurationError, OutputLostError, RetryableCommitError
from tidegate.common.files import FileHandle, Files
from tidegate.connectors.directory_mark import mark_for, mark_of
from tidegate.connectors.formats.arrow_types import arrow_schema
from tidegate.connectors.formats.libraries import library
from tidegate.connectors.formats.parquet_files import RowColumnWriterFactory
from tidegate.connectors.numbered import behind, number_of, with_numbers
from tidegate.connectors.staged_file import StagedFile
from tidegate.operators.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

_STAGED = "batches"
_SECRET = re.compile("secret|token|password|account_key|sas_key", re.IGNORECASE)
"""Names of options of an object store that are in no file of ours."""
_LENGTH = struct.Struct(">Q")


class DeltaSink(Sink):
    """``path``: of the table, which is made if it is not there. ``row_type``: ``Types.ROW_NAMED(...)``. ``partition_by``: names of
    columns, where the table is made. ``storage_options``: as ``deltalake`` takes them.

    Tasks turn records into columns and keep them on checkpoint storage; when the checkpoint is complete the driver writes them
    as one commit, which carries the checkpoint's id. A commit whose id the table has, or a later one, is nothing.
    """

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    marks_checkpoints = True

    def __init__(
        self,
        path: str,
        row_type: Any,
        *,
        partition_by: Sequence[str] = (),
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self.path, self.row_type = path, row_of("DeltaSink", row_type)
        self.partition_by, self.storage_options = list(partition_by), storage_options
        secrets.hide(text for name, text in (storage_options or {}).items() if _SECRET.search(name))
        unknown = set(self.partition_by) - set(self.row_type.get_field_names())
        if unknown:
            raise ConfigurationError(
                "A Delta table is partitioned by columns of its rows",
                where="DeltaSink",
                found=f"no column {sorted(unknown)[0]}",
            )
        arrow_schema(self.row_type)  # a type without a column is refused now

    def validate(self) -> None:
        """A table that is there has the columns, and of these types: what does not fit would be cast."""
        table = self.table()
        if table is None:
            return
        have = {field.name: field.type for field in table.schema().fields}
        for field in _deltalake().Schema.from_arrow(arrow_schema(self.row_type)).fields:
            if have.get(field.name) != field.type:
                found = f"{field.name} is {have[field.name]}" if field.name in have else f"it has {', '.join(have)}"
                raise ConfigurationError(
                    "A Delta sink writes columns that the table has",
                    where=self.path,
                    found=f"no column {field.name} of {field.type}; {found}",
                    cure="change the table, or the row type",
                )

    def table(self) -> Any:
        """None: it is not there."""
        delta = _deltalake()
        if not delta.DeltaTable.is_deltatable(self.path, storage_options=self.storage_options):
            return None
        return delta.DeltaTable(self.path, storage_options=self.storage_options)

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _BatchWriter(RowColumnWriterFactory(self.row_type), context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _DeltaCommitter(self, context)


def _deltalake() -> Any:
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise ConfigurationError(
            "A Delta sink needs the package deltalake",
            found=f"it cannot be imported: {error}",
            cure="pip install 'tidegate[delta]'",
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
            faults.point("K1.delta.flush", round=context.round)
            kept = list(self._file.finish())
        application = f"tidegate:{context.job_id}:{context.sink_id}:{mark_of(context)}"
        if context.publishes:
            application += ":rounds"  # whose numbers are others
        number = number_of(context)
        return Prepared([{"file": kept, "checkpoint": number, "round": context.round, "application": application}])

    def abort(self) -> None:
        self._file.drop()


class _DeltaCommitter(Committer):
    def __init__(self, sink: DeltaSink, context: CommitterContext) -> None:
        self._sink, self._context = sink, context
        mark_for(context)

    def commit(self, committables: list[Any]) -> None:
        numbered = [(number, item) for number, item in with_numbers(committables) if item["file"] is not None]
        if not numbered:
            return
        kept, number = [item for _, item in numbered], max(number for number, _ in numbered)
        faults.point("K3.delta.before-commit", checkpoint=number)
        try:
            self._commit(numbered, kept[0]["application"], number)
        except CommitError:
            raise
        except Exception as error:
            raise RetryableCommitError(
                "The rows of a completed checkpoint must be committed to their Delta table",
                where=f"{self._sink.path}, checkpoint {number}",
                found=f"{type(error).__name__}: {error}",
                cure="see what the table or its storage says; the commit is tried again",
            ) from error
        faults.point("K3.delta.committed", checkpoint=number)
        self.abort(kept)

    def _commit(self, numbered: list[tuple[int, Any]], application: str, number: int) -> None:
        """The rows are appended to **that** version of the table which does not have the number. Somebody who commits the same in
        between (a driver that was paused, and wakes up) makes this append a conflict of two application transactions, which Delta
        refuses: with the path instead, the newest version would be loaded, and the rows be there twice."""
        delta, arrow = _deltalake(), library("pyarrow", "Delta tables")
        table = self._sink.table() or self._created(delta)
        done = table.transaction_version(application)
        if done is not None and done >= number:
            return
        schema = arrow_schema(self._sink.row_type)
        packed = [batch for item in behind(done, numbered) for batch in self._batches(item["file"])]
        rows = arrow.Table.from_batches(
            [arrow.ipc.read_record_batch(arrow.py_buffer(b), schema) for b in packed], schema
        )
        faults.point("K3.delta.append", checkpoint=number)
        delta.write_deltalake(
            table,
            rows,
            mode="append",
            partition_by=self._sink.partition_by or None,
            commit_properties=delta.CommitProperties(app_transactions=[delta.Transaction(application, number)]),
        )

    def _created(self, delta: Any) -> Any:
        """Without rows: who makes it at the same moment makes the same."""
        sink = self._sink
        schema = delta.Schema.from_arrow(arrow_schema(sink.row_type))
        by = sink.partition_by or None
        return delta.DeltaTable.create(
            sink.path, schema, mode="ignore", partition_by=by, storage_options=sink.storage_options
        )

    def _batches(self, file: list[Any]) -> Iterator[bytes]:
        address, size, content = file
        directory, _, name = address.rpartition("/")
        files = Files(directory)
        if not files.exists(name):
            raise OutputLostError(
                "The rows of a completed checkpoint must be committed to their Delta table",
                where=self._sink.path,
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
        faults.point("K2.delta.listed", files=len(listed))
        self._context.check_lease()
        for path in listed:
            if files.location(path) not in wanted:
                files.delete(path)
