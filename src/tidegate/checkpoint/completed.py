"""Completed checkpoints on storage: published (step 7), retained, subsumed (step 9), swept after a crash.

Every deletion is recorded first, then the lease is checked, then files are deleted: metadata before the files that it
refers to, so a ``_metadata`` that can be read always restores. A crash in between leaves files without a reference;
``sweep`` deletes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, RestoreError, StorageError
from tidegate.base.files import FileHandle, Files
from tidegate.checkpoint.disposal import delete_snapshot
from tidegate.checkpoint.history import Sizes, sizes_of
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import DIRECTORY as LEASES
from tidegate.checkpoint.lease_records import AttemptStatus, RestorePoint
from tidegate.checkpoint.metadata import SHARED, CheckpointMetadata, decode_metadata, encode_metadata, metadata_path

logger = logging.getLogger(__name__)

TASK_OWNED = "taskowned"
_READ_BACKS = 3


class OutcomeUnknownError(StorageError):
    """Storage failed while metadata was published, and the metadata could not be read back. The checkpoint may exist or not."""


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint after step 7: its ``_metadata`` is published, and its output may be committed."""

    metadata: CheckpointMetadata
    sizes: Sizes

    @property
    def size(self) -> int:
        """Bytes of the metadata and of all state files that the metadata refers to."""
        return self.sizes.size

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id

    @property
    def path(self) -> str:
        return metadata_path(self.checkpoint_id)


class CompletedCheckpoints:
    """The completed checkpoints of one attempt's lineage. Made after the restore decision was recorded."""

    def __init__(self, files: Files, lease: Lease, retained: int) -> None:
        self._files, self._lease, self._number = files, lease, retained
        self._retained: list[RestorePoint] = list(lease.live.retained)
        self._protected: list[RestorePoint] = list(lease.live.protected)
        self._references: dict[int, set[str]] = {}
        self._attempted: set[int] = set()
        """Checkpoints whose publish failed or is unknown; their files stay until a later checkpoint is complete."""
        self._candidates: set[str] = set()
        """Files to check when something is deleted: a checkpoint or the running state referred to them, or a sweep listed them."""
        self._undeleted: set[int] = set()
        """Checkpoints that no longer count and could not be deleted; every later step 9 retries."""
        self._may_delete_shared = True
        for point in (*self._protected, *self._retained):
            self._load(point)

    @property
    def retained(self) -> list[RestorePoint]:
        """Oldest first."""
        return list(self._retained)

    @property
    def latest(self) -> RestorePoint | None:
        return self._retained[-1] if self._retained else None

    @property
    def latest_paths(self) -> Collection[str]:
        """The state files of the latest checkpoint. May be read from the job's thread."""
        latest = self.latest
        return () if latest is None else self._references.get(latest.checkpoint_id, ())

    def add(self, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Publish a checkpoint (step 7, the commit point). When this returns, the checkpoint is complete and may be committed.

        After a ``StorageError`` the job continues, and **must treat the checkpoint as possible**: prepared output stays
        prepared and is part of the next checkpoint (a delayed write may still appear, and its restore must work).
        ``FencedError``: stop.
        """
        point = RestorePoint(metadata.checkpoint_id, metadata.token)
        content = encode_metadata(metadata, self._files.signing_key)
        self._lease.check()
        self._attempted.add(point.checkpoint_id)
        self._references[point.checkpoint_id] = metadata.paths()
        own = [FileHandle(file.path, file.size, file.hash) for file in metadata.state_files() if not file.root]
        self._files.upload(own)
        self._publish(metadata_path(point.checkpoint_id), content)
        faults.point("C6.published", checkpoint_id=point.checkpoint_id)
        self._write_down([*self._retained, point][-self._number :])
        self._lease.check()
        self._attempted.discard(point.checkpoint_id)
        before = self._references.get(self._retained[-1].checkpoint_id, ()) if self._retained else ()
        self._retained.append(point)
        sizes = sizes_of(metadata, len(content), before)
        took_ms = metadata.complete_ms - metadata.trigger_ms
        text = "job %s: checkpoint %d: step 7 complete, round %d, %d bytes, %d ms"
        logger.info(text, metadata.job_id, point.checkpoint_id, metadata.round, sizes.size, took_ms)
        faults.point("C6.completed", checkpoint_id=point.checkpoint_id)
        return CompletedCheckpoint(metadata, sizes)

    def subsume(self, in_use: Collection[str], released: Iterable[str] = ()) -> list[int]:
        """Delete all but the newest ``retained`` checkpoints, and every file that is no longer needed (step 9).

        ``in_use``: paths that the running state, or a checkpoint that is not stored yet, refers to. A path that was once in use
        or in a checkpoint is remembered until it can be deleted. ``released`` adds paths that were used only since the last call.
        Storage failures are logged, and the next step 9 retries.
        """
        self._candidates.update(in_use, released)
        dropped, kept = self._retained[: -self._number], self._retained[-self._number :]
        abandoned = [number for number in self._attempted if kept and number < kept[-1].checkpoint_id]
        gone = [*abandoned, *self._undeleted]
        numbers = [point.checkpoint_id for point in dropped]
        if (dropped or gone or self._unreferenced(self._candidates, in_use)) and self._is_recorded(kept):
            faults.point("C7.recorded", dropped=numbers)
            self._retained = kept
            self._delete_checkpoints([*numbers, *gone])
            self._delete_files(self._unreferenced(self._candidates, in_use))
        else:
            numbers = []
        if len(self._retained) >= self._number:
            self._delete_claimed()
        for number in numbers:
            logger.info("job %s: checkpoint %d: step 9 subsumed", self._lease.claim.job_id, number)
        faults.point("C7.subsumed", dropped=numbers)
        return numbers

    def _delete_claimed(self) -> None:
        """Delete the claimed snapshot that the job started from: the job now has as many own checkpoints as it retains."""
        claimed = self._lease.live.claimed
        if claimed and self._lease.live.retained:  # recorded, so no attempt restores the claimed snapshot
            logger.info("job %s: step 9 subsumed %s, which it claimed", self._lease.claim.job_id, claimed)
            if delete_snapshot(claimed):
                self._lease.claimed_is_gone()

    def _is_recorded(self, kept: list[RestorePoint]) -> bool:
        """Whether the retained list is recorded and the lease was checked after that. Step 7 did both, unless storage failed."""
        if self._lease.live.retained == kept:
            return True
        try:
            self._lease.record_retained(kept)
            self._lease.check()
        except StorageError as error:
            logger.warning("step 9 postponed, storage failed: %s", error)
            return False
        return True

    def sweep(self, in_use: Collection[str]) -> list[str]:
        """Delete the remains of crashes and fenced attempts. Call it after the restore was recorded, while no round runs.

        A file that storage fails to delete stays a candidate, so the next step 9 retries.
        """
        # Listed before the check: if the check passes, no newer attempt had a file in this list (see lease.py).
        paths = self._files.list()
        numbers = (int(match[1]) for name in self._files.list_names() if (match := re.fullmatch(r"chk-(\d+)", name)))
        stray = [number for number in numbers if number not in self._known()]
        self._lease.check()
        self._delete_checkpoints(stray)
        shared = {path for path in paths if path.startswith(SHARED + "/")}
        victims = [path for path in paths if self._is_temporary(path) or self._is_old_record(path)]
        victims += sorted(self._unreferenced(shared, in_use))
        self._candidates.update(shared, victims)
        self._delete_files(victims)
        return [*(f"chk-{number}" for number in stray), *victims]

    def discard_all(self, status: AttemptStatus, abort_output: Callable[[], None] = lambda: None) -> None:
        """Delete all checkpoints of a job that has ended. Protected checkpoints stay, with their files.

        ``abort_output`` aborts prepared output that nobody will commit. It runs after the end is recorded: an attempt
        that still found a checkpoint to restore would need the output that is aborted here.
        """
        numbers = [point.checkpoint_id for point in self._retained]
        # Listed before the output is aborted. A task or driver that is still alive may write more notes from now on, and the
        # next start needs these notes to abort the output that they name.
        staged = self._files.list(TASK_OWNED) if not self._protected else []
        self._lease.record_end(status, discarded=self._retained)
        faults.point("C7.discard-recorded", dropped=numbers)
        self._lease.check()
        abort_output()
        self._retained = []
        self._delete_checkpoints([*numbers, *self._attempted])
        self.sweep(())
        self._delete_files(staged)

    # -- publish --

    def _publish(self, path: str, content: bytes) -> None:
        faults.point("C4.before-publish", path=path)
        try:
            self._files.publish(path, content)
        except (FileExistsError, StorageError) as error:
            faults.point("C5.publish-failed", path=path)
            if not self._is_there(path, content, error):
                raise StorageError(
                    "The metadata of a checkpoint could not be stored.",
                    where=self._files.location(path),
                    found=error.found if isinstance(error, StorageError) else "another file exists there",
                    cure="check the storage; the job continues and retries with the next checkpoint",
                ) from error

    def _is_there(self, path: str, content: bytes, cause: BaseException) -> bool:
        """C5: the publish raised. Whether it took effect anyway is read from storage, never assumed."""
        for attempt in range(_READ_BACKS):
            try:
                return self._files.read_if_exists(path) == content
            except StorageError as error:
                logger.warning("reading back %s failed (%d of %d): %s", path, attempt + 1, _READ_BACKS, error.found)
        raise OutcomeUnknownError(
            "It is not known whether the metadata of a checkpoint was stored.",
            where=self._files.location(path),
            found=f"publishing failed ({cause}), and reading it back failed too",
            cure="check the storage; nothing is deleted until a later checkpoint is complete",
        ) from cause

    def _write_down(self, kept: list[RestorePoint]) -> None:
        """Record the retained list before the commit, so that the loss of a committed checkpoint is noticed. By its id alone, a
        checkpoint whose metadata has vanished looks like a checkpoint that was never complete. The list is already that of step
        9, without the subsumed checkpoints: an attempt that claims from here on restores the new checkpoint or a later one."""
        try:
            self._lease.record_retained(kept)
        except StorageError as error:
            # The lineage finds the checkpoint anyway, because it asks for every taken id. Deletion waits for the next success.
            logger.warning("list of completed checkpoints not written, step 9 retries: %s", error)
        faults.point("C6.recorded", retained=len(kept))

    # -- delete --

    def _known(self) -> set[int]:
        return {point.checkpoint_id for point in (*self._retained, *self._protected)} | self._attempted

    def _delete_checkpoints(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            try:
                self._files.delete(metadata_path(number))
                faults.point("C7.metadata-deleted", checkpoint_id=number)
                self._files.delete_tree(f"chk-{number}")
                faults.point("C7.directory-deleted", checkpoint_id=number)
            except StorageError as error:
                # The metadata may still exist: keep the files that it refers to.
                logger.warning("checkpoint %d not deleted: %s", number, error)
                self._undeleted.add(number)
                continue
            self._attempted.discard(number)
            self._undeleted.discard(number)
            self._candidates |= self._references.pop(number, set())

    def _unreferenced(self, candidates: set[str], in_use: Collection[str]) -> set[str]:
        if not self._may_delete_shared or self._undeleted - self._references.keys():
            return set()  # any checkpoint that can be read must restore, even a stray one, whose files are not known
        return candidates.difference(in_use, *self._references.values())

    def _delete_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._files.delete(path)
                faults.point("C7.file-deleted", path=path)
                self._candidates.discard(path)
            except StorageError as error:  # the file stays a candidate
                logger.warning("%s not deleted: %s", path, error.found)

    def _is_temporary(self, path: str) -> bool:
        """Whether a crash in publish or replace left the file. The heartbeat's and a newer claim's files do not count: they may
        be in the middle of a write."""
        directory, _, name = path.rpartition("/")
        if not (name.startswith(".") and name.endswith(".tmp")) or directory.startswith(TASK_OWNED):
            return False
        lease = re.match(r"\.(\d{8,})\.(json)?", name) if directory == LEASES else None
        if lease is None:
            return True
        token = int(lease[1])
        return token < self._lease.token or (token == self._lease.token and lease[2] is not None)

    def _is_old_record(self, path: str) -> bool:
        """Whether an earlier attempt wrote this record about itself: this attempt's record decides from now on."""
        match = re.fullmatch(LEASES + r"/(\d{8,})\.(live|restored)\.json", path)
        return match is not None and int(match[1]) < self._lease.token

    def _load(self, point: RestorePoint) -> None:
        path = metadata_path(point.checkpoint_id)
        location = self._files.location(path)
        try:
            content = self._files.read_if_exists(path)
            if content is not None:
                self._references[point.checkpoint_id] = decode_metadata(location, content).paths()
                return
            logger.warning("%s is listed as retained but is missing", location)
            self._retained = [kept for kept in self._retained if kept != point]
            self._protected = [kept for kept in self._protected if kept != point]
        except (CorruptFileError, RestoreError) as error:
            # It is not known which files this checkpoint needs, so no file may be called unneeded.
            logger.warning("%s cannot be read; shared files are not deleted in this run: %s", location, error)
            self._may_delete_shared = False
