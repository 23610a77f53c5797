"""Snapshots as things users own: given to a job for good, and thrown away."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidegate.checkpoint.lineage import all_completed, read_lineage
from tidegate.checkpoint.locate import Located, locate_exactly
from tidegate.checkpoint.metadata import FILE_NAME, SAVEPOINT, metadata_path, read_metadata
from tidegate.common.errors import RestoreError, SnapshotInUseError, TidegateError
from tidegate.common.files import Files

logger = logging.getLogger(__name__)


def delete_snapshot(address: str) -> bool:
    """Delete a savepoint, or a checkpoint of a job that has ended with the files no other checkpoint beside it needs. Whether it is
    gone; storage that fails is logged, and it can be tried again."""
    try:
        if not Files(address).exists(FILE_NAME):
            return True
        located = locate_exactly(address)
        if located.metadata.kind == SAVEPOINT:
            _delete_savepoint(address)
        else:
            _delete_checkpoint(located)
    except TidegateError as error:
        logger.warning("%s could not be deleted: %s", address, error)
        return False
    return True


def _delete_checkpoint(located: Located) -> None:
    files, own = located.root, located.metadata
    others = [point for point in all_completed(files) if point.checkpoint_id != own.checkpoint_id]
    needed = [read_metadata(files, metadata_path(point.checkpoint_id)).paths() for point in others]
    files.delete(metadata_path(own.checkpoint_id))  # first: what can be read can be restored
    files.delete_tree(located.directory)
    for path in sorted(own.paths().difference(*needed)):
        files.delete(path)


def dispose(path: str, jobs: Iterable[str] = ()) -> None:
    """Delete a savepoint for good. ``jobs``: directories on checkpoint storage of jobs that may stand on it.

    Refused, with nothing changed: what is no savepoint; one that a job has begun with and still needs, until it has a checkpoint of
    its own; and one that a job has claimed, and will delete itself.
    """
    located = locate_exactly(path)
    if located.metadata.kind != SAVEPOINT:
        raise RestoreError(
            "Only savepoints are disposed of: checkpoints are their job's own.",
            where=located.address,
            found=f"checkpoint {located.metadata.checkpoint_id} of job {located.metadata.job_id}",
            cure="let the job delete it, or delete the directory of a job that will never go on",
        )
    for directory in jobs:
        _refuse_if_needed(located.address, directory)
    _delete_savepoint(located.address)


def _delete_savepoint(address: str) -> None:
    """``_metadata`` first: what is half gone cannot be taken for a savepoint."""
    Files(address).delete(FILE_NAME)
    Files(address).delete_tree("")


def _refuse_if_needed(address: str, directory: str) -> None:
    try:
        lineage = read_lineage(Files(directory))
    except TidegateError as error:
        logger.warning("whether the job in %s needs %s cannot be told: %s", directory, address, error)
        return
    stands_on_it = lineage.latest is not None and lineage.latest.directory == address
    if stands_on_it or lineage.claimed == address:
        raise SnapshotInUseError(
            "A savepoint that a job stands on is not disposed of.",
            where=address,
            found=f"the job in {directory} has begun with it, and has no checkpoint of its own yet"
            if stands_on_it
            else f"the job in {directory} has claimed it, and deletes it when it is subsumed",
            cure="wait for the job's first checkpoint, or cancel the job",
        )
