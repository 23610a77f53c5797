"""The committer of the file sink: it publishes finished files on the driver and deletes files of failed attempts."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.errors import (
    CommitError,
    CorruptFileError,
    OutputLostError,
    RestoreError,
    RetryableCommitError,
    StorageError,
)
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import RestorePoint
from tidegate.checkpoint.locate import Lineage, read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata, decode_metadata, metadata_path
from tidegate.connectors.files.file_format import SINK, join, same_content
from tidegate.connectors.files.parts import HiddenNames, Part, check_fragment, without_marks, write_markers
from tidegate.operators.contracts.sink import Committer, CommitterContext
from tidegate.state.snapshot import WRITER

log = logging.getLogger(__name__)


class FileCommitter(Committer):
    """Step 8: rename files, mark complete buckets, then delete the fragments of the files. Each can be repeated after a crash.

    **Why no checkpoint loses a file that it names.** A renamed file was made for this commit, and no writer state ever named it. A
    fragment that a checkpoint may name is deleted in this order: *its successor is in a completed checkpoint* (this is step 8 of
    that checkpoint) *-> read which files the retained checkpoints name -> check the lease -> delete files that none of them names*.
    Only this thread adds checkpoints, and no later checkpoint names an obsolete fragment again. If the check passes, no newer
    attempt had claimed the job when the list was read. An attempt that claims it later restores a checkpoint of that list, and
    needs no deleted file. Fragments of checkpoints that are still retained wait in ``_retired`` for a later commit or the end of
    the job. After a crash ``abort_lingering`` finds them by name.
    """

    def __init__(self, base_path: str, context: CommitterContext) -> None:
        self._base_path, self._check_lease, self._publishes = base_path, context.check_lease, context.publishes
        self._names = HiddenNames(context.job_id, context.sink_id, context.staging)
        self._referenced = ReferencedFiles(context.root, context.sink_id)
        self._retired: set[str] = set()
        """Full paths of fragments whose content is in a published or merged file. A checkpoint may still name them."""

    def commit(self, committables: list[Any]) -> None:
        parts = without_marks(committables)
        try:
            for committable in parts:
                if committable["target"] is not None:
                    self._publish(committable)
            write_markers(committables, self._publishes)
            for committable in parts:
                self._retire(committable)
            self._delete_retired()
        except CommitError:
            raise
        except StorageError as error:
            raise RetryableCommitError(
                "The file system refuses the commit of a file sink",
                where=error.where,
                found=error.found,
                cure=error.cure,
            ) from error

    def _publish(self, committable: dict[str, Any]) -> None:
        files = Files(committable["directory"], SINK)
        hidden, target, size = committable["hidden"], committable["target"], committable["size"]
        faults.point("K3.file-sink.before-rename", target=files.location(target))
        found, published = files.size_if_exists(hidden), files.size_if_exists(target)
        if found is None and published == size:
            return  # an earlier call has renamed it
        if found != size:
            raise _lost(files, hidden, target, size, found)
        try:
            files.rename(hidden, target)
        except FileExistsError:
            self._finish_copy(files, hidden, target)
        faults.point("K3.file-sink.after-rename", target=files.location(target))

    def _finish_copy(self, files: Files, hidden: str, target: str) -> None:
        """Finish a rename that crashed. Object stores copy and delete, and a crash in between leaves both files."""
        if not same_content(files, hidden, target):
            raise CommitError(
                "A file with the name of an output file exists, and a file sink never overwrites a file",
                where=f"file {files.location(target)}",
                found=f"its content differs from {hidden}, which is to be renamed to it",
                cure="move the existing file away, and restart the job from the latest checkpoint",
            )
        files.delete(hidden)

    def _retire(self, committable: dict[str, Any]) -> None:
        """Delete obsolete fragments or retire them. Fragments of a checkpoint of another job belong to that job."""
        own = [name for name in committable["obsolete"] if self._names.owns(name)]
        named = committable.get("named", own)
        self._delete(committable, [name for name in own if name not in named])
        self._retired |= {join(committable["directory"], name) for name in own if name in named}

    def _delete_retired(self) -> None:
        referenced = self._referenced.read() if self._retired else None
        free = sorted(self._retired - referenced) if referenced is not None else []
        if free:
            faults.point("K3.file-sink.retiring", base_path=self._base_path)
            self._check_lease()
        for path in free:
            directory, _, name = path.rpartition("/")
            self._delete({"directory": directory}, [name])
            self._retired.discard(path)

    def _delete(self, committable: dict[str, Any], names: list[str]) -> None:
        files = Files(committable["directory"], SINK)
        for name in names:
            faults.point("K3.file-sink.before-delete", path=files.location(name))
            files.delete(name)

    def abort(self, committables: list[Any]) -> None:
        for committable in without_marks(committables):
            self._delete(committable, committable["created"])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        """Delete unfinished files of earlier attempts. First check the fragments that writers will continue with, so that missing
        ones are reported now and not at the end of a part.
        """
        for part in (Part.from_state(fields) for state in states for fields in state["parts"]):
            for fragment in part.fragments:
                check_fragment(part.directory, fragment)
        wanted = set(fragment_paths(states))
        for committable in without_marks(committables):
            wanted |= {
                join(committable["directory"], name) for name in [committable["hidden"], *committable["obsolete"]]
            }
        files = Files(self._base_path, SINK)
        hidden = [path for path in files.list() if self._names.owns(path.rpartition("/")[2])]
        referenced = self._referenced.read()
        faults.point("K2.file-sink.listed", base_path=self._base_path)
        self._check_lease()
        if referenced is None:
            return
        for path in hidden:
            if join(self._base_path, path) not in wanted | referenced:
                faults.point("K2.file-sink.before-delete", path=path)
                files.delete(path)


def _lost(files: Files, hidden: str, target: str, size: int, found: int | None) -> OutputLostError:
    return OutputLostError(
        "A finished file of a completed checkpoint cannot be published",
        where=f"file {files.location(target)}",
        found=f"{hidden} has {found} bytes, expected {size}"
        if found is not None
        else f"neither it nor {hidden} exists",
        cure=f"restore the {size} bytes under either name; the job must not continue without them",
    )


class ReferencedFiles:
    """Find the unfinished files that checkpoints of the job still name.

    These are the checkpoints that the lineage of the job retains, and those that it protects because a user went back or away from
    them. Checkpoints of other jobs do not count: they name files of this job only until their first round.

    A job that has finished and given up its checkpoints retains none, though their metadata may still exist.
    """

    def __init__(self, root: str | None, sink_id: str) -> None:
        """``root`` is the job's directory on checkpoint storage. Without a directory there are no checkpoints."""
        self._files = None if root is None else Files(root)
        self._sink_id = sink_id
        self._named: dict[RestorePoint, frozenset[str]] = {}

    def read(self) -> frozenset[str] | None:
        """Return full paths. None: a record or a checkpoint is damaged, so every file may be needed."""
        if self._files is None:
            return frozenset()
        try:
            lineage = read_lineage(self._files)
            # Metadata never changes and an id is never used twice, so each checkpoint is read once.
            self._named = {point: self._read(self._files, point) for point in _own(lineage)}
        except (CorruptFileError, RestoreError) as error:
            log.warning(
                "unfinished files of a sink are not deleted, because a checkpoint that may need them is damaged: %s",
                error,
            )
            return None
        return frozenset().union(*self._named.values())

    def _read(self, files: Files, point: RestorePoint) -> frozenset[str]:
        if point in self._named:
            return self._named[point]
        path = metadata_path(point.checkpoint_id)
        content = files.read_if_exists(path)
        if content is None:  # deleted by hand
            return frozenset()
        return frozenset(self._files_of(decode_metadata(files.location(path), content)))

    def _files_of(self, metadata: CheckpointMetadata) -> list[str]:
        operators = [operator for operator in metadata.operators if operator.uid_hash == self._sink_id]
        states = [state for operator in operators for state in operator.values(WRITER)]
        committables = [_unpack(packed) for operator in operators for packed in operator.committables]
        return [
            *fragment_paths(states),
            *(join(item["directory"], item["hidden"]) for item in without_marks(committables)),
        ]


def fragment_paths(states: list[Any]) -> list[str]:
    """Return the full paths of the fragments that writer states name."""
    parts = [part for state in states for part in state["parts"]]
    return [join(part["directory"], fragment[0]) for part in parts for fragment in part["fragments"]]


def _own(lineage: Lineage) -> list[RestorePoint]:
    return [point for point in (*lineage.protected, *lineage.retained) if not point.directory]


_unpack = msgspec.msgpack.Decoder().decode
