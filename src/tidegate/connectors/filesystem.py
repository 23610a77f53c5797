"""Data files, streamed: what file connectors need beyond ``common.files``; local ones directly, others through
fsspec.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, cast

import fsspec

COPY_BUFFER = 1 << 20


class DataFiles(ABC):
    """Files of one file system. Paths are full: plain local paths, or URLs as the user wrote them."""

    @abstractmethod
    def create(self, path: str) -> BinaryIO:
        """A new file for writing; parent directories are made. Refuses to overwrite."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO: ...

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The file's size in bytes; None if there is no such file."""

    @abstractmethod
    def is_directory(self, path: str) -> bool: ...

    @abstractmethod
    def find(self, directory: str, hidden: bool) -> Iterator[tuple[str, int]]:
        """Files below the directory with their sizes, sorted. Without ``hidden``, names that start with ``.`` or
        ``_`` are left out, directories included. A directory that is not there has no files.
        """

    @abstractmethod
    def close_durably(self, stream: BinaryIO) -> None:
        """Close a file of ``create`` so that its content survives a power cut."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make names of new files in the directory durable."""


class LocalDataFiles(DataFiles):
    def create(self, path: str) -> BinaryIO:
        try:
            return open(path, "xb")
        except FileNotFoundError:
            _make_directories(os.path.dirname(path))
            return open(path, "xb")

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def find(self, directory: str, hidden: bool) -> Iterator[tuple[str, int]]:
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if not hidden and is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from self.find(entry.path, hidden)
            else:
                size = self.size(entry.path)
                if size is not None:  # deleted between listing and looking
                    yield entry.path, size

    def close_durably(self, stream: BinaryIO) -> None:
        try:
            stream.flush()
            os.fsync(stream.fileno())
        finally:
            stream.close()

    def sync_directory(self, path: str) -> None:
        _sync(path)


class RemoteDataFiles(DataFiles):
    """Any fsspec file system. Closing a file there makes it visible and durable at once."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    def create(self, path: str) -> BinaryIO:
        if self._fs.exists(path):
            raise FileExistsError(path)
        self._fs.makedirs(parent(path), exist_ok=True)
        return cast(BinaryIO, self._fs.open(path, "wb"))

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def size(self, path: str) -> int | None:
        self._fs.invalidate_cache(parent(path))
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def is_directory(self, path: str) -> bool:
        return bool(self._fs.isdir(path))

    def find(self, directory: str, hidden: bool) -> Iterator[tuple[str, int]]:
        self._fs.invalidate_cache()
        root = str(self._fs._strip_protocol(directory)).rstrip("/")
        found = self._fs.find(directory, detail=True) if self._fs.exists(directory) else {}
        for path in sorted(found):
            below = path[len(root) :].lstrip("/")
            if hidden or not any(is_hidden(name) for name in below.split("/")):
                # The user's own URL stays in front: it may hold a host that the bare path does not.
                yield join(directory, below), int(found[path]["size"])

    def close_durably(self, stream: BinaryIO) -> None:
        stream.close()

    def sync_directory(self, path: str) -> None:
        return


def _make_directories(path: str) -> None:
    if not os.path.isdir(path):
        above = os.path.dirname(path)
        _make_directories(above)
        os.makedirs(path, exist_ok=True)  # another subtask may have been faster
        _sync(above)


def _sync(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_hidden(name: str) -> bool:
    """Flink's rule for files a source does not read."""
    return name.startswith((".", "_"))


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if name else directory


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def full_path(path: str) -> str:
    """A path that means the same in every process: absolute if local, the URL itself otherwise."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if "://" in path else os.path.abspath(path)


def files_at(path: str) -> DataFiles:
    """The file system of a full path."""
    scheme, separator, rest = path.partition("://")
    return _remote(scheme, rest.partition("/")[0]) if separator else _LOCAL


@lru_cache(maxsize=64)
def _remote(scheme: str, authority: str) -> DataFiles:
    return RemoteDataFiles(fsspec.core.url_to_fs(f"{scheme}://{authority}/")[0])


def copy_into(path: str, stream: BinaryIO) -> None:
    """Append the file's content to the stream."""
    with files_at(path).open(path) as source:
        shutil.copyfileobj(source, stream, COPY_BUFFER)


def same_content(one: str, other: str) -> bool:
    with files_at(one).open(one) as left, files_at(other).open(other) as right:
        while block := left.read(COPY_BUFFER):
            if block != right.read(COPY_BUFFER):
                return False
        return not right.read(1)


_LOCAL = LocalDataFiles()
