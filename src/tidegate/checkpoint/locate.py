"""Find the snapshot of ``execution.state-recovery.path``: a savepoint, a ``chk-n``, or the ``_metadata`` of either."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import Files, expected_content, verify_content
from tidegate.base.hashing import SigningKey, is_strong
from tidegate.checkpoint.lease_records import DIRECTORY, RestorePoint
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.metadata import (
    FILE_NAME,
    SAVEPOINT,
    CheckpointMetadata,
    Signature,
    metadata_path,
    read_signed,
)
from tidegate.common.options import ACCEPT_UNSIGNED, SIGNING_KEY_FILE

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
