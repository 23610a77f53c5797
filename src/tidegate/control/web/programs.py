"""Programs that people upload: ``.py`` files, and ``.zip`` files with several. Each has a directory below TIDEGATE_HOME."""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import stat
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import msgspec

from tidegate.base.errors import ConfigurationError, UnknownJobError
from tidegate.base.hashing import new_token
from tidegate.control.flink import programs as flink
from tidegate.control.registry import folder, write_private

FOLDER = "programs"
LARGEST_PROGRAM = 64 << 20
_LARGEST_UNPACKED, _MOST_FILES = 512 << 20, 10_000
MOST_PROGRAMS = 100
_LONGEST_PATH, _LONGEST_NAME = 1000, 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,120}\.(py|zip)")
_ID = re.compile(r"[0-9a-f]{8,64}")
_DAMAGED = (
    zipfile.BadZipFile,
    RuntimeError,
    NotImplementedError,
    EOFError,
    OSError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
)
"""What ``zipfile`` raises for archives that are damaged, encrypted or of another kind."""
_ABOUT = "about.json"
_FILES = "files"


class Program(flink.Program, frozen=True, kw_only=True):
    """``entries``: the Python files that can be started, the likeliest first. ``size``: bytes of what was uploaded."""

    size: int


class RunRequest(flink.RunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a program. ``entry``: a function of the file; of a ``.zip`` a file, or ``file.py:function``. ``savepoint``: the
    snapshot to start from."""


class Programs:
    """The uploaded programs of the user."""

    def all(self) -> list[Program]:
        """Newest first."""
        place = folder(FOLDER)
        found = (self._read(path.name) for path in place.iterdir() if path.is_dir())
        return sorted((program for program in found if program is not None), key=lambda program: -program.uploaded_ms)

    def get(self, id: str) -> Program:
        found = self._read(id) if _ID.fullmatch(id) else None
        if found is None:
            raise UnknownJobError("There is no program with this id", found=repr(id)[:100], cure="upload it again")
        return found

    def file(self, program: Program, entry: str | None) -> tuple[Path, str | None, Path]:
        """Return the file to run, the function of it to call, and the directory with all its files."""
        place = folder(FOLDER) / program.id / _FILES
        if program.name.endswith(".py"):
            return place / program.name, entry, place
        file, _, function = (entry or program.entries[0]).partition(":")
        if file not in program.entries:
            raise ConfigurationError(
                "The entry names no file of the program",
                found=repr(entry),
                cure=f"give one of {', '.join(program.entries[:10])}, with :FUNCTION to call a function",
            )
        return place / file, function or None, place

    def check_name(self, name: str) -> None:
        """Raise ConfigurationError unless this is the name of a file, and no path."""
        if _NAME.fullmatch(name) is None or ".." in name:
            raise ConfigurationError(
                "The name of a program is that of a .py or .zip file, and no path",
                found=repr(name)[:200],
                cure="name it for example job.py: letters, digits, spaces and . _ + -",
            )

    def add(self, name: str, content: bytes) -> Program:
        """Store a program. Raise ConfigurationError if it is no Python, or a ``.zip`` that must not be unpacked."""
        self.check_name(name)
        if len(self.all()) >= MOST_PROGRAMS:
            raise ConfigurationError(
                "Too many programs are uploaded", found=str(MOST_PROGRAMS), cure="delete programs that are not needed"
            )
        files = _unpacked(name, content) if name.endswith(".zip") else {name: content}
        for path, text in files.items():
            if path.endswith(".py"):
                _check_python(path, text)
        entries = sorted((path for path in files if path.endswith(".py")), key=_likely)
        if not entries:
            raise ConfigurationError("A program needs a Python file", where=name, found="no .py file in it")
        program = Program(
            id=new_token(),
            name=name,
            size=len(content),
            uploaded_ms=time.time_ns() // 1_000_000,
            entries=tuple(entries),
        )
        place = folder(FOLDER) / program.id
        place.mkdir(mode=0o700)
        try:
            for path, text in files.items():
                target = place / _FILES / path
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                target.write_bytes(text)
            write_private(place / _ABOUT, msgspec.json.encode(program))  # last: without it there is no program
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return program

    def delete(self, id: str) -> None:
        """Delete a program. Jobs that run it continue: a driver has read its files, but a restart of the driver needs them."""
        shutil.rmtree(folder(FOLDER) / self.get(id).id)

    def _read(self, id: str) -> Program | None:
        try:
            return msgspec.json.decode((folder(FOLDER) / id / _ABOUT).read_bytes(), type=Program)
        except (OSError, msgspec.MsgspecError):
            return None


def _likely(path: str) -> tuple[bool, int, str]:
    return PurePosixPath(path).name not in ("main.py", "job.py", "__main__.py"), path.count("/"), path


def _check_python(path: str, content: bytes) -> None:
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(
            "The program is no Python",
            where=path,
            found=f"{type(error).__name__}: {error}"[:500],
            cure="check the file",
        ) from None


def _unpacked(name: str, content: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _LARGEST_UNPACKED:
                raise _refused(name, f"it unpacks to more than {_MOST_FILES:,} files or {_LARGEST_UNPACKED:,} bytes")
            paths = [_member(name, member) for member in members]
            _check_apart(name, paths)
            return {path: _content(archive, member) for path, member in zip(paths, members, strict=True)}
    except _DAMAGED as error:
        if isinstance(error, ConfigurationError):
            raise
        raise _refused(name, f"{type(error).__name__}: {error}") from None


def _member(name: str, member: zipfile.ZipInfo) -> str:
    path = PurePosixPath(member.filename)
    bad = path.is_absolute() or ".." in path.parts or "\\" in member.filename or ":" in member.filename
    if bad or any(ord(c) < 32 for c in member.filename) or not path.parts:
        raise _refused(name, f"a file with the path {member.filename[:200]!r}")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise _refused(name, f"a link: {member.filename[:200]!r}")
    return path.as_posix()


def _check_apart(name: str, paths: list[str]) -> None:
    """Refuse paths that no file system holds together, and names that are too long for one."""
    files = set(paths)
    for path in paths:
        above = next((str(parent) for parent in PurePosixPath(path).parents if str(parent) in files), None)
        if above is not None:
            raise _refused(name, f"{above[:200]!r} both as a file and as a directory")
        if len(path) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.split("/")):
            raise _refused(name, f"a path that is too long: {path[:200]!r}")


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Read a file of the archive, and no more than it says: the sizes in an archive may be wrong."""
    with archive.open(member) as file:
        content = file.read(member.file_size + 1)
    if len(content) > member.file_size:
        raise zipfile.BadZipFile(f"{member.filename} is larger than it says")
    return content


def _refused(name: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        "The .zip file cannot be unpacked",
        where=name,
        found=found,
        cure="make it anew from the directory of the program",
    )
