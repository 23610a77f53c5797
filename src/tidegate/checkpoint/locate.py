"""Find a snapshot by its path, and the completed checkpoints of a job by its lineage.

``execution.state-recovery.path`` may name a savepoint, a ``chk-n``, or the ``_metadata`` of either.

The newest attempt that recorded its restore decides which completed checkpoints count. A listing of the directory never
decides.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import msgspec

from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import Files, expected_content, verify_content
from tidegate.base.hashing import SigningKey, is_strong
from tidegate.checkpoint.lease_records import (
    DIRECTORY,
    AttemptStatus,
    LiveRecord,
    RestoredRecord,
    RestorePoint,
    live_path,
    newest_token,
    read_record,
    restored_path,
)
from tidegate.checkpoint.metadata import (
    FILE_NAME,
    SAVEPOINT,
    CheckpointMetadata,
    Signature,
    decode_metadata,
    metadata_path,
    read_signed,
)
from tidegate.common.options import ACCEPT_UNSIGNED, SIGNING_KEY_FILE

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


RESTORED = "The path to restore from"
_CURE = "give a savepoint, a chk-<n> directory, or the _metadata file of either"


@dataclass(frozen=True)
class Located:
    """A checkpoint that was found and read. State file paths are relative to ``root``."""

    root: Files
    directory: str
    """The checkpoint's own directory, relative to the root; empty for a savepoint."""
    metadata: CheckpointMetadata
    signature: Signature | None = None

    @property
    def address(self) -> str:
        return self.root.location(self.directory)

    def check_signature(self, key: SigningKey | None, *, accept_unsigned: bool = False) -> None:
        """Raise ``RestoreError`` unless this key signed the snapshot. Without a key everything is accepted.

        A restore unpickles the content of the snapshot: whoever can write a snapshot can run code in the job. Call this before
        anything except the metadata of the snapshot is read.
        """
        if key is None or (self.signature is None and accept_unsigned):
            return
        if self.signature is None:
            found = "it has no signature"
            cure = f"set {ACCEPT_UNSIGNED.key}=true for one start, if you trust it: the next checkpoint is signed"
        elif not key.accepts(self.signature.text, self.signature.digest):
            found, cure = "it was signed with another key, or its metadata was changed", "use the key that signed it"
        elif weak := [file.path for file in self.metadata.state_files() if not is_strong(file.hash)]:
            found = f"{len(weak)} state files without a cryptographic hash, such as {weak[0]}"
            cure = "restore an earlier snapshot"
        else:
            return
        raise RestoreError(
            f"The snapshot was not signed by this job's key ({SIGNING_KEY_FILE.key}).",
            where=self.address,
            found=found,
            cure=cure,
        )

    def verify_files(self) -> None:
        """Raise ``CorruptFileError`` if the content of a state file has changed. Reads all state files."""
        self.check_files()
        for file in self.metadata.state_files():
            verify_content(self.root, file.path, size=file.size, hash=file.hash)

    def check_files(self) -> None:
        """Raise ``CorruptFileError`` naming every state file that is missing or has another size. Reads no content."""
        problems = []
        for file in self.metadata.state_files():
            if not self.root.exists(file.path):
                problems.append(f"{file.path}: no such file, expected {expected_content(file.size, file.hash)}")
            elif (size := self.root.size(file.path)) != file.size:
                problems.append(f"{file.path}: {size} bytes, expected {expected_content(file.size, file.hash)}")
        if problems:
            raise CorruptFileError(
                "A state file of the checkpoint is missing or damaged.",
                where=self.address,
                found="; ".join(problems),
                cure="bring the files back, or set execution.state-recovery.path to another checkpoint",
            )


def locate(path: str, what: str = RESTORED) -> Located:
    """Find and read the snapshot at a user's path, for reading only. A job's directory stands for its latest completed
    checkpoint. Raises ``RestoreError`` or ``CorruptFileError`` if there is no such snapshot."""
    here = _directory(path)
    latest = _latest_of_job(here) if here.exists(DIRECTORY) and not here.exists(FILE_NAME) else None
    return latest or locate_exactly(path, what)


def locate_exactly(path: str, what: str = RESTORED) -> Located:
    """Do as ``locate``, for a snapshot to start from or to delete: the path must name one checkpoint, not a job's directory.
    ``what``: the name of the path in messages."""
    here = _directory(path)
    if here.exists(FILE_NAME):
        return _read_directory(here)
    raise _not_found(here, path, what)


def _directory(path: str) -> Files:
    text = path.rstrip("/")
    return Files(text.rpartition("/")[0] if text.rpartition("/")[2] == FILE_NAME else text)


def locate_own(files: Files, point: RestorePoint) -> Located:
    """Read a checkpoint that the lineage names, in the job's own directory or where the attempt restored from."""
    if point.directory:
        return locate(point.directory)
    path = metadata_path(point.checkpoint_id)
    try:
        metadata, signature = read_signed(files, path)
    except CorruptFileError as error:
        # Never take an older checkpoint instead: the output of this one may have been committed.
        raise CorruptFileError(
            "The latest completed checkpoint cannot be read.",
            where=files.location(path),
            found=error.found,
            cure="restore the file from a copy; to restore an older checkpoint on purpose (output committed since then "
            "is duplicated), set execution.state-recovery.path to it",
        ) from error
    return Located(files, f"chk-{point.checkpoint_id}", metadata, signature)


def _read_directory(here: Files) -> Located:
    metadata, signature = read_signed(here, FILE_NAME)
    if metadata.kind == SAVEPOINT:
        return Located(here, "", metadata, signature)
    parent, _, name = here.root.rpartition("/")
    if name != f"chk-{metadata.checkpoint_id}":
        raise RestoreError(
            "The checkpoint's directory was renamed, or moved away from the shared directory with its files.",
            where=here.root,
            found=f"checkpoint {metadata.checkpoint_id} in a directory named {name}",
            cure=f"rename it to chk-{metadata.checkpoint_id} inside the job's directory",
        )
    return Located(Files(parent), name, metadata, signature)


def _latest_of_job(here: Files) -> Located | None:
    latest = read_lineage(here).latest
    return None if latest is None else locate_own(here, latest)


def _not_found(here: Files, path: str, what: str) -> RestoreError:
    names = names_in(here)
    if names is None:
        return RestoreError(f"{what} must be a checkpoint or a savepoint.", where=path, found="a file", cure=_CURE)
    jobs = [name for name in names if here.exists(f"{name}/{DIRECTORY}")]
    checkpoints = [name for name in names if re.fullmatch(r"chk-\d+", name)]
    cure = _CURE
    if not here.exists(""):
        found = "no such file or directory"
    elif DIRECTORY in names or checkpoints:
        found = f"the directory of a job, with {_few(checkpoints) or 'no checkpoint'}"
        cure = _which_of(here, checkpoints, what)
    elif jobs:
        found = f"a directory of jobs: {_few(jobs)}"
    elif re.fullmatch(r"chk-\d+", here.root.rpartition("/")[2]):
        found = "an incomplete checkpoint: it has no _metadata"
    elif any(name.endswith(".seg") for name in names):
        found = "an incomplete savepoint, or an incomplete copy of one: it has no _metadata"
    else:
        found = f"no checkpoint in it: {_few(names) or 'it is empty'}"
    return RestoreError(f"{what} must be a checkpoint or a savepoint.", where=path, found=found, cure=cure)


def names_in(here: Files) -> list[str] | None:
    """List the names in a directory. None: the path is a file. In an object store no path is both."""
    try:
        return here.list_names()
    except StorageError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            return None
        raise


def _which_of(here: Files, checkpoints: list[str], what: str) -> str:
    """Return the cure for the path of a job's directory: the user has to name one checkpoint."""
    try:
        latest = _latest_of_job(here)
    except (CorruptFileError, RestoreError):
        latest = None
    if latest is not None:
        return f"give one of its checkpoints; its latest completed checkpoint is {latest.address}"
    if checkpoints:
        return "give one of its checkpoints"
    return "start without execution.state-recovery.path, or give another snapshot" if what == RESTORED else _CURE


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
