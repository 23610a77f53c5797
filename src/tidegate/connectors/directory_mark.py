"""A mark of a job's directory, for our names in outside systems that outlive the directory.

An outside system remembers "attempt 3 of this job, round 40". A program with the same job id and a new directory starts with
attempt 1. Without the mark the outside system would take it for an older attempt and discard its output silently.
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
    """Return the mark, and write it if it is missing. Called on the driver, before any writer needs the mark.

    A mark on storage is never replaced. Jobs of the same directory get the same mark.
    """
    files = Files(context.staging)
    content = files.read_if_exists(_FILE)
    if content is None:
        content = new_mark(context).encode()
        files.replace(_FILE, content)
    return content.decode()


def new_mark(context: CommitterContext) -> str:
    """From the first claim of the directory, which stays for ever; a random one for a directory without claims."""
    claim = None if context.root is None else read_undamaged(Files(context.root), claim_path(1), Claim)
    return (claim.nonce if claim is not None else new_token())[:_LENGTH]


def mark_of(context: WriterContext) -> str:
    """Read the mark in a task. Not cached: a worker may outlive the directory and see another one in its place."""
    content = Files(context.staging).read_if_exists(_FILE)
    if content is None:
        raise StorageError(
            "The mark of a sink's staging directory is missing, and names in outside systems contain it",
            where=Files(context.staging).location(_FILE),
            found="no such file",
            cure="do not change the job's directory while the job runs; restart the job to write the mark again",
        )
    return content.decode()
