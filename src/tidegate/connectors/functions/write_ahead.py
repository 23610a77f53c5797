"""Write-ahead sinks for users: records are staged with the checkpoint, and sent together when the checkpoint is complete.

They serve outside systems without transactions. A ``CheckpointCommitter`` confirms sent records durably, so a repeated commit sends
nothing again. **A crash between sending and confirming** (K6) sends the records of that subtask and round again. This does no harm
to an outside system that takes upserts, or that stores the confirmation together with the records.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import cloudpickle

from tidegate.base import faults
from tidegate.base.errors import CommitError, CorruptFileError, OutputLostError, RetryableCommitError
from tidegate.base.files import Files
from tidegate.base.pickling import load_stored
from tidegate.connectors.staged_file import (
    ROUND_BITS,
    StagedFile,
    delete_lingering,
    delete_staged,
    frames_of,
    mark_for,
    number_of_round,
    read_staged,
)
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

log = logging.getLogger(__name__)

_DIRECTORY = "write-ahead"
_TABLE = "tidegate_confirmations"


class CheckpointCommitter(ABC):
    """Remember durably which records were sent. Lives on the driver, and pickles with its sink.

    Ids grow while an attempt of the job runs. A new attempt begins with greater ids, since the upper half of an id is the attempt.
    """

    def open(self, context: CommitterContext, /) -> None:
        """Called before the other methods, with the ids of job and sink and a directory on checkpoint storage.

        The job's id begins with a mark of that directory. A job with the same id and a new directory starts with the same numbers,
        and must not be taken for the former job.
        """

    @abstractmethod
    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int, /) -> None:
        """Confirm that all records of this subtask and attempt up to this id were sent. Return when this is durable."""

    @abstractmethod
    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int, /) -> bool:
        """Return whether this id, or a later one of the same attempt and subtask, was confirmed."""

    def close(self) -> None:
        """Called after the last call."""


class FileCheckpointCommitter(CheckpointCommitter):
    """Keep confirmations in files beside the job's checkpoints, one for each subtask and attempt."""

    def open(self, context: CommitterContext) -> None:
        self._files = Files(context.staging)

    def _name(self, subtask_index: int, checkpoint_id: int) -> str:
        return f"confirmed/{checkpoint_id >> ROUND_BITS}-{subtask_index}"

    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int) -> None:
        self._files.replace(self._name(subtask_index, checkpoint_id), json.dumps({"last": checkpoint_id}).encode())

    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int) -> bool:
        content = self._files.read_if_exists(self._name(subtask_index, checkpoint_id))
        return content is not None and int(json.loads(content)["last"]) >= checkpoint_id


class DatabaseCheckpointCommitter(CheckpointCommitter):
    """Keep confirmations in a table ``tidegate_confirmations``.

    ``connect`` returns a connection of a database module (sqlite3, psycopg, pymysql ...). ``mark`` is the mark of a value in its
    statements, ``?`` or ``%s``.
    """

    def __init__(self, connect: Callable[[], Any], mark: str = "%s") -> None:
        self._connect, self._mark = connect, mark

    def open(self, context: CommitterContext) -> None:
        self._sink = f"{context.sink_id} {context.job_id}"[:200]
        columns = "sink varchar(200), subtask integer, attempt bigint, last bigint NOT NULL"
        self._execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({columns}, PRIMARY KEY (sink, subtask, attempt))", ())

    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int) -> None:
        key = (self._sink, subtask_index, checkpoint_id >> ROUND_BITS)
        if self._last(key) is None:
            self._execute(
                f"INSERT INTO {_TABLE} (sink, subtask, attempt, last) VALUES (?, ?, ?, ?)", (*key, checkpoint_id)
            )
        else:
            self._execute(
                f"UPDATE {_TABLE} SET last = ? WHERE sink = ? AND subtask = ? AND attempt = ?", (checkpoint_id, *key)
            )

    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int) -> bool:
        last = self._last((self._sink, subtask_index, checkpoint_id >> ROUND_BITS))
        return last is not None and last >= checkpoint_id

    def _last(self, key: tuple[Any, ...]) -> int | None:
        found = self._execute(f"SELECT last FROM {_TABLE} WHERE sink = ? AND subtask = ? AND attempt = ?", key)
        return int(found[0][0]) if found else None

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        connection = self._connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement.replace("?", self._mark), values)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(found)
        finally:
            connection.close()


class GenericWriteAheadSink(Sink):
    """A base class for write-ahead sinks. Extend it, and pass an instance to ``sink_to``. ``committer`` keeps confirmations."""

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.WRITE_AHEAD

    def __init__(self, committer: CheckpointCommitter | None = None) -> None:
        self.committer = committer or FileCheckpointCommitter()

    @abstractmethod
    def send_values(self, values: list[Any], checkpoint_id: int, timestamp: int, /) -> bool:
        """Send the records of one subtask and round, in their order. Called on the driver when the checkpoint is complete.

        Return False if the records could not be sent: the call is retried later. It is also retried after any error except
        ``CommitError``. ``timestamp`` is the start of the round in milliseconds.
        """

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _WriteAheadWriter(context)

    def create_committer(self, context: CommitterContext) -> Committer:
        self.committer.open(replace(context, job_id=f"{mark_for(context)} {context.job_id}"))
        return _SendingCommitter(self, context)


class _WriteAheadWriter(SinkWriter):
    """Stage the records of an attempt in a file."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._file = StagedFile(context, _DIRECTORY, aside=True, strong=True)  # strong: the content is unpickled

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if values:
            self._file.write_frame(cloudpickle.dumps(values))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._file.has_content:
            return Prepared()
        (address, size, content_hash), context = self._file.finish(), self._context
        faults.point("K2.write-ahead.kept", attempt=context.attempt)
        staged = {"address": address, "size": size, "hash": content_hash, "id": number_of_round(context)}
        return Prepared([{**staged, "subtask": context.subtask, "timestamp": context.now_ms}])

    def abort(self) -> None:
        self._file.drop()

    def close(self) -> None:
        self._file.close()


class _SendingCommitter(Committer):
    """Ask whether records were confirmed, send them, confirm them, delete their file.

    A crash between sending and confirming sends the records again. A crash between the other steps does no harm.
    """

    def __init__(self, sink: GenericWriteAheadSink, context: CommitterContext) -> None:
        self._sink, self._confirmations = sink, sink.committer
        self._context = context

    def commit(self, committables: list[Any]) -> None:
        for staged in committables:
            try:
                self._commit(staged)
            except (CommitError, RetryableCommitError):
                raise
            except Exception as error:
                raise _not_sent(staged, f"{type(error).__name__}: {error}") from error

    def _commit(self, staged: dict[str, Any]) -> None:
        if not self._confirmations.is_checkpoint_committed(staged["subtask"], staged["id"]):
            values = list(_values(staged))
            faults.point("K6.write-ahead.before-send", address=staged["address"])
            if not self._sink.send_values(values, staged["id"], staged["timestamp"]):
                raise _not_sent(staged, "send_values returned False")
            faults.point("K6.write-ahead.sent", address=staged["address"])
            self._confirmations.commit_checkpoint(staged["subtask"], staged["id"])
            faults.point("K6.write-ahead.confirmed", address=staged["address"])
        delete_staged(staged["address"])

    def abort(self, committables: list[Any]) -> None:
        for staged in committables:
            delete_staged(staged["address"])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {staged["address"] for staged in committables}
        listed = Files(self._context.staging).list(_DIRECTORY)
        delete_lingering(self._context, listed, wanted, "K2.write-ahead.listed")

    def close(self) -> None:
        self._confirmations.close()


def _values(staged: dict[str, Any]) -> Iterable[Any]:
    try:
        data = read_staged(staged["address"], staged["size"], staged["hash"])
    except CorruptFileError as error:
        raise OutputLostError(
            "The staged records of a completed checkpoint are damaged or missing, and cannot be sent",
            where=staged["address"],
            found=error.found,
            cure="restore the file from a backup and start the job again; the records are stored nowhere else",
        ) from error
    for frame in frames_of(data):
        yield from load_stored(frame)


def _not_sent(staged: dict[str, Any], found: str) -> RetryableCommitError:
    return RetryableCommitError(
        "A write-ahead sink failed to send the records of a completed checkpoint",
        where=f"write-ahead sink, {staged['address']}",
        found=found,
        cure="check the outside system; the job retries the commit",
    )
