"""Names of the transactions of a sink: no two jobs, sinks, subtasks or attempts share a name, and each name shows its owner.

``tidegate-<job>-<sink>-<mark>-<lease>-<round>-<subtask>-<token>``: the part before the lease is the ``base`` of the sink. The mark
is made once for each directory of a job. Otherwise the same program with the same job id in another directory (a copy for tests,
another host) would take prepared transactions of the first job for leftovers of its own, and roll them back.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tidegate.base.counts import count
from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.connectors.directory_mark import new_mark
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

PREFIX = "tidegate-"
_RECORD = "sql-sink.json"
_VERSION = 1
_MOST = 16


class _BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    base: str


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared transaction, as a checkpoint stores it. ``staged``: files whose rows are in it; they are deleted after the
    commit."""

    name: str
    base: str
    lease: int
    round: int
    rows: int
    staged: list[str]

    def __str__(self) -> str:
        return f"transaction {self.name} of {count(self.rows, 'row')}"


def new_name(base: str, context: WriterContext) -> str:
    return f"{base}-{context.lease}-{context.round}-{context.subtask}-{new_token()[:12]}"


def base_for(context: CommitterContext) -> str:
    """Called on the driver, before any writer. A base that is already recorded counts."""
    files = Files(context.staging)
    record = _read(files)
    if record is None:
        mark = new_mark(context)
        job, sink = re.sub(r"[^a-zA-Z0-9_]", "_", context.job_id)[:_MOST], context.sink_id[:8]
        record = _BaseRecord(base=f"{PREFIX}{job}-{sink}-{mark}")
        files.replace(_RECORD, msgspec.json.encode(record))
    return record.base


def base_of(context: WriterContext) -> str:
    """Called in a task. Reads the record once for each attempt of the job."""
    return _base(context.staging, context.lease)


@lru_cache(256)
def _base(staging: str, lease: int) -> str:
    record = _read(Files(staging))
    if record is None:
        raise StorageError(
            "The record with the names of the sink's transactions is missing",
            where=Files(staging).location(_RECORD),
            found="no such file",
            cure="do not delete files of a running job; restart the job, which writes the record again",
        )
    return record.base


def _read(files: Files) -> _BaseRecord | None:
    content = files.read_if_exists(_RECORD)
    return None if content is None else msgspec.json.decode(content, type=_BaseRecord)
