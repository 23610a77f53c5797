"""Continue from the previous checkpoint because the newest one is damaged, only if no output would be duplicated.

Step 8 follows step 7: the output of a complete checkpoint is committed, and a job that continues from an older checkpoint makes
the same output again. So a damaged checkpoint may be skipped only if it is **known** that it had no output to commit. Its metadata
says so, if the metadata can be read (a state file is damaged); else the history, which has the number. The lists of the lease do
not say so: they are written before the commit, and that write may fail. If the number is not known, skipping is refused. A
checkpoint with which the job was asked to end is never skipped: another job may already use its savepoint.
"""

from __future__ import annotations

import logging

import msgspec

from tidegate.base.counts import count
from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.history import HistoryEntry, output_of, read_history
from tidegate.checkpoint.lease_records import RestorePoint
from tidegate.checkpoint.lineage import Lineage
from tidegate.checkpoint.locate import Located, locate_own
from tidegate.checkpoint.metadata import metadata_path, read_metadata
from tidegate.checkpoint.savepoint import Ending
from tidegate.common.options import CHECKPOINT_RETAINED, RECOVERY_PATH, RESTORE_PREVIOUS

logger = logging.getLogger(__name__)


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
