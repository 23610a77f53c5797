"""What a sink writes down beside its staging files: whose transactions are whose, and on which brokers they are.

A transactional id names prefix, job and sink. That is not enough: the same program with the same job id in another checkpoint
directory (a copy for tests, another host) would take the first one's open transactions for its own, left by a crash, and abort
them. So ids carry a mark as well, which is made once for each directory, whatever the job does later.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.checkpoint.lease_records import Claim, claim_path, read_undamaged
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

NAME = "kafka-sink.json"
VERSION = 1


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``base``: what the transactional ids of the sink start with. No secret is in it: tools are given those."""

    version: int = VERSION
    mark: str
    base: str
    prefix: str
    servers: str
    timeout_ms: int


def legal_name(job_id: str) -> str:
    """A job's id as a part of a transactional id."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", job_id)


def mark_for(context: CommitterContext) -> str:
    """On the driver. What is written counts; else the first claim of the directory, which stays for ever, gives one."""
    known = read(Files(context.staging))
    if known is not None:
        return known.mark
    claim = None if context.root is None else read_undamaged(Files(context.root), claim_path(1), Claim)
    return (claim.nonce if claim is not None else new_token())[:12]


def write(files: Files, record: SinkRecord) -> None:
    """Before any writer needs it. Written again with every start: brokers get other addresses."""
    if read(files) != record:
        files.replace(NAME, msgspec.json.encode(record))


def read(files: Files) -> SinkRecord | None:
    content = files.read_if_exists(NAME)
    return None if content is None else msgspec.json.decode(content, type=SinkRecord)


def base_of(context: WriterContext) -> str:
    """In a task: read once for each attempt of the job."""
    return _base(context.staging, context.lease)


@lru_cache(256)
def _base(staging: str, lease: int) -> str:
    record = read(Files(staging))
    if record is None:
        raise StorageError(
            "The directory of a Kafka sink says how its transactions are named",
            where=Files(staging).location(NAME),
            found="no such file",
            cure="leave the job's directory alone while it runs; a restart writes it anew",
        )
    return f"{record.base}-{lease}"
