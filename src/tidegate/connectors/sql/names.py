"""Names of the transactions of a sink: no two jobs, sinks, subtasks or attempts share one, and each tells whose it is.

``tidegate-<job>-<sink>-<mark>-<lease>-<round>-<subtask>-<token>``: what stands before the lease is the ``base`` of the sink. The
mark is made once for each directory of a job: the same program with the same job id in another directory (a copy for tests, another
host) would else take the first one's prepared transactions for its own, left by a crash, and roll them back.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tidegate.base.counts import count
from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.checkpoint.lease_records import Claim, claim_path, read_undamaged
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

PREFIX = "tidegate-"
_RECORD = "sql-sink.json"
_VERSION = 1
_MOST = 16


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    base: str


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps of a prepared transaction. ``staged``: files whose rows are in it, to delete behind the commit."""

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
    """On the driver, before any writer needs it. What is written counts."""
    files = Files(context.staging)
    record = _read(files)
    if record is None:
        claim = None if context.root is None else read_undamaged(Files(context.root), claim_path(1), Claim)
        mark = (claim.nonce if claim is not None else new_token())[:12]
        job, sink = re.sub(r"[^a-zA-Z0-9_]", "_", context.job_id)[:_MOST], context.sink_id[:8]
        record = SinkRecord(base=f"{PREFIX}{job}-{sink}-{mark}")
        files.replace(_RECORD, msgspec.json.encode(record))
    return record.base


def base_of(context: WriterContext) -> str:
    """In a task: read once for each attempt of the job."""
    return _base(context.staging, context.lease)


@lru_cache(256)
def _base(staging: str, lease: int) -> str:
    record = _read(Files(staging))
    if record is None:
        raise StorageError(
            "The directory of a sink says how its transactions are named",
            where=Files(staging).location(_RECORD),
            found="no such file",
            cure="leave the job's directory alone while it runs; a restart writes it anew",
        )
    return record.base


def _read(files: Files) -> SinkRecord | None:
    content = files.read_if_exists(_RECORD)
    return None if content is None else msgspec.json.decode(content, type=SinkRecord)
