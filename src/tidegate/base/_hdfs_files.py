"""HDFS behind ``Files``, through fsspec and hdfs-native: names are taken by creating and by moving, both without overwriting."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from tidegate.base import faults
from tidegate.base._local_files import temporary_name
from tidegate.base._remote_files import RemoteFileSystem, as_os_errors
from tidegate.base.errors import ConfigurationError

PROTOCOLS = frozenset(("hdfs", "viewfs"))
_READ_BUFFER = 1 << 20
_ONE_NAME_NODE = {"dfs.client.failover.max.attempts": "2"}
"""Who tries again, and when, is decided above. The client's default of fifteen, three minutes, is for a name service, where
another one may take over."""


class HdfsFileSystem(RemoteFileSystem):
    """All paths are full addresses. Raises OSError.

    A file shows with its name, and half written, as soon as it is created. So whatever others look for is written under a
    temporary name and moved when it is complete: a move is one step of the name node, which refuses an existing target
    (``publish``, ``rename``) or takes its place (``replace``). Files that nobody looks for are created under their own name: the
    name node gives a name once. There is no look before either, so of two at the very same moment one is refused.

    fsspec's own ``pipe_file`` looks first and then overwrites, so it is not used. Missing directories are made by the name node.
    """

    def __init__(self, root: str) -> None:
        _require_client(root)
        try:
            super().__init__(root, **(_ONE_NAME_NODE if urlsplit(root).port is not None else {}))
        except RuntimeError as error:
            raise ConfigurationError(
                "An address on HDFS names its name node or name service, or Hadoop's configuration does.",
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
        except FileNotFoundError:  # a move makes no directories
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.mv(source, target)

    @contextlib.contextmanager
    def _removed_on_error(self, path: str, file: Any = None) -> Iterator[Any]:
        """Remove a half-made file after an error. After a crash a sweep does it."""
        try:
            yield file
        except Exception:
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise


def _require_client(root: str) -> None:
    """It makes itself known to fsspec, in the place of one that needs Hadoop's own libraries."""
    try:
        importlib.import_module("hdfs_native")
    except ImportError as error:
        raise ConfigurationError(
            "HDFS is reached through the package hdfs-native.",
            where=root,
            found=str(error),
            cure="pip install 'tidegate[hdfs]', here and on the workers",
        ) from error


class _Reader(io.RawIOBase):
    """The client's reader, as a buffer needs it: its own ``seek`` does not tell the place, and it has no ``readinto``."""

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
