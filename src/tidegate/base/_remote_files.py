"""Every other file system behind ``Files``, through fsspec."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast

from tidegate.base import faults
from tidegate.base._local_files import is_hidden, temporary_name
from tidegate.base.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def as_os_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Client libraries raise errors of their own (botocore ...): callers handle OSError only."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    return wrapped


_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2"))
"""They show a file only when all of it is there, and rename by copying it."""


class RemoteStream:
    """A file being written, at ``path`` itself or (``aside``) under a temporary name until it is complete."""

    def __init__(self, system: RemoteFileSystem, path: str, aside: bool) -> None:
        self._system, self._path = system, path
        self._written = temporary_name(path) if aside and not system.is_object_store else path
        self._file: Any = system.open_new(self._written)

    @as_os_errors
    def write(self, data: bytes) -> None:
        self._file.write(data)

    @as_os_errors
    def finish(self) -> None:
        """Durable when this returns. ``FileExistsError`` if there is another file of this name."""
        try:
            faults.point("storage.write.opened", path=self._path)
            self._file.close()
            if self._written != self._path:
                self._system.rename(self._written, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                self.discard()
            raise

    @as_os_errors
    def discard(self) -> None:
        with contextlib.suppress(Exception):  # not every client has both
            self._file.discard()
            self._file.closed = True  # else it uploads what there is when it is collected
        self._system.delete(self._written)


class RemoteFileSystem:
    """All paths are full addresses. Raises OSError.

    ``publish`` is exclusive where the file system can create exclusively (S3 by a conditional put, memory). Elsewhere two
    publishers at the same moment are not told apart. Object stores show a file only when all of it is there. HDFS has a class of
    its own (``_hdfs_files.py``).
    """

    def __init__(self, root: str, **options: str) -> None:
        import fsspec

        try:
            self._fs: Any = fsspec.core.url_to_fs(root, **options)[0]
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                "The file system of a storage directory must be known to fsspec.",
                where=root,
                found=str(error),
                cure="install the package it names (tidegate[s3], tidegate[hdfs]), or correct the address",
            ) from error
        self._known_directories: set[str] = set()
        self.is_object_store = root.partition("://")[0] in _OBJECT_STORES

    @as_os_errors
    def create(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        self._create_exclusively(path, data)

    def create_stream(self, path: str, aside: bool) -> RemoteStream:
        return RemoteStream(self, path, aside)

    @as_os_errors
    def open_new(self, path: str) -> Any:
        self._make_parent(path)
        if self.exists(path):
            raise FileExistsError(path)
        return self._fs.open(path, "wb")

    @as_os_errors
    def open_stream(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "rb"))

    @as_os_errors
    def publish(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        if self.exists(path):  # for clients that ignore the exclusive mode
            raise FileExistsError(path)
        faults.point("storage.publish.before-link", path=path)
        self._create_exclusively(path, data)
        faults.point("storage.publish.after-link", path=path)

    @as_os_errors
    def replace(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        faults.point("storage.replace.before-rename", path=path)
        self._fs.pipe_file(path, data)

    @as_os_errors
    def rename(self, source: str, target: str) -> None:
        if self.exists(target):
            raise FileExistsError(target)
        self._make_parent(target)
        self._fs.mv(source, target)

    @as_os_errors
    def make_directory(self, path: str) -> None:
        self._fs.makedirs(path, exist_ok=True)

    @as_os_errors
    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    @as_os_errors
    def delete_tree(self, path: str) -> None:
        for known in self._known_directories.copy():  # other threads add some
            if f"{known}/".startswith(f"{path}/"):
                self._known_directories.discard(known)
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(path, recursive=True)

    @as_os_errors
    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(path))

    @as_os_errors
    def exists(self, path: str) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(path))

    @as_os_errors
    def size(self, path: str) -> int:
        self._fs.invalidate_cache()
        return int(self._fs.size(path))

    @as_os_errors
    def is_directory(self, path: str) -> bool:
        return bool(self._fs.isdir(path))

    @as_os_errors
    def find(self, path: str, hidden: bool) -> Iterator[tuple[str, int]]:
        self._fs.invalidate_cache()
        found = self._fs.find(path, detail=True) if self._fs.exists(path) else {}
        prefix = str(self._fs._strip_protocol(path)).rstrip("/") + "/"
        below = {name.removeprefix(prefix): int(found[name]["size"]) for name in sorted(found)}
        return iter(
            [(name, size) for name, size in below.items() if hidden or not any(map(is_hidden, name.split("/")))]
        )

    @as_os_errors
    def walk(self, path: str) -> Iterator[str]:
        self._fs.invalidate_cache()
        prefix = self._fs._strip_protocol(path).rstrip("/") + "/"
        return iter([name.removeprefix(prefix) for name in self._fs.find(path)])

    @as_os_errors
    def names(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return []
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def _create_exclusively(self, path: str, data: bytes) -> None:
        try:
            self._fs.pipe_file(path, data, mode="create")
        except (ValueError, NotImplementedError, TypeError):  # no exclusive mode: complete file first, then a move
            if self.exists(path):
                raise FileExistsError(path) from None
            temporary = temporary_name(path)
            self._fs.pipe_file(temporary, data)
            self._fs.mv(temporary, path)

    def _make_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        # Directories of object stores come with their files: what may be missing is the bucket.
        known = "/".join(parent.split("/", 3)[:3]) if self.is_object_store else parent
        if known not in self._known_directories:
            self._fs.makedirs(parent, exist_ok=True)
            self._known_directories.add(known)
