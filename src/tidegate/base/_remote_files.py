"""The remote file systems of ``Files``, through fsspec: object stores, and HDFS through hdfs-native."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

from tidegate.base import faults
from tidegate.base._local_files import is_hidden, temporary_name
from tidegate.base.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def as_os_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors of client libraries (botocore ...) into OSError, which is all that callers handle."""

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
"""These show a file only when it is complete, and rename by copying."""


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
            self._file.closed = True  # else the garbage collector makes it upload what was written
        self._system.delete(self._written)


class RemoteFileSystem:
    """All paths are full addresses. Raises OSError.

    ``publish`` is exclusive where the file system can create exclusively (S3 by a conditional put, memory). Elsewhere two
    publishers at the same moment may both succeed. Object stores show a file only when it is complete.
    """

    def __init__(self, root: str, **options: str) -> None:
        import fsspec

        try:
            self._fs: Any = fsspec.core.url_to_fs(root, **options)[0]
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                "No installed package serves the file system of the storage directory.",
                where=root,
                found=str(error),
                cure="install the package that the message names (tidegate[s3], tidegate[hdfs]), or correct the address",
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
        return cast("BinaryIO", self._fs.open(path, "rb"))

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


HDFS_PROTOCOLS = frozenset(("hdfs", "viewfs"))
_READ_BUFFER = 1 << 20
_ONE_NAME_NODE = {"dfs.client.failover.max.attempts": "2"}
"""Callers decide about retries. The client's default of 15 attempts, three minutes, is meant for a name service with failover."""


class HdfsFileSystem(RemoteFileSystem):
    """All paths are full addresses. Raises OSError.

    HDFS shows a file as soon as it is created, half written. So a file that others look for is written under a temporary name and
    moved when it is complete. A move is one step of the name node: it refuses an existing target (``publish``, ``rename``) or
    replaces it (``replace``). Files that nobody looks for are created under their own name, which the name node gives only once.
    Neither way checks the name first, so of two writers at the same moment one is refused.

    fsspec's own ``pipe_file`` checks first and then overwrites, so it is not used. The name node makes missing directories.
    """

    def __init__(self, root: str) -> None:
        _require_client(root)
        try:
            super().__init__(root, **(_ONE_NAME_NODE if urlsplit(root).port is not None else {}))
        except RuntimeError as error:
            raise ConfigurationError(
                "Neither the HDFS address nor Hadoop's configuration names a name node or name service.",
                where=root,
                found=str(error),
                cure="write hdfs://HOST:PORT/PATH, or set HADOOP_CONF_DIR to the directory of core-site.xml and hdfs-site.xml",
            ) from error

    @as_os_errors
    def create(self, path: str, data: bytes) -> None:
        with self._removed_on_error(path, self.open_new(path)) as file:
            faults.point("storage.write.opened", path=path)
            file.write(data)
            file.close()

    @as_os_errors
    def open_new(self, path: str) -> Any:
        return self._fs.open(path, "wb", overwrite=False)

    @as_os_errors
    def open_stream(self, path: str) -> BinaryIO:
        return io.BufferedReader(_Reader(self._fs.open(path, "rb")), _READ_BUFFER)

    @as_os_errors
    def publish(self, path: str, data: bytes) -> None:
        temporary = temporary_name(path)
        self.create(temporary, data)
        with self._removed_on_error(temporary):
            faults.point("storage.publish.before-link", path=path, temporary=temporary)
            self._fs.mv(temporary, path)
        faults.point("storage.publish.after-link", path=path, temporary=temporary)

    @as_os_errors
    def replace(self, path: str, data: bytes) -> None:
        temporary = temporary_name(path)
        self.create(temporary, data)
        with self._removed_on_error(temporary):
            faults.point("storage.replace.before-rename", path=path, temporary=temporary)
            self._fs.mv(temporary, path, overwrite=True)

    @as_os_errors
    def rename(self, source: str, target: str) -> None:
        try:
            self._fs.mv(source, target)
        except FileNotFoundError:  # a move does not make directories
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.mv(source, target)

    @contextlib.contextmanager
    def _removed_on_error(self, path: str, file: Any = None) -> Iterator[Any]:
        """Remove an incomplete file after an error. After a crash a sweep removes it."""
        try:
            yield file
        except Exception:
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise


def _require_client(root: str) -> None:
    """Import hdfs-native, which registers itself with fsspec instead of the client that needs Hadoop's libraries."""
    try:
        importlib.import_module("hdfs_native")
    except ImportError as error:
        raise ConfigurationError(
            "The package hdfs-native, which HDFS needs, is not installed.",
            where=root,
            found=str(error),
            cure="run: pip install 'tidegate[hdfs]', on this host and on the workers",
        ) from error


class _Reader(io.RawIOBase):
    """Adapt the client's reader to ``BufferedReader``: its ``seek`` does not return the position, and it has no ``readinto``."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    @as_os_errors
    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
