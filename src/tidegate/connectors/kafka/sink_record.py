"""The record of a Kafka sink beside its staging files: the names of its transactions, and the addresses of the brokers.

A transactional id names prefix, job and sink. That is not enough: the same program with the same job id in another checkpoint
directory (a copy for tests, another host) would take open transactions of the first job for leftovers of its own, and abort them.
So ids also carry a mark, which is made once for each directory.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.connectors.staged_file import new_mark
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

NAME = "kafka-sink.json"
VERSION = 1


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``base``: the prefix of all transactional ids of the sink. The record holds no secret: users pass secrets to tools."""

    version: int = VERSION
    mark: str
    base: str
    prefix: str
    servers: str
    timeout_ms: int


def legal_name(job_id: str) -> str:
    """A job id as part of a transactional id."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", job_id)


def mark_for(context: CommitterContext) -> str:
    """Called on the driver. A recorded mark counts."""
    known = read(Files(context.staging))
    return new_mark(context) if known is None else known.mark


def write(files: Files, record: SinkRecord) -> None:
    """Called before any writer. Every start writes the record again, because the addresses of brokers may change."""
    if read(files) != record:
        files.replace(NAME, msgspec.json.encode(record))


def read(files: Files) -> SinkRecord | None:
    content = files.read_if_exists(NAME)
    return None if content is None else msgspec.json.decode(content, type=SinkRecord)


def base_of(context: WriterContext) -> str:
    """Called in a task. Reads the record once for each attempt of the job."""
    return _base(context.staging, context.lease)


@lru_cache(256)
def _base(staging: str, lease: int) -> str:
    record = read(Files(staging))
    if record is None:
        raise StorageError(
            "The record with the names of the Kafka sink's transactions is missing",
            where=Files(staging).location(NAME),
            found="no such file",
            cure="do not delete files of a running job; restart the job, which writes the record again",
        )
    return f"{record.base}-{lease}"
