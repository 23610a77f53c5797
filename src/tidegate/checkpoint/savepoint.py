"""Savepoints on storage: a self-contained directory, which can be moved and copied anywhere.

``<target>/savepoint-<job>-<random>/`` holds copies of all state files and, published last, ``_metadata`` that names them relative
to itself. The savepoint belongs to the user: no checkpoint subsumes it, no job sweeps it, and no recovery reads it (fault C11).

**Output that was pending at its cut** is named in the savepoint, as in a checkpoint, and a restore commits this output again. A
savepoint of a job that continues commits nothing, so there are three cases for a later restore:

- *The job has committed the output since,* with its next checkpoint: the second commit does nothing.
- *The job was killed or failed before that commit:* the restore commits the output, and nothing is lost.
- *The job failed and continued from an older checkpoint:* the pending output was aborted, and its records were written again
  under other names. The sink refuses (``OutputLostError``): only the user can know whether records would be lost or duplicated.

The location of the savepoint does not matter: pending output lies outside, under full addresses. Writers close their open output
in the round of a savepoint (``WriterContext.savepoint``), so the savepoint contains nothing that the job continues to write.

**The last savepoint of a job** (stop or cancel) names no output in the end: the savepoint is published, its output is committed,
then ``settle`` removes the output from it, before anybody gets its address.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import msgspec

from tidegate.base import faults
from tidegate.base.clock import MIN_WATERMARK
from tidegate.base.errors import ConfigurationError, NoTargetError, StorageError
from tidegate.base.files import Files, verified_copy
from tidegate.base.hashing import new_token
from tidegate.checkpoint.metadata import (
    FILE_NAME,
    SAVEPOINT,
    CheckpointMetadata,
    OperatorState,
    encode_metadata,
)
from tidegate.state.refs import StateFile
from tidegate.state.snapshot import OperatorSnapshot

logger = logging.getLogger(__name__)

PURPOSE = "savepoint storage"
_JOB = 6


def new_address(target: str, job_id: str) -> str:
    """Return an unused address for a savepoint in the directory ``target``."""
    return f"{Files(target).root.rstrip('/')}/savepoint-{job_id[:_JOB]}-{new_token()}"


@dataclass(frozen=True)
class SavepointPlace:
    """The place and the names of a job's savepoints. ``directory``: the configured one. ``refusal``: why the job takes no
    savepoints. ``group``: whether the group of the directory may read them."""

    job_id: str
    job_name: str
    directory: str | None
    refusal: str | None = None
    group: bool = False

    def new_address(self, target: str | None, job: Files) -> str:
        chosen = target or self.directory
        if not chosen:
            raise NoTargetError(
                "The savepoint has no target directory",
                where=f"job {self.job_id}",
                found="none was given, and execution.checkpointing.savepoint-dir (state.savepoints.dir) is not set",
                cure="give a directory with the command, or set the key when you start the job",
            )
        address = new_address(chosen, self.job_id)
        if address.startswith(job.root + "/"):
            raise ConfigurationError(
                "The savepoint's target is inside the job's own directory, which may be deleted when the job ends",
                where=f"job {self.job_id}",
                found=f"{chosen} in {job.root}",
                cure="give another directory",
            )
        return address


@dataclass(frozen=True)
class Ending:
    """How a job ends with its last savepoint. The ending is part of the job's last checkpoint, which decides it: after that
    checkpoint is published the job ends like this, in whichever attempt (fault C10)."""

    address: str
    cancels: bool
    drained: bool

    def properties(self) -> dict[str, str]:
        return {
            "savepoint": self.address,
            "ends": "cancelled" if self.cancels else "finished",
            "drained": "yes" if self.drained else "no",
        }

    @staticmethod
    def of(metadata: CheckpointMetadata) -> Ending | None:
        """Read the ending from a checkpoint. None: the job was not asked to end with this checkpoint."""
        found = metadata.properties
        if "savepoint" not in found:
            return None
        return Ending(found["savepoint"], found.get("ends") == "cancelled", found.get("drained") == "yes")


@dataclass(frozen=True)
class Copied:
    """The progress of copying a savepoint's files."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int


class NewSavepoint:
    """A savepoint that is being written, from a cut of the job in the directory ``job``. Call ``copy``, ``publish``, maybe
    ``settle``; or ``discard``. ``drained``: event time has ended in the cut; a job that starts from the savepoint has no event time
    yet, as in Flink."""

    def __init__(self, job: Files, address: str, cut: CheckpointMetadata, *, drained: bool = False) -> None:
        self._job, self._cut = job, cut
        self._files = Files(address, PURPOSE)
        self._metadata = _self_contained(cut, drained)

    @staticmethod
    def of(ending: Ending, job: Files, cut: CheckpointMetadata) -> NewSavepoint:
        """Make the last savepoint of a job."""
        return NewSavepoint(job, ending.address, cut, drained=ending.drained)

    @property
    def address(self) -> str:
        return self._files.root

    @property
    def checkpoint_id(self) -> int:
        return self._cut.checkpoint_id

    @property
    def size(self) -> int:
        return sum(file.size for file in self._metadata.state_files())

    def paths(self) -> set[str]:
        """Return the job's files that the savepoint copies: they must exist until the savepoint is complete."""
        return self._cut.paths()

    def copy(self, threads: int) -> Generator[Copied, None, None]:
        """Copy all files, ``threads`` at a time; one thread is the caller's own. Yields the progress after each file. When the
        generator is closed, or raises ``CorruptFileError`` for a damaged file, it first waits for the copies in progress: nothing
        is written after that."""
        self._files.make_directory()
        files = self._cut.state_files()
        done, size, whole = 0, 0, sum(file.size for file in files)
        with contextlib.closing(self._copies(files, threads)) as copies:
            for file in copies:
                done, size = done + 1, size + file.size
                yield Copied(done, len(files), size, whole)
        faults.point("C11.copied", savepoint=self.address)

    def _copies(self, files: Sequence[StateFile], threads: int) -> Generator[StateFile, None, None]:
        """Copy the files, and yield each file when its copy is complete."""
        if threads == 1 or len(files) < 2:
            yield from map(self._copy, files)
            return
        with ThreadPoolExecutor(min(threads, len(files)), "tidegate-savepoint") as pool:
            waiting = [pool.submit(self._copy, file) for file in files]
            try:
                for ready in as_completed(waiting):
                    yield ready.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _copy(self, file: StateFile) -> StateFile:
        verified_copy(self._job, file.path, self._files, _name(file), size=file.size, hash=file.hash)
        return file

    def publish(self) -> None:
        """Publish the metadata: the savepoint is complete when this returns. A second call, also by another process, is safe."""
        content = encode_metadata(self._metadata, self._job.signing_key)
        try:
            self._files.publish(FILE_NAME, content)
        except (FileExistsError, StorageError):
            # Whether the publish took effect anyway is read from storage. A settled savepoint was complete before.
            if self._files.read_if_exists(FILE_NAME) not in (content, self._settled()):
                raise
        faults.point("C11.published", savepoint=self.address)
        logger.info("job %s: savepoint %d is complete: %s", self._cut.job_id, self.checkpoint_id, self.address)

    def settle(self) -> None:
        """Remove the output from the savepoint: all of it is committed, so no restore has to commit it again."""
        self._files.replace(FILE_NAME, self._settled())
        faults.point("C10.settled", savepoint=self.address)

    @property
    def is_published(self) -> bool:
        return self._files.exists(FILE_NAME)

    def discard(self) -> None:
        """Delete the incomplete savepoint. Best effort."""
        discard(self.address)

    def _settled(self) -> bytes:
        operators = [msgspec.structs.replace(operator, committables=[]) for operator in self._metadata.operators]
        settled = msgspec.structs.replace(self._metadata, operators=operators)
        return encode_metadata(settled, self._job.signing_key)


def discard(address: str) -> None:
    """Delete a savepoint, ``_metadata`` first. Best effort: a storage failure is logged."""
    files = Files(address, PURPOSE)
    try:
        files.delete(FILE_NAME)
        files.delete_tree("")
    except StorageError as error:
        logger.warning("an incomplete savepoint could not be deleted: %s", error)


def discard_unfinished(address: str) -> None:
    """Do as ``discard`` if the savepoint was never published: a driver that died may have left it."""
    with contextlib.suppress(StorageError):
        if not Files(address, PURPOSE).exists(FILE_NAME):
            discard(address)


def _self_contained(cut: CheckpointMetadata, drained: bool) -> CheckpointMetadata:
    operators = [_moved(operator, drained) for operator in cut.operators]
    return msgspec.structs.replace(cut, kind=SAVEPOINT, operators=operators, finished=False, properties={})


def _moved(operator: OperatorState, drained: bool) -> OperatorState:
    subtasks = [snapshot.with_files(_beside) for snapshot in operator.subtasks]
    if drained:
        subtasks = [OperatorSnapshot(snapshot.parts, MIN_WATERMARK) for snapshot in subtasks]
    return msgspec.structs.replace(operator, subtasks=subtasks)


def _beside(file: StateFile) -> StateFile:
    return msgspec.structs.replace(file, path=_name(file))


def _name(file: StateFile) -> str:
    return file.path.rpartition("/")[2]
