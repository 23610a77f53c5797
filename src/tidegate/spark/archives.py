"""Unpacks the zip files of a job. A zip file may come from a stranger: no entry leaves the target, and none fills the disk."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
import zlib
from pathlib import Path

from tidegate.base.errors import DependencyError

MOST_BYTES = 32 << 30
MOST_ENTRIES = 1_000_000
"""An environment with several machine learning frameworks stays well below both."""
_FILE_KINDS = (0, stat.S_IFREG, stat.S_IFDIR)
"""Zero: made on a system that does not say."""


def unpack_zip(archive: Path, target: Path) -> None:
    """Unpack into ``target``, with the permissions that the entries have. Raise DependencyError for an entry that is not a file or
    directory below ``target``, and for an archive that is too large. All entries are checked before the first one is written."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            entries = zipped.infolist()
            _check_size(entries, target)
            for entry in entries:
                _check_entry(entry, target)
            for entry in entries:
                # zipfile reads no more than the size that was checked, whatever the compressed data holds
                written = zipped.extract(entry, target)
                mode = entry.external_attr >> 16 & 0o777
                if mode and not entry.is_dir():
                    os.chmod(written, mode & 0o755 | 0o600)
    except zipfile.BadZipFile as error:
        raise _refused("The archive is not a zip file", target, str(error), "make it with: zip -r a.zip a") from error
    except (OSError, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
        raise _refused(
            "The archive cannot be unpacked",
            target,
            f"{type(error).__name__}: {error}",
            "check the archive with 'unzip -t' (it has no password), and the disk it is unpacked on",
        ) from error


def _check_size(entries: list[zipfile.ZipInfo], target: Path) -> None:
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_ENTRIES or size > MOST_BYTES:
        raise _refused(
            f"The archive has more than {MOST_ENTRIES:,} entries or {MOST_BYTES >> 30} GiB unpacked",
            target,
            f"{len(entries):,} entries, {size:,} bytes",
            "split the archive, or install its content on every host",
        )
    existing = next(place for place in (target, *target.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise _refused(
            "The archive does not fit on the disk that it is unpacked on",
            target,
            f"{size:,} bytes unpacked, {free:,} bytes free on the disk of {existing}",
            "free space there, or set TMPDIR of the workers",
        )


def _check_entry(entry: zipfile.ZipInfo, target: Path) -> None:
    name = entry.filename
    if "\\" in name:
        found, cure = "a backslash in the name", "use '/' between directories"
    elif name.startswith("/") or ".." in name.split("/"):
        found, cure = "a path that leads out of the archive", "use relative names without '..'"
    elif stat.S_IFMT(entry.external_attr >> 16) not in _FILE_KINDS:
        found, cure = "a link or a device", "replace links by their targets: 'zip -r a.zip a' without -y"
    else:
        return
    rule = "An entry of the archive is no file or directory below the directory it is unpacked into"
    raise _refused(rule, target, f"entry {name!r}: {found}", cure)


def _refused(rule: str, target: Path, found: str, cure: str) -> DependencyError:
    return DependencyError(rule, where=f"archive '{target.name}'", found=found, cure=cure)
