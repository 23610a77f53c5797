"""The local file system of ``Files``: plain system calls, fsync, permissions. And names of hidden and temporary files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO

from tidegate.base import faults
from tidegate.base.hashing import new_token

STREAM_BUFFER = 1 << 18


def is_hidden(name: str) -> bool:
    """Return whether a source skips a file of this name: Flink's rule."""
    return name.startswith((".", "_"))


def temporary_name(path: str) -> str:
    """Return the path that a file has until it is complete."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.{new_token()}.tmp"


class Access:
    """Permissions of new files and directories.

    With ``private`` only the user has access below ``root``; directories above ``root`` follow the umask. A directory with the
    setgid bit widens this: the group gets the same access to everything below as to the directory, whatever the umask. The user
    that writes there may be another one than the user that reads and deletes.
    """

    def __init__(self, root: str, private: bool) -> None:
        self._root, self._private = root, private

    def open_new(self, path: str) -> int:
        try:
            return self._open_new(path)
        except FileNotFoundError:  # only the first file of a directory pays for making it
            self.make_directories(os.path.dirname(path))
            return self._open_new(path)

    def _open_new(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if not self._private:
            return os.open(path, flags, 0o666)
        file = os.open(path, flags, 0o600)
        shared = _group_access(os.path.dirname(path))
        if shared:
            with contextlib.suppress(OSError):
                os.fchmod(file, 0o600 | shared & 0o660)
        return file

    def make_directories(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._make_directory(directory)
            _sync_directory(os.path.dirname(directory))

    def _make_directory(self, path: str) -> None:
        is_below = f"{path}/".startswith(f"{self._root}/")
        os.mkdir(path, 0o700 if self._private and is_below else 0o777)
        shared = _group_access(os.path.dirname(path)) if self._private else 0
        if shared:
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_ISGID | shared)

    def protect_root(self, group: bool) -> None:
        """Make the root private, or with ``group`` open to its group by the setgid bit. An existing root of the user is changed."""
        self.make_directories(self._root)
        mode = stat.S_ISGID | 0o770 if group else 0o700
        status = os.stat(self._root)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
            with contextlib.suppress(OSError):  # some mounts have no modes
                os.chmod(self._root, mode)


def _group_access(directory: str) -> int:
    """Return the group's permissions in the directory; 0 without the setgid bit."""
    mode = os.stat(directory).st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0


class LocalStream:
    """A file being written, at ``path`` itself or (``aside``) under a temporary name until it is complete."""

    def __init__(self, path: str, aside: bool, access: Access) -> None:
        self._path, self._written = path, temporary_name(path) if aside else path
        self._file = os.fdopen(access.open_new(self._written), "wb", STREAM_BUFFER)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        """Make the file durable. Raise ``FileExistsError`` if another writer has made a file of this name."""
        with _removed_on_error(self._written):
            try:
                faults.point("storage.write.opened", path=self._path)
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()
            if self._written != self._path:
                _link_new(self._written, self._path)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._written)
        _sync_directory(os.path.dirname(self._path))

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._written)


class LocalFileSystem:
    """All paths are absolute. Raises OSError.

    Temporary files are named ``.<name>.<random>.tmp``, so that a sweep finds those of a crash.
    """

    def __init__(self, root: str, private: bool = True) -> None:
        self.root, self.access = root, Access(root, private)

    def create(self, path: str, data: bytes) -> None:
        self._write_new(path, data)
        _sync_directory(os.path.dirname(path))

    def create_stream(self, path: str, aside: bool) -> LocalStream:
        return LocalStream(path, aside, self.access)

    def open_stream(self, path: str) -> BinaryIO:
        return open(path, "rb", STREAM_BUFFER)

    def publish(self, path: str, data: bytes) -> None:
        # The whole content is durable under another name first; link is atomic and refuses an existing name.
        temporary = self._write_temporary(path, data)
        with _removed_on_error(temporary):
            faults.point("storage.publish.before-link", path=path, temporary=temporary)
            _link_new(temporary, path)
            faults.point("storage.publish.after-link", path=path, temporary=temporary)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        _sync_directory(os.path.dirname(path))

    def replace(self, path: str, data: bytes) -> None:
        temporary = self._write_temporary(path, data)
        with _removed_on_error(temporary):
            faults.point("storage.replace.before-rename", path=path, temporary=temporary)
            os.replace(temporary, path)
        _sync_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        # link + unlink, because rename(2) overwrites silently. A crash in between leaves two names of one file:
        # the next call then finds that the target is the source itself, and finishes.
        self.access.make_directories(os.path.dirname(target))
        try:
            _link_new(source, target)
        except FileExistsError:
            if not os.path.samefile(source, target):
                raise
        os.unlink(source)
        _sync_directory(os.path.dirname(target))

    def make_directory(self, path: str) -> None:
        self.access.make_directories(path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def delete_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def find(self, path: str, hidden: bool) -> Iterator[tuple[str, int]]:
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if not hidden and is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from ((f"{entry.name}/{name}", size) for name, size in self.find(entry.path, hidden))
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted since the listing
                    yield entry.name, entry.stat().st_size

    def walk(self, path: str) -> Iterator[str]:
        for directory, _, names in os.walk(path, onerror=_raise_unless_missing):
            prefix = os.path.relpath(directory, path)
            yield from (name if prefix == "." else f"{prefix}/{name}" for name in names)

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def _write_temporary(self, path: str, data: bytes) -> str:
        temporary = temporary_name(path)
        self._write_new(temporary, data)
        return temporary

    def _write_new(self, path: str, data: bytes) -> None:
        file = self.access.open_new(path)
        with _removed_on_error(path):
            try:
                faults.point("storage.write.opened", path=path)
                _write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)  # an error on close fails the write too


def _write_all(file: int, data: bytes) -> None:
    written = os.write(file, data)
    if written != len(data):
        view = memoryview(data)
        while written < len(data):
            written += os.write(file, view[written:])


def _link_new(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # File systems without hard links (some FUSE mounts): a file is still never visible in part, but two publishers at
        # the same moment may both succeed.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        os.rename(source, target)


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    """Remove an incomplete file after an error of the file system. After a crash a sweep removes it."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
