"""Decide what an attempt restores, including an older checkpoint if the newest one is damaged.

The decision only reads. It is recorded with the lease before anything is touched.

**A damaged checkpoint** may be skipped only if no output would be duplicated. Step 8 follows step 7, so the output of a
complete checkpoint is committed. A job that continues from an older checkpoint makes the same output again. So skipping
needs **proof** that the damaged checkpoint had no output to commit:

- If its metadata can be read (a state file is damaged), the metadata has the number of committables.
- Otherwise the history has this number.
- The lists of the lease prove nothing: they are written before the commit, and that write may fail.

If the number is not known, skipping is refused. A checkpoint with which the job was asked to end is never skipped,
because another job may already use its savepoint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.base.plain_text import count
from tidegate.checkpoint.history import HistoryEntry, output_of, read_history
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import AttemptStatus, RestorePoint
from tidegate.checkpoint.locate import Lineage, Located, all_completed, locate_exactly, locate_own, read_lineage
from tidegate.checkpoint.metadata import FILE_NAME, metadata_path, read_metadata
from tidegate.checkpoint.savepoint import Ending
from tidegate.common.options import CHECKPOINT_RETAINED, RECOVERY_PATH, RESTORE_PREVIOUS


def newest_undamaged(files: Files, lineage: Lineage) -> tuple[Lineage, Located | None]:
    """Return the newest retained checkpoint that is undamaged, and the lineage up to it. Reads every file, writes nothing.

    ``CorruptFileError`` if no such checkpoint is left, ``RestoreError`` if output may have been committed after it.
    """
    points = list(lineage.retained)
    while points:
        try:
            located = locate_own(files, points[-1])
            located.verify_files()
        except CorruptFileError as damage:
            passed_over = points.pop()
            _refuse_if_committed(files, passed_over, damage)
            if not points:
                raise offering_previous(damage, files, lineage) from damage
            logger.warning("checkpoint %d is damaged and skipped: %s", passed_over.checkpoint_id, damage)
        else:
            return msgspec.structs.replace(lineage, latest=points[-1], retained=points), located
    return lineage, None if lineage.latest is None else locate_own(files, lineage.latest)


def offering_previous(damage: CorruptFileError, files: Files, lineage: Lineage) -> CorruptFileError:
    """Return the same error with the possible cures."""
    again = f"to accept that committed output is duplicated, set {RECOVERY_PATH.key} to an older checkpoint"
    if len(lineage.retained) > 1:
        before = files.location(f"chk-{lineage.retained[-2].checkpoint_id}")
        cure = (
            f"restore the file from a copy; or continue from {before}, the previous checkpoint, with "
            f"{RESTORE_PREVIOUS.key}=true, which is refused if output was committed after it; {again}"
        )
    else:
        cure = f"restore the file from a copy; no other checkpoint of the job is retained ({CHECKPOINT_RETAINED.key})"
    return CorruptFileError(damage.rule, where=damage.where, found=damage.found, cure=cure)


def _refuse_if_committed(files: Files, point: RestorePoint, damage: CorruptFileError) -> None:
    entry = _entry(files, point)
    output = _output(files, point)
    if output is None and entry is not None:
        output = entry.output
    if output == 0:
        return
    if output is None:
        found = "neither its metadata nor the history says whether it had output to commit, or whether the job ended with it"
        ending = _ending(files, point)
        if ending is not None:
            found = f"the job was asked to end with it: its savepoint is {ending.address}"
    else:
        done = "has been committed" if entry is not None and "commit" in entry.steps_ms else "may have been committed"
        found = f"its output ({count(output, 'committable')}) {done}, and would be duplicated"
    raise RestoreError(
        f"The damaged checkpoint cannot be skipped ({RESTORE_PREVIOUS.key}): its output may have been committed.",
        where=files.location(f"chk-{point.checkpoint_id}"),
        found=f"{damage.where}: {damage.found}; {found}",
        cure=f"restore the file from a copy; or accept duplicate output, and set {RECOVERY_PATH.key} to an older checkpoint",
    ) from damage


def _output(files: Files, point: RestorePoint) -> int | None:
    try:
        return output_of(read_metadata(files, metadata_path(point.checkpoint_id)))
    except (CorruptFileError, RestoreError):
        return None


def _ending(files: Files, point: RestorePoint) -> Ending | None:
    try:
        return Ending.of(read_metadata(files, metadata_path(point.checkpoint_id)))
    except (CorruptFileError, RestoreError):
        return None


def _entry(files: Files, point: RestorePoint) -> HistoryEntry | None:
    try:
        entries = read_history(files)
    except (StorageError, CorruptFileError, RestoreError):
        return None
    return next((entry for entry in entries if entry.checkpoint_id == point.checkpoint_id), None)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovery:
    """``located`` None: start with empty state. ``lineage``: of the job's directory, as earlier attempts have left it.

    A job with the status FINISHED has committed all its output: another run would duplicate it. For such a job call
    ``record_finished`` instead of ``record``, then ``CompletedCheckpoints.sweep``.
    """

    located: Located | None
    point: RestorePoint | None
    lineage: Lineage
    retained: list[RestorePoint] = field(default_factory=list)
    protected: list[RestorePoint] = field(default_factory=list)
    origin: str = ""
    """The user's path that the lineage began with."""
    begins: bool = False
    """Whether the lineage begins with that path now, or again."""
    claimed: str = ""
    """The snapshot outside the job's directory that the job owns from now on."""

    @property
    def previous(self) -> AttemptStatus | None:
        """How the previous attempt ended, None if there was none."""
        return self.lineage.status if self.lineage.token else None

    @property
    def committed(self) -> int:
        """The newest checkpoint of this directory that was ever complete: its output may be visible."""
        return self.lineage.committed

    @property
    def ending(self) -> Ending | None:
        """How the job has to end: it was asked to end with a savepoint, its last checkpoint is complete, and the rest of the end
        is still to do. None: the job runs."""
        if (
            self.begins
            or self.located is None
            or self.previous in (None, *_CARRIED_OUT)
            or self.point not in self.retained
        ):
            return None
        return Ending.of(self.located.metadata)

    @property
    def begins_beside_output(self) -> bool:
        """Whether the job would duplicate its output. Output is committed, and the checkpoints were deleted when the job was
        cancelled: the job would start with empty state, or from the same snapshot as before."""
        if self.previous is not AttemptStatus.CANCELLED:
            return False
        if self.located is None:
            return self.committed > 0
        again = self.begins and self.origin == self.lineage.origin
        return again and self.lineage.latest is None and self.committed > self.lineage.begun

    def record(self, lease: Lease) -> None:
        """Record the decision (fault C8), after every check of the program and before a sink or a file is touched."""
        begun = lease.last_id if self.begins else self.lineage.begun
        self._record(lease, self.point, self.retained, begun=begun)
        what = self.located.address if self.located else "nothing: it starts with empty state"
        logger.info("job %s: lease %d restores %s", lease.claim.job_id, lease.token, what)

    def record_finished(self, lease: Lease) -> None:
        """Record again that the job had finished before. Afterwards this attempt may sweep the remains of the end."""
        lineage = self.lineage
        self._record(lease, None, [], finished=True, begun=lineage.begun, savepoint=lineage.savepoint)

    def _record(self, lease: Lease, point: RestorePoint | None, retained: list[RestorePoint], **carried: Any) -> None:
        lease.record_restored(
            point,
            retained,
            self.protected,
            origin=self.origin,
            committed=self.committed,
            writing=self.lineage.writing,
            claimed=self.claimed,
            **carried,
        )


_CARRIED_OUT = (AttemptStatus.FINISHED, AttemptStatus.CANCELLED)


def origin_of(path: str) -> str:
    """Return the form in which a user's path is recorded."""
    return Files(path).root.removesuffix(f"/{FILE_NAME}")


def decide(
    files: Files, lease: Lease, path: str | None = None, *, claim: bool = False, previous: bool = False
) -> Recovery:
    """Decide what the attempt with this lease restores. Reads only: a second call gives the same decision.

    Without a path: the latest completed checkpoint by lineage, or empty state. ``path`` (``execution.state-recovery.path``):
    that checkpoint; then every checkpoint in the job's directory is protected, so going back by mistake loses nothing. A path
    counts once: a driver that is restarted with the same path continues from the later checkpoints, because their output may be
    committed. ``claim``: the job owns the snapshot of the path. ``previous``: a damaged checkpoint may be skipped
    (``newest_undamaged``).
    """
    faults.point("C8.deciding", token=lease.token)
    try:
        return _decide(files, lease, path, claim, previous)
    except (CorruptFileError, RestoreError):
        lease.check()  # a newer attempt may have cleaned up meanwhile: then that is the cause
        raise


def _decide(files: Files, lease: Lease, path: str | None, claim: bool, previous: bool) -> Recovery:
    origin = origin_of(path) if path else ""
    if origin:
        before = _lineage_if_readable(files, lease)
        goes_on = before.latest is not None or before.status is AttemptStatus.FINISHED
        if before.origin != origin or not goes_on:
            return _explicit(files, before, locate_exactly(origin), origin, claim)
        logger.warning(
            "job %s started from %s before and continues with its own later checkpoints", lease.claim.job_id, origin
        )
    lineage = read_lineage(files, below=lease.token, damaged=True)
    if previous:
        lineage, located = newest_undamaged(files, lineage)
    else:
        located = _latest(files, lineage)
    if located is not None and lineage.latest is not None:
        _refuse_other_job(located, lease, lineage.latest)
    return Recovery(
        located,
        lineage.latest,
        lineage,
        lineage.retained,
        lineage.protected,
        lineage.origin,
        claimed=lineage.claimed,
    )


def _latest(files: Files, lineage: Lineage) -> Located | None:
    """Read the latest checkpoint. Never take an older one instead: the output of the latest may have been committed."""
    try:
        return None if lineage.latest is None else locate_own(files, lineage.latest)
    except CorruptFileError as damage:
        raise offering_previous(damage, files, lineage) from damage


def _explicit(files: Files, lineage: Lineage, located: Located, origin: str, claim: bool) -> Recovery:
    metadata = located.metadata
    own = located.root.root == files.root and bool(located.directory)
    point = RestorePoint(metadata.checkpoint_id, metadata.token, "" if own else located.address)
    protected = {kept.checkpoint_id: kept for kept in (*lineage.protected, *lineage.retained, *all_completed(files))}
    retained = [protected.pop(point.checkpoint_id, point)] if own and claim else []
    kept_for_good = sorted(protected.values(), key=lambda kept: kept.checkpoint_id)
    claimed = located.address if claim and not own else ""
    return Recovery(located, point, lineage, retained, kept_for_good, origin, begins=True, claimed=claimed)


def _lineage_if_readable(files: Files, lease: Lease) -> Lineage:
    try:
        return read_lineage(files, below=lease.token)
    except (CorruptFileError, RestoreError) as error:
        # The user named a checkpoint, maybe because of this very damage. The checkpoints here are protected by listing.
        logger.warning("job %s: lease records before %d are not used: %s", lease.claim.job_id, lease.token, error)
        return Lineage()


def _refuse_other_job(located: Located, lease: Lease, point: RestorePoint) -> None:
    if not point.directory and located.metadata.job_id != lease.claim.job_id:
        raise RestoreError(
            "The latest checkpoint in the job's directory belongs to another job.",
            where=located.address,
            found=f"a checkpoint of job {located.metadata.job_id}, this is job {lease.claim.job_id}",
            cure="set execution.state-recovery.path to it, and use another directory for this job",
        )
