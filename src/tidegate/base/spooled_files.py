"""Files whose state files wait on this host until a checkpoint refers to them, so that rounds do not wait for storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from tidegate.base.errors import CorruptFileError, StorageError
from tidegate.base.files import FileHandle, Files, FileWriter, Paths, verified_copy, verify
from tidegate.base.hashing import content_hash, is_strong
from tidegate.base.private_dirs import HeldDirectory, sweep

STATE_FILES = "shared/"
KEPT_SIZE = 8 << 20
"""Smaller files stay on the host after the upload: most are segments that local stores have not read yet."""


class SpooledFiles(Files):
    """The root of a job whose tasks and driver share a host, with a local directory, the spool.

    Tasks write state files into the spool and read them there. ``upload``, in step 7, stores the files of a checkpoint. The
    metadata follows only after that, so every checkpoint that can be restored is completely on storage. Files that no checkpoint
    refers to (a segment that was merged before, a discarded round) are never stored. One driver has one spool, and only its
    checkpoint lane stores: no other driver's files, and no files that come late. All other files go to storage directly.

    ``held``: the driver's hold of its spool; tasks have none. While a driver holds its spool no other driver removes it, whoever
    has the lease: a driver that has lost its lease without knowing may be about to sweep. The spool of a killed driver is removed
    when the next driver of the same job and directory has its lease.

    A lost or damaged spool loses the rounds since the last checkpoint, as the memory of the process would. A task that reads such a
    file, or an upload of it, fails the attempt, and the next attempt starts from that checkpoint.
    """

    def __init__(
        self, root: str, spool: str, threads: int = 1, held: HeldDirectory | None = None, *, strong: bool = False
    ) -> None:
        super().__init__(root, strong=strong)
        self.held, self._threads = held, threads
        self.storage, self.spool = Files(root, strong=strong), Files(spool, "local state", strong=strong)
        self._tried: set[str] = set()
        self._stored: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SpooledFiles, strong=self.strong), (self.root, self.spool.root, self._threads)

    # -- for tasks --

    def write(self, path: str, data: bytes) -> FileHandle:
        return (self.spool if _waits(path) else self.storage).write(path, data)

    def create_stream(self, path: str, *, aside: bool = True) -> FileWriter:
        return (self.spool if _waits(path) else self.storage).create_stream(path, aside=aside)

    def read(self, handle: FileHandle) -> bytes:
        if not _waits(handle.path):
            return self.storage.read(handle)
        data = self.spool.read_if_exists(handle.path)
        if data is not None and content_hash(data, strong=is_strong(handle.hash)) == handle.hash:
            return data
        stored = self.storage.read_if_exists(handle.path)
        if stored is None:
            raise self._lost(handle.path, "it is not there" if data is None else "it is damaged")
        verify(self.location(handle.path), stored, handle.size, handle.hash)
        return stored

    def open_stream(self, path: str, expected: str = "a file") -> BinaryIO:
        if not _waits(path):
            return self.storage.open_stream(path, expected)
        for place in (self.spool, self.storage):
            with contextlib.suppress(CorruptFileError):  # missing here
                return place.open_stream(path, expected)
        raise self._lost(path)

    def damaged(self, path: str, expected: str, found: str) -> StorageError:
        """Delete a file that is damaged here: the next attempt finds it on storage, or starts from an earlier checkpoint."""
        if not _waits(path) or not self.spool.exists(path):
            return self.storage.damaged(path, expected, found)
        self.spool.delete(path)
        return self._lost(path, f"it is damaged: {found}; expected {expected}")

    # -- for the driver --

    def upload(self, handles: Collection[FileHandle]) -> None:
        """Upload several files at once. After an error, another call continues with the missing files."""
        missing = [handle for handle in handles if self._is_only_here(handle)]
        if min(self._threads, len(missing)) <= 1:
            for handle in missing:
                self._upload(handle)
            return
        with ThreadPoolExecutor(min(self._threads, len(missing)), "tidegate-upload") as pool:
            for uploaded in [pool.submit(self._upload, handle) for handle in missing]:
                uploaded.result()

    def _is_only_here(self, handle: FileHandle) -> bool:
        if handle.path in self._stored:
            return False
        if self.spool.exists(handle.path):
            return True
        if self.storage.size_if_exists(handle.path) != handle.size:  # an earlier checkpoint stored it, or it is lost
            raise self._lost(handle.path)
        self._stored.add(handle.path)
        return False

    def _upload(self, handle: FileHandle) -> None:
        path = handle.path
        if path in self._tried:  # the outcome of the earlier try is unknown
            self.storage.delete(path)
        self._tried.add(path)
        if handle.size <= KEPT_SIZE:
            self.storage.write(path, self.read(handle))
            self._stored.add(path)
            return
        try:
            verified_copy(self.spool, path, self.storage, path, size=handle.size, hash=handle.hash)
        except CorruptFileError as error:
            raise self._lost(path, "it is damaged") from error
        self._stored.add(path)
        self.spool.delete(path)

    def forget_others(self) -> None:
        """Remove the spools of the job's earlier drivers whose processes are gone. Called after the claim of a lease."""
        sweep(os.path.dirname(os.path.dirname(self.spool.root)))

    def forget_spool(self) -> None:
        """Remove only this driver's spool: the driver never had the lease, and other drivers of the job may be alive."""
        if self.held is not None:
            self.held.remove()

    def forget_own(self) -> None:
        """Remove this driver's spool, and again those of dead drivers: their late tasks may have written since the first sweep."""
        if self.held is not None:
            self.held.remove()
            self.forget_others()

    def _lost(self, path: str, what: str = "it is not there") -> StorageError:
        return StorageError(
            "A state file is missing or damaged on this host, and is not on storage either.",
            where=self.spool.location(path),
            found=f"{what}; nothing at {self.location(path)}",
            cure="do not delete local state while a job runs; the job continues from its latest checkpoint",
        )

    def delete(self, path: str) -> None:
        """Delete a file. Storage is not asked for files that were never stored."""
        here = _waits(path) and self.spool.exists(path)
        if not here or path in self._tried:
            super().delete(path)
        if here:
            self.spool.delete(path)
        self._tried.discard(path)
        self._stored.discard(path)

    def delete_tree(self, path: str) -> None:
        super().delete_tree(path)
        if not path:
            self.spool.delete_tree("")

    def list(self, path: str = "") -> Paths:
        """List files on storage and in the spool: a sweep has to find both."""
        here: Iterable[str] = self.spool.list() if not path or _waits(f"{path}/") else ()
        return sorted({*super().list(path), *here})


def _waits(path: str) -> bool:
    return path.startswith(STATE_FILES)
