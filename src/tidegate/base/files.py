"""The one file layer: durable writes, streams, atomic publication, verified reads, on any fsspec file system.

Checkpoint storage, file sources and file sinks use it. ``purpose`` names the use in error messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, BinaryIO, Protocol, Self

import msgspec

from tidegate.base import faults
from tidegate.base._local_files import LocalFileSystem
from tidegate.base._remote_files import HDFS_PROTOCOLS, HdfsFileSystem, RemoteFileSystem
from tidegate.base.errors import ConfigurationError, CorruptFileError, InternalError, StorageError
from tidegate.base.hashing import SigningKey, content_hash, hash_text, is_strong, new_digest, new_token, shown_hash

CHECKPOINT_STORAGE, FILE_SINK = "checkpoint storage", "the directory of a file sink"
_PIECE = 4 << 20
_JAVA_STACK = re.compile(r"(?:\n|\\n)(?:\t|\\t)at ")  # servers in Java send a stack with the message
_WRONG_DIRECTORIES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
Paths = list[str]
FileSystem = LocalFileSystem | RemoteFileSystem


class FileHandle(msgspec.Struct, frozen=True):
    """The path of a file, relative to the root, with its size and hash (``hashing.py``)."""

    path: str
    size: int
    hash: str


class _Stream(Protocol):
    """A file that a file system is writing."""

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class FileWriter:
    """Write a new file in pieces and compute its size and hash. Use it in a ``with``: an error discards the file.

    ``close`` makes the file durable. Before, the file has a temporary name where the file system allows (object stores show
    nothing).
    """

    def __init__(self, path: str, location: str, purpose: str, stream: _Stream, strong: bool) -> None:
        self._path, self._location, self._purpose = path, location, purpose
        self._stream: _Stream | None = stream
        self._digest = new_digest(strong)
        self.size = 0

    def write(self, data: bytes) -> None:
        assert self._stream is not None
        with _storage_errors("write", self._location, self._purpose):
            self._stream.write(data)
        self._digest.update(data)
        self.size += len(data)

    def content_hash(self) -> str:
        """Return the hash of the content so far."""
        return hash_text(self._digest)

    def close(self) -> FileHandle:
        assert self._stream is not None
        stream, self._stream = self._stream, None
        with _storage_errors("write", self._location, self._purpose):
            stream.finish()
            faults.point("storage.written", path=self._location, size=self.size)
        return FileHandle(self._path, self.size, self.content_hash())

    def discard(self) -> None:
        """Remove the file. After ``close`` this does nothing."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with _storage_errors("delete", self._location, self._purpose):
                stream.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class Files:
    """A root directory on any file system: a plain path, ``file://``, ``memory://``, ``s3://``, ``hdfs://``.

    All paths are relative to the root, with ``/``. Every failure of the file system is a ``StorageError`` with path and
    reason. A file that is missing, or differs from its handle, is a ``CorruptFileError``. Only ``publish`` and ``rename`` raise
    ``FileExistsError``, as an answer. New local files are private to the user, except for those of a file sink. Several threads
    may use one object. It pickles without the signing key.

    ``strong``: handles of new files carry a cryptographic hash. ``signing_key``: the key of the job that owns the directory.
    """

    signing_key: SigningKey | None = None

    def __init__(self, root: str, purpose: str = CHECKPOINT_STORAGE, *, strong: bool = False) -> None:
        self.root, self.purpose, self.strong = _normalized(root), purpose, strong
        self._system: FileSystem = _system(self.root, private=purpose != FILE_SINK)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Files, strong=self.strong), (self.root, self.purpose)

    def __repr__(self) -> str:
        return f"Files({self.root!r})"

    @property
    def is_local(self) -> bool:
        return isinstance(self._system, LocalFileSystem)

    def location(self, path: str = "") -> str:
        """Return the full address, for messages and for code that opens the file itself."""
        if path.startswith("/") or ".." in path.split("/"):
            raise InternalError(f"A path on {self.purpose} leads out of its root.", where=self.root, found=path)
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    # -- writing --

    def write(self, path: str, data: bytes) -> FileHandle:
        """Create a file and make it durable. An existing file is an error: names are unique.

        A failed write returns no handle, so an incomplete file is never referenced. It is removed here or by a later sweep.
        """
        full = self.location(path)
        with _storage_errors("write", full, self.purpose):
            faults.point("storage.write", path=full, size=len(data))
            self._system.create(full, data)
            faults.point("storage.written", path=full, size=len(data))
        return FileHandle(path, len(data), content_hash(data, strong=self.strong))

    def create_stream(self, path: str, *, aside: bool = True) -> FileWriter:
        """Create a file in pieces. It is durable when the stream is closed. An existing file is an error.

        ``aside``: write under a temporary name until the file is complete, where the file system allows. Names that nobody
        looks for do not need it.
        """
        full = self.location(path)
        with _storage_errors("write", full, self.purpose):
            faults.point("storage.write", path=full, size=0)
            return FileWriter(path, full, self.purpose, self._system.create_stream(full, aside), self.strong)

    def upload(self, handles: Collection[FileHandle]) -> None:
        """Step 7, before the metadata: store state files that wait on this host (``spooled_files.py``). Here none waits."""

    def forget_others(self) -> None:
        """Remove files that earlier drivers left on this host. Here there are none."""

    def forget_spool(self) -> None:
        """Remove the spool of a job that did not start. Here there is none."""

    def forget_own(self) -> None:
        """Remove the driver's files on this host, at its end. Here there are none."""

    def publish(self, path: str, data: bytes) -> None:
        """Create a file atomically with its whole content, never visible in part. Raise ``FileExistsError`` if it exists.

        After any other error the outcome is unknown: read the file back before acting on it (FAULTS.md C5).
        """
        full = self.location(path)
        with _storage_errors("publish", full, self.purpose, answers=(FileExistsError,)):
            faults.point("storage.publish", path=full, size=len(data))
            self._system.publish(full, data)

    def replace(self, path: str, data: bytes) -> None:
        """Create or overwrite a file atomically. A reader sees the old or the new content."""
        full = self.location(path)
        with _storage_errors("replace", full, self.purpose):
            faults.point("storage.replace", path=full, size=len(data))
            self._system.replace(full, data)

    def rename(self, source: str, target: str) -> None:
        """Move a file atomically. Raise ``FileExistsError``, and change nothing, if the target exists."""
        old, new = self.location(source), self.location(target)
        with _storage_errors(f"rename to {new}", old, self.purpose, answers=(FileExistsError,)):
            faults.point("storage.rename", path=old, target=new)
            self._system.rename(old, new)

    def make_directory(self, path: str = "") -> None:
        """Make a directory and its parents. They may exist."""
        full = self.location(path)
        with _storage_errors("make directory", full, self.purpose):
            self._system.make_directory(full)

    def protect(self, *, group: bool = False) -> None:
        """Make the root and give access only to the user and, with ``group``, to the directory's group. A remote storage has its
        own rules of access."""
        if isinstance(self._system, LocalFileSystem):
            with _storage_errors("make directory", self.root, self.purpose):
                self._system.access.protect_root(group)
        else:
            self.make_directory()

    def delete(self, path: str) -> None:
        """Delete a file. It may be missing."""
        full = self.location(path)
        with _storage_errors("delete", full, self.purpose):
            faults.point("storage.delete", path=full)
            self._system.delete(full)

    def delete_tree(self, path: str) -> None:
        """Delete a directory with its content, not atomically. It may be missing."""
        full = self.location(path)
        with _storage_errors("delete", full, self.purpose):
            faults.point("storage.delete", path=full)
            self._system.delete_tree(full)

    # -- reading --

    def read(self, handle: FileHandle) -> bytes:
        """Return the content, verified against size and hash."""
        data = self._read(handle.path, expected_content(handle.size, handle.hash))
        verify(self.location(handle.path), data, handle.size, handle.hash)
        return data

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content without verifying it."""
        return self._read(path, "a file")

    def read_if_exists(self, path: str) -> bytes | None:
        """Return the whole content, or None if the file is missing."""
        full = self.location(path)
        with _storage_errors("read", full, self.purpose), contextlib.suppress(FileNotFoundError):
            faults.point("storage.read", path=full)
            return self._system.read(full)
        return None

    def open_stream(self, path: str, expected: str = "a file") -> BinaryIO:
        """Open a file for reading and seeking. Errors while it is read are OSErrors of the file system."""
        full = self.location(path)
        with _storage_errors("read", full, self.purpose, missing=expected):
            faults.point("storage.read", path=full)
            return self._system.open_stream(full)

    def exists(self, path: str) -> bool:
        full = self.location(path)
        with _storage_errors("look for", full, self.purpose):
            return self._system.exists(full)

    def size(self, path: str) -> int:
        full = self.location(path)
        with _storage_errors("look for", full, self.purpose, missing="a file"):
            return self._system.size(full)

    def size_if_exists(self, path: str) -> int | None:
        """Return the size, or None if the file is missing."""
        full = self.location(path)
        with (
            _storage_errors("look for", full, self.purpose),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            return self._system.size(full)
        return None

    def is_directory(self, path: str = "") -> bool:
        full = self.location(path)
        with _storage_errors("look for", full, self.purpose):
            return self._system.is_directory(full)

    def find(self, path: str = "", *, hidden: bool = False) -> Iterator[tuple[str, int]]:
        """Yield all files below a directory, relative to it, with their sizes, sorted. A missing directory is empty.

        Without ``hidden``, files and directories whose names begin with ``.`` or ``_`` are skipped.
        """
        full = self.location(path)
        with _storage_errors("list", full, self.purpose):
            faults.point("storage.list", path=full)
            yield from self._system.find(full, hidden)

    def list(self, path: str = "") -> Paths:
        """List all files below a directory, also temporary ones, relative to the root and sorted. A missing directory is empty.

        On object stores a listing may be stale: never decide by a listing alone.
        """
        full = self.location(path)
        with _storage_errors("list", full, self.purpose):
            faults.point("storage.list", path=full)
            return sorted(f"{path}/{name}" if path else name for name in self._system.walk(full))

    def list_names(self, path: str = "") -> Paths:
        """List the names of files and directories in a directory, sorted. A missing directory is empty."""
        full = self.location(path)
        with _storage_errors("list", full, self.purpose):
            faults.point("storage.list", path=full)
            return sorted(self._system.names(full))

    def check_writable(self, *, group: bool = False) -> None:
        """Make the root (``protect``), then write, read and delete a probe file. Raise ``ConfigurationError`` if that fails."""
        probe = f".probe-{new_token()}.tmp"  # the name of a temporary file, so that a sweep finds it after a crash
        try:
            self.protect(group=group)
            found = self.read(self.write(probe, b"tidegate"))
            self.delete(probe)
        except StorageError as error:
            if not self.is_local and not isinstance(error.__cause__, _WRONG_DIRECTORIES):
                raise  # the storage does not answer: the directory may be right, and a restart may help
            raise ConfigurationError(
                "The checkpoint directory is not writable.",
                where=self.root,
                found=error.found,
                cure="create it and give this user write permission, or set execution.checkpointing.dir to another directory",
            ) from error
        assert found == b"tidegate"

    def damaged(self, path: str, expected: str, found: str) -> StorageError:
        """Return the error for a damaged file, for callers that read a stream and check its content themselves."""
        return corrupt(self.location(path), expected, found, purpose=self.purpose)

    def _read(self, path: str, expected: str) -> bytes:
        full = self.location(path)
        with _storage_errors("read", full, self.purpose, missing=expected):
            faults.point("storage.read", path=full)
            return self._system.read(full)


def expected_content(size: int, hash: str) -> str:
    """Describe what a handle promises, for messages."""
    return f"{size} bytes, {shown_hash(hash)}"


def verified_copy(source: Files, path: str, target: Files, name: str, *, size: int, hash: str) -> None:
    """Copy a file from one root to another, in pieces. Raise ``CorruptFileError``, and leave no copy, if it is damaged."""
    with target.create_stream(name) as writer:
        read_verified(source, path, size=size, hash=hash, take=writer.write)
        writer.close()


def verify_content(source: Files, path: str, *, size: int, hash: str) -> None:
    """Read a file in pieces. Raise ``CorruptFileError`` if it is damaged."""
    read_verified(source, path, size=size, hash=hash, take=lambda data: None)


def read_verified(source: Files, path: str, *, size: int, hash: str, take: Callable[[bytes], object]) -> None:
    """Pass a file to ``take`` in pieces. Raise ``CorruptFileError``, after the last piece, if the file is damaged."""
    expected, digest, found = expected_content(size, hash), new_digest(is_strong(hash)), 0
    with source.open_stream(path, expected) as stream:
        while data := _piece(source, path, stream):
            digest.update(data)
            found += len(data)
            take(data)
    if (found, hash_text(digest)) != (size, hash):
        raise source.damaged(path, expected, expected_content(found, hash_text(digest)))


def _piece(source: Files, path: str, stream: BinaryIO) -> bytes:
    with _storage_errors("read", source.location(path), source.purpose):
        return stream.read(_PIECE)


def verify(location: str, data: bytes, size: int, expected_hash: str) -> None:
    """Raise ``CorruptFileError`` if the data differs from its handle."""
    found_hash = content_hash(data, strong=is_strong(expected_hash))
    if len(data) != size or found_hash != expected_hash:
        raise corrupt(location, expected_content(size, expected_hash), expected_content(len(data), found_hash))


def corrupt(
    location: str, expected: str, found: str, cure: str | None = None, *, purpose: str = CHECKPOINT_STORAGE
) -> CorruptFileError:
    """Return the error for a missing or damaged file. ``cure`` replaces the cure for a part of a checkpoint."""
    if cure is None:
        cure = "restore the file from a copy"
        if purpose == CHECKPOINT_STORAGE:
            cure += ", or set execution.state-recovery.path to another checkpoint"
    return CorruptFileError(
        f"A file on {purpose} is not what was written.",
        where=location,
        found=f"{found}; expected {expected}",
        cure=cure,
    )


@contextlib.contextmanager
def _storage_errors(
    action: str,
    location: str,
    purpose: str,
    *,
    missing: str | None = None,
    answers: tuple[type[OSError], ...] = (),
) -> Iterator[None]:
    try:
        yield
    except answers:
        raise
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            raise corrupt(location, missing, "no such file", purpose=purpose) from error
        raise _storage_error(action, location, purpose, error) from error


def _storage_error(action: str, location: str, purpose: str, error: OSError) -> StorageError:
    if error.errno:
        found = f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"
    else:
        found = f"{type(error).__name__}: {_JAVA_STACK.split(str(error))[0]}"
    cures = {
        errno.ENOSPC: "free some space, or "
        + (
            "move execution.checkpointing.dir to a larger disk"
            if purpose == CHECKPOINT_STORAGE
            else "choose another directory"
        ),
        errno.EACCES: "give this user read and write permission on the directory",
        errno.EROFS: "choose a directory on a file system that is mounted writable",
    }
    cure = cures.get(error.errno or 0, "check that the storage exists, is reachable and healthy")
    rule = f"{purpose[0].upper()}{purpose[1:]} cannot {action}."
    return StorageError(rule, where=location, found=found, cure=cure)


def _system(root: str, private: bool) -> FileSystem:
    protocol, remote, _ = root.partition("://")
    if not remote:
        return LocalFileSystem(root, private)
    return HdfsFileSystem(root) if protocol in HDFS_PROTOCOLS else RemoteFileSystem(root)


def _normalized(root: str) -> str:
    text = os.fspath(root).removeprefix("file://") if root.startswith("file://") else os.fspath(root)
    if not text.strip():
        raise ConfigurationError(
            "The storage directory has no name.", found=repr(root), cure="give a path or an address"
        )
    if "://" in text:
        return text
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ConfigurationError(
            "The home directory that '~' stands for is unknown", found=repr(text), cure="give an absolute path"
        )
    return os.path.abspath(path)
