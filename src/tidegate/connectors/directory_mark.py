"""A mark of a job's directory, for names of ours in outside systems that remember for longer than the directory is there.

A target that has "attempt 3 of this job, round 40" would take a program with the same job id that begins anew (its directory was
deleted, or is another one) for an older attempt, and swallow its output without a word.
"""

from __future__ import annotations

from tidegate.base.errors import StorageError
from tidegate.base.files import Files
from tidegate.base.ids import new_token
from tidegate.checkpoint.lease_records import Claim, claim_path, read_undamaged
from tidegate.operators.contracts.sink import CommitterContext, WriterContext

_FILE = "directory-mark"
_LENGTH = 12


def mark_for(context: CommitterContext) -> str:
    """On the driver, before any writer needs it. What is written counts; jobs of the same directory have the same."""
    files = Files(context.staging)
    content = files.read_if_exists(_FILE)
    if content is None:
        claim = None if context.root is None else read_undamaged(Files(context.root), claim_path(1), Claim)
        content = (claim.nonce if claim is not None else new_token())[:_LENGTH].encode()
        files.replace(_FILE, content)
    return content.decode()


def mark_of(context: WriterContext) -> str:
    """In a task. Read each time: a worker may outlive the directory, and meet another one in its place."""
    content = Files(context.staging).read_if_exists(_FILE)
    if content is None:
        raise StorageError(
            "The directory of a sink has a mark, which its names in outside systems carry",
            where=Files(context.staging).location(_FILE),
            found="no such file",
            cure="leave the job's directory alone while it runs; a restart writes it anew",
        )
    return content.decode()
