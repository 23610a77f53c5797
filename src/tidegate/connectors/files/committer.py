"""Publishes finished part files on the driver, and clears away what failed attempts left."""

from __future__ import annotations

from typing import Any

from tidegate.base import faults
from tidegate.base.errors import CommitError, OutputLostError, RetryableCommitError, StorageError
from tidegate.base.files import Files
from tidegate.connectors.files.kept_files import KeptFiles, fragment_paths
from tidegate.connectors.files.parts import HiddenNames, Part, check_fragment
from tidegate.connectors.files.paths import SINK, join, same_content
from tidegate.connectors.files.success_markers import without_marks, write_markers
from tidegate.operators.contracts.sink import Committer, CommitterContext


class FileCommitter(Committer):
    """Step 8: rename, mark buckets that are complete, then delete the fragments the file was made of. Each can be repeated after a
    crash at any point.

    **Why no checkpoint loses a file it names.** What is renamed was made for this commit, and no writer state ever named
    it. A fragment that a checkpoint may name is deleted in the order: *its successor is in a completed checkpoint* (we are
    in step 8 of it) *-> read which files the kept checkpoints name -> check the lease -> delete what none of them
    names*. Only this thread adds checkpoints to the list, and none it adds later names an obsolete fragment again. If the
    check passes, no newer attempt had claimed when the list was read; one that claims behind it restores a checkpoint of
    that very list, and needs no file we delete, however late. Fragments of checkpoints that are
    still kept at step 8 of n wait in ``_retired`` for a later commit or the job's end; after a crash
    ``abort_lingering`` finds them by name.
    """

    def __init__(self, base_path: str, context: CommitterContext) -> None:
        self._base_path, self._check_lease, self._publishes = base_path, context.check_lease, context.publishes
        self._names = HiddenNames(context.job_id, context.sink_id, context.staging)
        self._kept = KeptFiles(context.root, context.sink_id)
        self._retired: set[str] = set()
        """Full paths of fragments that are part of a published or merged file, and may be named by a checkpoint."""

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
                "the file system must take the commit", where=error.where, found=error.found, cure=error.cure
            ) from error

    def _publish(self, committable: dict[str, Any]) -> None:
        files = Files(committable["directory"], SINK)
        hidden, target, size = committable["hidden"], committable["target"], committable["size"]
        faults.point("K3.file-sink.before-rename", target=files.location(target))
        found, published = files.size_if_exists(hidden), files.size_if_exists(target)
        if found is None and published == size:
            return  # an earlier call has done it
        if found != size:
            raise _lost(files, hidden, target, size, found)
        try:
            files.rename(hidden, target)
        except FileExistsError:
            self._finish_copy(files, hidden, target)
        faults.point("K3.file-sink.after-rename", target=files.location(target))

    def _finish_copy(self, files: Files, hidden: str, target: str) -> None:
        """Object stores rename by copy and delete: a crash in between leaves both."""
        if not same_content(files, hidden, target):
            raise CommitError(
                "a file sink never overwrites a file",
                where=f"file {files.location(target)}",
                found=f"it exists with other content than {hidden}, which is to get this name",
                cure="move the existing file away and restart from the latest checkpoint",
            )
        files.delete(hidden)

    def _retire(self, committable: dict[str, Any]) -> None:
        """The checkpoint may be another job's: then so are its files, and that job clears them away."""
        own = [name for name in committable["obsolete"] if self._names.owns(name)]
        named = committable.get("named", own)
        self._delete(committable, [name for name in own if name not in named])
        self._retired |= {join(committable["directory"], name) for name in own if name in named}

    def _delete_retired(self) -> None:
        kept = self._kept.named() if self._retired else None
        free = sorted(self._retired - kept) if kept is not None else []
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
        """Also checks that the fragments the writers will continue with are there: better now than at the end of a
        part.
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
        kept = self._kept.named()
        faults.point("K2.file-sink.listed", base_path=self._base_path)
        self._check_lease()
        if kept is None:
            return
        for path in hidden:
            if join(self._base_path, path) not in wanted | kept:
                faults.point("K2.file-sink.before-delete", path=path)
                files.delete(path)


def _lost(files: Files, hidden: str, target: str, size: int, found: int | None) -> OutputLostError:
    return OutputLostError(
        "a completed checkpoint holds a finished file that cannot be published",
        where=f"file {files.location(target)}",
        found=f"{hidden} has {found} bytes, expected {size}"
        if found is not None
        else f"neither it nor {hidden} exists",
        cure=f"bring the {size} bytes back under either name; until then the job must not go on, they would be lost",
    )
