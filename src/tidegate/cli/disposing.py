"""Deleting a savepoint, if no job may have to restore it."""

from __future__ import annotations

import contextlib

from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.locate import locate
from tidegate.checkpoint.metadata import FILE_NAME, SAVEPOINT
from tidegate.common.errors import RefusedError, SnapshotInUseError, TidegateError
from tidegate.common.files import Files
from tidegate.control import registry
from tidegate.control.registry import JobRecord


def dispose(path: str) -> str:
    """``_metadata`` goes first, so that it is a savepoint no more from then on. Gives the address of what was deleted."""
    found = locate(path)
    if found.metadata.kind != SAVEPOINT:
        raise RefusedError(
            "Only savepoints are disposed of: checkpoints belong to their job, which deletes them",
            where=found.address,
            found=f"checkpoint {found.metadata.checkpoint_id} of job {found.metadata.job_id}",
            cure="cancel the job, or delete the directory of a job that is not needed any more",
        )
    for record in registry.newest_runs(registry.records()):
        if _needs(record, found.root.root):
            raise SnapshotInUseError(
                "A savepoint that a job started from is needed until the job has a checkpoint of its own",
                where=found.address,
                found=f"job {record.job_id} ('{record.name}', {record.state}) would go back to it",
                cure="wait for its first checkpoint (tidegate checkpoint JOB), or end the job",
            )
    found.root.delete(FILE_NAME)
    found.root.delete_tree("")
    return found.root.root


def _needs(record: JobRecord, savepoint: str) -> bool:
    """Also a job whose driver died: it may be started again."""
    if record.state in ("FINISHED", "CANCELED") or record.checkpoint_interval_ms is None:
        return False
    with contextlib.suppress(TidegateError):  # of a directory that is gone nothing can go on
        latest = read_lineage(Files(record.directory)).latest
        return latest is not None and bool(latest.directory) and Files(latest.directory).root == savepoint
    return False
