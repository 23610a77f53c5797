"""From ``execution.state-recovery.path`` to a checkpoint: a ``chk-n``, its ``_metadata``, or a job's directory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.checkpoint.lease_records import DIRECTORY, RestorePoint
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.metadata import FILE_NAME, SAVEPOINT, CheckpointMetadata, metadata_path, read_metadata
from tidegate.common.errors import CorruptFileError, RestoreError
from tidegate.common.files import Files

_CURE = "give a chk-<n> directory, its _metadata file, or the directory of a job"


@dataclass(frozen=True)
class Located:
    """A checkpoint that was found and read. State file paths are relative to ``root``."""

    root: Files
    directory: str
    """The checkpoint's own directory, relative to the root; empty for a savepoint."""
    metadata: CheckpointMetadata

    @property
    def address(self) -> str:
        return self.root.location(self.directory)

    def check_files(self) -> None:
        """Raise ``CorruptFileError`` naming every state file that is missing or has another size. Reads no content."""
        problems = []
        for file in self.metadata.state_files():
            if not self.root.exists(file.path):
                problems.append(f"{file.path}: no such file, expected {file.size} bytes, xxh3-128 {file.hash}")
            elif (size := self.root.size(file.path)) != file.size:
                problems.append(f"{file.path}: {size} bytes, expected {file.size}, xxh3-128 {file.hash}")
        if problems:
            raise CorruptFileError(
                "A checkpoint restores only if all its state files are there.",
                where=self.address,
                found="; ".join(problems),
                cure="bring the files back, or point execution.state-recovery.path at another checkpoint",
            )


def locate(path: str) -> Located:
    """Find and read the checkpoint a user's path means. ``RestoreError`` or ``CorruptFileError`` if that cannot be."""
    text = path.rstrip("/")
    if text.rpartition("/")[2] == FILE_NAME:
        text = text.rpartition("/")[0]
    here = Files(text)
    if here.exists(FILE_NAME):
        return _read_directory(here)
    if here.exists(DIRECTORY):
        return _latest_of_job(here)
    raise _not_found(here, path)


def locate_own(files: Files, point: RestorePoint) -> Located:
    """Read a checkpoint the lineage names: in the job's own directory, or where the attempt had restored from."""
    if point.directory:
        return locate(point.directory)
    path = metadata_path(point.checkpoint_id)
    try:
        metadata = read_metadata(files, path)
    except CorruptFileError as error:
        # An older one is never taken instead: this one may have been committed.
        raise CorruptFileError(
            "The latest completed checkpoint must be readable.",
            where=files.location(path),
            found=error.found,
            cure="bring the file back; to go back to an older one on purpose (output committed since then is written "
            "again), point execution.state-recovery.path at it",
        ) from error
    return Located(files, f"chk-{point.checkpoint_id}", metadata)


def _read_directory(here: Files) -> Located:
    metadata = read_metadata(here, FILE_NAME)
    if metadata.kind == SAVEPOINT:
        return Located(here, "", metadata)
    parent, _, name = here.root.rpartition("/")
    if name != f"chk-{metadata.checkpoint_id}":
        raise RestoreError(
            "A checkpoint's directory keeps its name, and stays beside the shared directory its files are in.",
            where=here.root,
            found=f"checkpoint {metadata.checkpoint_id} in a directory named {name}",
            cure=f"name it chk-{metadata.checkpoint_id} inside the job's directory",
        )
    return Located(Files(parent), name, metadata)


def _latest_of_job(here: Files) -> Located:
    lineage = read_lineage(here)
    if lineage.latest is None:
        raise RestoreError(
            "A job's directory must hold a completed checkpoint to start from it.",
            where=here.root,
            found=f"none (the last attempt: {lineage.status.value})",
            cure="start without execution.state-recovery.path, or give another checkpoint",
        )
    return locate_own(here, lineage.latest)


def _not_found(here: Files, path: str) -> RestoreError:
    names = here.list_names()
    jobs = [name for name in names if here.exists(f"{name}/{DIRECTORY}")]
    if not here.exists(""):
        found = "no such file or directory"
    elif jobs:
        found = f"a directory of jobs: {', '.join(jobs)}"
    elif re.fullmatch(r"chk-\d+", here.root.rpartition("/")[2]):
        found = "a checkpoint that was not completed: it has no _metadata"
    else:
        found = f"no checkpoint in it: {', '.join(names[:5]) or 'it is empty'}"
    return RestoreError("The path to restore from must be a checkpoint.", where=path, found=found, cure=_CURE)
