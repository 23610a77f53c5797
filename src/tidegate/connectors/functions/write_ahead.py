"""Write-ahead sinks for users: records are kept with the checkpoint, and sent in one go when it is complete.

For outside systems without transactions. What was sent is confirmed durably by a ``CheckpointCommitter``, so that a repeated commit
sends nothing again. **Between sending and confirming lies a gap** (K6): a crash there sends the records of that subtask and round
again. An outside system where that does no harm (upserts), or which stores the confirmation with the records, has none.
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import cloudpickle

from tidegate.base import faults
from tidegate.base.errors import CommitError, CorruptFileError, OutputLostError, RetryableCommitError
from tidegate.base.files import FileHandle, Files, FileWriter
from tidegate.base.pickling import load_stored
from tidegate.connectors.directory_mark import mark_for
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
_ROUND_BITS = 32
_TABLE = "tidegate_confirmations"


class CheckpointCommitter(ABC):
    """Remembers durably what was sent. Ids grow while an attempt of the job runs; a new attempt begins with greater ones (the
    upper half of an id is the attempt). Lives on the driver, and pickles with its sink."""

    def open(self, context: CommitterContext) -> None:
        """Before the other calls, with the job's id, the sink's and a directory on checkpoint storage. The job's id has a mark of
        that directory in front: a job of the same id whose directory was deleted begins with the same ids, and is another one."""

    @abstractmethod
    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int) -> None:
        """All of this subtask up to this id, of the same attempt, was sent. When this returns it is durable."""

    @abstractmethod
    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int) -> bool:
        """Whether it was confirmed: this id, or a later one of the same attempt and subtask."""

    def close(self) -> None:
        """Behind the last call."""


class FileCheckpointCommitter(CheckpointCommitter):
    """Confirmations in files beside the job's checkpoints: one for each subtask and attempt."""

    def open(self, context: CommitterContext) -> None:
        self._files = Files(context.staging)

    def _name(self, subtask_index: int, checkpoint_id: int) -> str:
        return f"confirmed/{checkpoint_id >> _ROUND_BITS}-{subtask_index}"

    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int) -> None:
        self._files.replace(self._name(subtask_index, checkpoint_id), json.dumps({"last": checkpoint_id}).encode())

    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int) -> bool:
        content = self._files.read_if_exists(self._name(subtask_index, checkpoint_id))
        return content is not None and int(json.loads(content)["last"]) >= checkpoint_id


class DatabaseCheckpointCommitter(CheckpointCommitter):
    """Confirmations in a table ``tidegate_confirmations``. ``connect``: gives a connection of a database module (sqlite3, psycopg,
    pymysql ...). ``mark``: how a statement marks a value there, ``?`` or ``%s``."""

    def __init__(self, connect: Callable[[], Any], mark: str = "%s") -> None:
        self._connect, self._mark = connect, mark

    def open(self, context: CommitterContext) -> None:
        self._sink = f"{context.sink_id} {context.job_id}"[:200]
        columns = "sink varchar(200), subtask integer, attempt bigint, last bigint NOT NULL"
        self._ask(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({columns}, PRIMARY KEY (sink, subtask, attempt))", ())

    def commit_checkpoint(self, subtask_index: int, checkpoint_id: int) -> None:
        key = (self._sink, subtask_index, checkpoint_id >> _ROUND_BITS)
        if self._last(key) is None:
            self._ask(f"INSERT INTO {_TABLE} (sink, subtask, attempt, last) VALUES (?, ?, ?, ?)", (*key, checkpoint_id))
        else:
            self._ask(
                f"UPDATE {_TABLE} SET last = ? WHERE sink = ? AND subtask = ? AND attempt = ?", (checkpoint_id, *key)
            )

    def is_checkpoint_committed(self, subtask_index: int, checkpoint_id: int) -> bool:
        last = self._last((self._sink, subtask_index, checkpoint_id >> _ROUND_BITS))
        return last is not None and last >= checkpoint_id

    def _last(self, key: tuple[Any, ...]) -> int | None:
        found = self._ask(f"SELECT last FROM {_TABLE} WHERE sink = ? AND subtask = ? AND attempt = ?", key)
        return int(found[0][0]) if found else None

    def _ask(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
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
    """Extend it, and hand it to ``sink_to``. ``committer``: where confirmations are kept."""

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.WRITE_AHEAD

    def __init__(self, committer: CheckpointCommitter | None = None) -> None:
        self.committer = committer or FileCheckpointCommitter()

    @abstractmethod
    def send_values(self, values: list[Any], checkpoint_id: int, timestamp: int) -> bool:
        """On the driver, when the checkpoint is complete: send the records of one subtask and round, in their order. False: they
        could not be sent, try again later; an error is tried again too, but for ``CommitError``. ``timestamp``: when the round
        began, in milliseconds."""

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _KeepingWriter(context)

    def create_committer(self, context: CommitterContext) -> Committer:
        self.committer.open(replace(context, job_id=f"{mark_for(context)} {context.job_id}"))
        return _SendingCommitter(self, context)


class _KeepingWriter(SinkWriter):
    """A file for each attempt that has records."""

    def __init__(self, context: WriterContext) -> None:
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        self._context, self._files = context, Files(context.staging, strong=True)  # it is unpickled
        self._name = f"{_DIRECTORY}/{context.round:010d}-{context.subtask}-{attempt}"
        self._stream: FileWriter | None = None

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if values:
            if self._stream is None:
                self._stream = self._files.create_stream(self._name)
            data = cloudpickle.dumps(values)
            self._stream.write(len(data).to_bytes(8, "big") + data)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if self._stream is None:
            return Prepared()
        stream, self._stream = self._stream, None
        handle, context = stream.close(), self._context
        faults.point("K2.write-ahead.kept", attempt=context.attempt)
        kept = {"address": self._files.location(self._name), "size": handle.size, "hash": handle.hash}
        number = (context.lease << _ROUND_BITS) + context.round
        return Prepared([{**kept, "id": number, "subtask": context.subtask, "timestamp": context.now_ms}])

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.discard()
            self._stream = None

    def close(self) -> None:
        self.abort()


class _SendingCommitter(Committer):
    """In this order: asked whether it was confirmed, sent, confirmed, deleted. A crash between the second and the third sends
    again; between the others it does no harm."""

    def __init__(self, sink: GenericWriteAheadSink, context: CommitterContext) -> None:
        self._sink, self._confirmations = sink, sink.committer
        self._files, self._check_lease = Files(context.staging), context.check_lease

    def commit(self, committables: list[Any]) -> None:
        for kept in committables:
            try:
                self._commit(kept)
            except (CommitError, RetryableCommitError):
                raise
            except Exception as error:
                raise _not_sent(kept, f"{type(error).__name__}: {error}") from error

    def _commit(self, kept: dict[str, Any]) -> None:
        if not self._confirmations.is_checkpoint_committed(kept["subtask"], kept["id"]):
            values = list(_values(kept))
            faults.point("K6.write-ahead.before-send", address=kept["address"])
            if not self._sink.send_values(values, kept["id"], kept["timestamp"]):
                raise _not_sent(kept, "send_values returned False")
            faults.point("K6.write-ahead.sent", address=kept["address"])
            self._confirmations.commit_checkpoint(kept["subtask"], kept["id"])
            faults.point("K6.write-ahead.confirmed", address=kept["address"])
        _delete(kept["address"])

    def abort(self, committables: list[Any]) -> None:
        for kept in committables:
            _delete(kept["address"])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {kept["address"] for kept in committables}
        listed = list(self._files.list(_DIRECTORY))
        faults.point("K2.write-ahead.listed", files=len(listed))
        self._check_lease()
        for name in listed:
            if self._files.location(name) not in wanted:
                self._files.delete(name)

    def close(self) -> None:
        self._confirmations.close()


def _values(kept: dict[str, Any]) -> Iterable[Any]:
    directory, _, name = kept["address"].rpartition("/")
    try:
        data = Files(directory).read(FileHandle(name, kept["size"], kept["hash"]))
    except CorruptFileError as error:
        raise OutputLostError(
            "The records of a write-ahead sink that a completed checkpoint holds are damaged or gone",
            where=kept["address"],
            found=error.found,
            cure="bring the file back, and start the job again; the records are nowhere else",
        ) from error
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "big")
        yield from load_stored(data[at + 8 : at + 8 + length])
        at += 8 + length


def _delete(address: str) -> None:
    directory, _, name = address.rpartition("/")
    Files(directory).delete(name)


def _not_sent(kept: dict[str, Any], found: str) -> RetryableCommitError:
    return RetryableCommitError(
        "the records of a completed checkpoint must be sent",
        where=f"write-ahead sink, {kept['address']}",
        found=found,
        cure="see what the outside system says; it is tried again",
    )
