"""Find the completed checkpoints that count: the newest attempt that recorded its restore decides, never a listing."""

from __future__ import annotations

import logging

import msgspec

from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import (
    AttemptStatus,
    LiveRecord,
    RestoredRecord,
    RestorePoint,
    live_path,
    newest_token,
    read_record,
    restored_path,
)
from tidegate.checkpoint.metadata import decode_metadata, metadata_path

logger = logging.getLogger(__name__)


class Lineage(msgspec.Struct, frozen=True):
    """The records of the newest attempt that recorded its restore decision.

    ``token`` 0: there is no such attempt. ``latest``: the checkpoint that the next attempt restores. ``retained``: the retained
    completed checkpoints up to ``latest``, oldest first. ``status``: how that attempt ended, RUNNING if it recorded no end.
    ``origin``: the user's path that the lineage began with. ``committed``: see ``LiveRecord``, 0 if there is none. The other
    fields: see ``LiveRecord`` too.
    """

    token: int = 0
    latest: RestorePoint | None = None
    retained: list[RestorePoint] = []
    protected: list[RestorePoint] = []
    status: AttemptStatus = AttemptStatus.RUNNING
    origin: str = ""
    committed: int = 0
    writing: list[str] = []
    savepoint: str = ""
    begun: int = 0
    claimed: str = ""


def read_lineage(files: Files, *, below: int | None = None, damaged: bool = False) -> Lineage:
    """Read the lineage of a job's directory, as attempts with tokens less than ``below`` (None: all) have left it. ``damaged``:
    include checkpoints that cannot be read and may belong to the attempt.

    An attempt that claimed but did not record its restore has done nothing, so the attempt before it decides. Damaged records
    raise ``CorruptFileError``: a guess could restore less than what was committed.
    """
    newest = newest_token(files) if below is None else below - 1
    for token in range(newest, 0, -1):
        restored = read_record(files, restored_path(token), RestoredRecord)
        if restored is not None:
            return _lineage_of(files, token, restored, damaged)
    _refuse_unexplained(files)
    return Lineage()


def _lineage_of(files: Files, token: int, restored: RestoredRecord, damaged: bool) -> Lineage:
    live = read_record(files, live_path(token), LiveRecord)
    if live is None:
        raise RestoreError(
            "The record of what an attempt reached is missing.",
            where=files.location(live_path(token)),
            found="no such file",
            cure="set execution.state-recovery.path to the checkpoint to restore",
        )
    known = Lineage(
        token=token,
        protected=live.protected,
        status=live.status,
        origin=live.origin,
        committed=live.committed or 0,
        writing=live.writing or [],
        savepoint=live.savepoint or "",
        begun=live.begun or 0,
        claimed=live.claimed or "",
    )
    if live.discarded:
        return known
    retained = [*live.retained, *_unrecorded(files, token, live, restored.point, damaged)]
    latest = retained[-1] if retained else restored.point
    committed = max([known.committed, *(point.checkpoint_id for point in retained)])
    return msgspec.structs.replace(known, latest=latest, retained=retained, committed=committed)


def _unrecorded(
    files: Files, token: int, live: LiveRecord, restored: RestorePoint | None, damaged: bool
) -> list[RestorePoint]:
    """Find checkpoints that were published but not recorded when the attempt ended, by asking for every id that it took."""
    elsewhere = restored.checkpoint_id if restored is not None and restored.directory else 0
    known = max((point.checkpoint_id for point in live.retained), default=elsewhere)
    found = []
    for checkpoint_id in range(max(known + 1, live.first_id), live.last_id + 1):
        path = metadata_path(checkpoint_id)
        content = files.read_if_exists(path)
        if content is not None and _is_of(token, files.location(path), content, damaged):
            found.append(RestorePoint(checkpoint_id, token))
    return found


def _is_of(token: int, location: str, content: bytes, damaged: bool) -> bool:
    try:
        return decode_metadata(location, content).token == token
    except CorruptFileError:
        if not damaged:
            raise
        return True


def _refuse_unexplained(files: Files) -> None:
    """Raise if there are checkpoints without any lease. They were copied here, so nobody knows which one was committed last."""
    names = [name for name in files.list_names() if name.startswith("chk-") and files.exists(f"{name}/_metadata")]
    if names:
        raise RestoreError(
            "The latest checkpoint of the directory is not known: its lease records are missing.",
            where=files.root,
            found=f"{', '.join(names)} and no record of the attempts that wrote them",
            cure="set execution.state-recovery.path to the checkpoint to restore, or use an empty directory",
        )


def all_completed(files: Files) -> list[RestorePoint]:
    """Return every completed checkpoint in the directory, whatever the lineage says, so that it can be protected."""
    points = []
    for name in files.list_names():
        number = name.removeprefix("chk-")
        if number.isdigit() and name != number and files.exists(metadata_path(int(number))):
            points.append(RestorePoint(int(number), _token_of(files, int(number))))
    return sorted(points, key=lambda point: point.checkpoint_id)


def _token_of(files: Files, checkpoint_id: int) -> int:
    path = metadata_path(checkpoint_id)
    try:
        return decode_metadata(files.location(path), files.read_bytes(path)).token
    except (StorageError, RestoreError) as error:
        logger.warning("%s is not readable and is not deleted: %s", files.location(path), error)
        return 0
