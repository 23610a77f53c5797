"""Delete snapshots: those that a job has claimed, and those that a user disposes of."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidegate.base.clock import Clock, SystemClock
from tidegate.base.errors import SnapshotInUseError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.lease_records import AttemptStatus, RestorePoint
from tidegate.checkpoint.locate import Located, all_completed, locate_exactly, read_lineage
from tidegate.checkpoint.metadata import FILE_NAME, SAVEPOINT, SHARED, metadata_path, read_metadata

logger = logging.getLogger(__name__)


def delete_snapshot(address: str) -> bool:
    """Delete a savepoint or a checkpoint of a job that has ended, and return whether the snapshot is gone.

    A checkpoint's files are deleted unless another checkpoint in the same directory needs them. A storage failure is logged, and
    the call can be retried."""
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
    _delete(located, _needed_by_others(located.root, located.metadata.checkpoint_id))


def _needed_by_others(files: Files, number: int) -> set[str]:
    """Return the files that other checkpoints in the directory refer to. Raises if one of these checkpoints cannot be read."""
    others = [point.checkpoint_id for point in all_completed(files) if point.checkpoint_id != number]
    return {path for other in others for path in read_metadata(files, metadata_path(other)).paths()}


def _delete(located: Located, needed: set[str]) -> None:
    files, own = located.root, located.metadata
    files.delete(metadata_path(own.checkpoint_id))  # first: metadata that can be read must restore
    files.delete_tree(located.directory)
    for path in sorted(own.paths() - needed):
        files.delete(path)


def dispose(path: str, jobs: Iterable[str] = (), *, force: bool = False, clock: Clock | None = None) -> None:
    """Delete a savepoint, or a checkpoint of a job that has ended, for good. ``jobs``: directories on checkpoint storage of jobs
    that may need the snapshot.

    Refused, with nothing changed:

    - a snapshot that a job has started from, until the job has a checkpoint of its own;
    - a snapshot that a job has claimed and will delete itself;
    - a checkpoint of a job whose driver is alive, or that the job still needs (``_dispose_checkpoint``);
    - a snapshot if the directory of a job cannot be read, so nobody knows whether the job needs the snapshot.

    ``force`` deletes in the last case, and also deletes the latest checkpoint of a job that could continue.
    """
    located = locate_exactly(path, "The path to dispose of")
    for directory in jobs:
        _refuse_if_needed(located.address, directory, force)
    if located.metadata.kind == SAVEPOINT:
        _delete_savepoint(located.address)
    else:
        _dispose_checkpoint(located, clock or SystemClock(), force)


def _dispose_checkpoint(located: Located, clock: Clock, force: bool) -> None:
    """Delete as the driver's step 9 does, with the lease of the job: record what counts from now on, check the lease, delete. The
    latest checkpoint is deleted last: without it the job would continue from an older one, and duplicate committed output."""
    files, number = located.root, located.metadata.checkpoint_id
    lease = acquire(files, clock, job_id=located.metadata.job_id)
    try:
        lineage = read_lineage(files, below=lease.token)
        others = [point for point in lineage.retained if point.checkpoint_id != number]
        is_latest = lineage.latest == RestorePoint(number, located.metadata.token)
        if is_latest and others:
            older = ", ".join(f"chk-{point.checkpoint_id}" for point in others)
            found = f"it is the latest checkpoint, and the job would restore an older one: {older}"
            raise _refused(located, found, "dispose of the older checkpoints first")
        if is_latest and lineage.status not in _OVER and not force:
            raise _refused(
                located,
                f"the job was not cancelled (it is {lineage.status.value}), and would start with empty state without it",
                "start the job and cancel it, or use --force",
            )
        needed = _needed_by_others(files, number)
        protected = [point for point in lineage.protected if point.checkpoint_id != number]
        lease.record_restored(
            lineage.latest,
            lineage.retained,
            protected,
            origin=lineage.origin,
            committed=lineage.committed,
            writing=lineage.writing,
            savepoint=lineage.savepoint,
            begun=lineage.begun,
            claimed=lineage.claimed,
        )
        if not is_latest:
            lease.record_retained(others)
        lease.record_end(lineage.status, discarded=lineage.retained if is_latest else None)
        shared = files.list(SHARED)  # before the check: if the check passes, no newer attempt had a file in this list
        lease.check()
        _delete(located, needed)
        for path in sorted(set(shared) - needed):  # files of rounds that are in no checkpoint
            files.delete(path)
    finally:
        lease.release()


_OVER = (AttemptStatus.CANCELLED, AttemptStatus.FINISHED)


def _refused(located: Located, found: str, cure: str) -> SnapshotInUseError:
    return SnapshotInUseError("The job still needs this checkpoint.", where=located.address, found=found, cure=cure)


def _delete_savepoint(address: str) -> None:
    """Delete ``_metadata`` first, so that a half deleted directory is not taken for a savepoint."""
    Files(address).delete(FILE_NAME)
    Files(address).delete_tree("")


def _refuse_if_needed(address: str, directory: str, force: bool) -> None:
    try:
        lineage = read_lineage(Files(directory))
    except TidegateError as error:
        if force:
            logger.warning("it is not known whether the job in %s needs %s: %s", directory, address, error)
            return
        raise SnapshotInUseError(
            "It is not known whether a job still needs this snapshot.",
            where=address,
            found=f"the directory of a job that may need it cannot be read: {directory}: {error}",
            cure="repair the storage and retry; or use --force if you know that no job needs the snapshot",
        ) from error
    stands_on_it = lineage.latest is not None and lineage.latest.directory == address
    if stands_on_it or lineage.claimed == address:
        raise SnapshotInUseError(
            "A job still needs this savepoint.",
            where=address,
            found=f"the job in {directory} started from it and has no checkpoint of its own yet"
            if stands_on_it
            else f"the job in {directory} has claimed it, and deletes it after it is subsumed",
            cure="wait for the job's first checkpoint, or cancel the job",
        )
