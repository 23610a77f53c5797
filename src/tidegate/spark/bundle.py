"""The bundle, one zip with everything that a job needs in the workers, and the safe unpacking of zip files.

A bundle is named by its content, and unpacked once on each host. A bundle that no process has used for a week is
deleted when another one is unpacked.

A zip file may come from a stranger: no entry leaves the target, and none fills the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from tidegate.base.errors import DependencyError, TidegateError
from tidegate.base.private_dirs import private_home
from tidegate.common.dependencies import Dependencies

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


log = logging.getLogger(__name__)

_MANIFEST, _REQUIREMENTS, _PACKAGES, _HADOOP = "manifest.json", "requirements.txt", "packages", "hadoop"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: equal content gives equal bytes, and so an equal name."""
_IMPORTABLE = (".zip", ".whl", ".egg")
_READY, _USED = ".ready", ".used"
_UNUSED_S = 7 * 24 * 3600
_used: dict[Path, TextIO] = {}
"""Bundles that this process uses, with the lock that shows it."""


@dataclass
class Manifest:
    """The content of an unpacked bundle, as relative paths."""

    python_path: list[str] = field(default_factory=list)
    cached: dict[str, str] = field(default_factory=dict)
    executables: list[str] = field(default_factory=list)
    archives: dict[str, str] = field(default_factory=dict)
    """The directory to unpack into -> the archive."""
    requirements: bool = False
    packages: bool = False
    hadoop: bool = False


# -- made where the program is started


@functools.cache
def _staging() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tidegate-ship-")


def staging() -> str:
    """Return a directory that lives as long as this process: executors that start late fetch files from it too."""
    return _staging().name


def make_bundle(
    dependencies: Dependencies,
    modules: dict[str, Path],
    directory: str,
    hadoop: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Make a bundle, named by its content. ``modules`` maps names to files, of the modules beside the program. ``hadoop`` maps the
    names of Hadoop's configuration files to their content."""
    manifest = Manifest(
        requirements=dependencies.requirements is not None,
        packages=dependencies.packages is not None,
        hadoop=bool(hadoop),
    )
    with (
        tempfile.NamedTemporaryFile(dir=directory, suffix=".zip", delete=False) as file,
        zipfile.ZipFile(file, "w") as zipped,
    ):
        for number, path in enumerate(map(Path, dependencies.python_files)):
            manifest.python_path += _add_python(zipped, path, f"python/{number}")
        for name, path in sorted(modules.items()):
            _add(zipped, path, f"program/{name}")
        manifest.python_path += ["program"] if modules else []
        for number, (archive, target) in enumerate(dependencies.archives):
            manifest.archives[f"work/{target}"] = _add(zipped, Path(archive), f"archives/{number}")
        for number, cached in enumerate(dependencies.cached_files):
            held = f"cached/{number}/{os.path.basename(cached.path)}"
            manifest.cached[cached.name] = _add(zipped, Path(cached.path), held)
            manifest.executables += [held] if cached.executable else []
        if dependencies.requirements is not None:
            _add(zipped, Path(dependencies.requirements), _REQUIREMENTS)
        if dependencies.packages is not None:
            _add(zipped, Path(dependencies.packages), _PACKAGES)
        for name, content in sorted(hadoop.items()):
            zipped.writestr(zipfile.ZipInfo(f"{_HADOOP}/{name}", _EPOCH), content)
        zipped.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), json.dumps(vars(manifest)))
    with open(file.name, "rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()[:32]
    bundle = Path(directory, f"tidegate-{digest}.zip")
    os.replace(file.name, bundle)
    return bundle


def _add_python(zipped: zipfile.ZipFile, path: Path, place: str) -> list[str]:
    """Add Python files. Return the entries for the path: a directory for its modules, and its parent if it is a package."""
    held = _add(zipped, path, f"{place}/{path.name}")
    if path.is_dir():
        return [held, place] if (path / "__init__.py").exists() else [held]
    return [held] if path.suffix.lower() in _IMPORTABLE else [place]


def _add(zipped: zipfile.ZipFile, path: Path, name: str) -> str:
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if path.is_dir():
        zipped.writestr(zipfile.ZipInfo(f"{name}/", _EPOCH), b"")
    for file in files:
        if "__pycache__" not in file.parts:
            entry = zipfile.ZipInfo(f"{name}/{file.relative_to(path)}" if path.is_dir() else name, _EPOCH)
            entry.external_attr = (file.stat().st_mode & 0o777) << 16
            with open(file, "rb") as source, zipped.open(entry, "w") as target:
                shutil.copyfileobj(source, target)
    return name


# -- unpacked where functions run


@dataclass(frozen=True)
class Unpacked:
    """A bundle on this host. ``work`` is the working directory of functions that open files of an archive. ``hadoop`` is the
    directory of Hadoop's configuration files, as the driver has them."""

    python_path: tuple[str, ...]
    cached: dict[str, str]
    work: str | None
    hadoop: str | None = None


def home() -> str:
    """Return the directory for bundles on this host. Only this user can write to it."""
    try:
        return private_home(tempfile.gettempdir(), "tidegate-dependencies")
    except TidegateError as error:
        # Workers import code from there, so a directory that another user can write to is refused.
        raise DependencyError(
            "Another user may write to the directory for dependencies",
            where=error.where,
            found=error.found,
            cure="set TMPDIR of the workers to a directory that only this user may write to",
        ) from error


def unpacked(bundle: str) -> Unpacked:
    """Unpack a bundle and install its requirements, unless a process of this host has done so. Other processes wait."""
    # pip installs for one Python version only
    python = f"{sys.version_info.major}.{sys.version_info.minor}-{sysconfig.get_platform()}"
    place = Path(home(), f"{Path(bundle).stem}-{python}")
    _use(place)
    with _locked(f"{place}.lock"):
        if not (place / _READY).exists():
            _remove_unused(place.parent)
            shutil.rmtree(place, ignore_errors=True)
            _unpack(bundle, place)
        (place / _READY).touch()
    manifest = _manifest(place)
    installed = [str(place / "site")] if manifest.requirements else []
    return Unpacked(
        (*(str(place / part) for part in manifest.python_path), *installed),
        {name: str(place / part) for name, part in manifest.cached.items()},
        str(place / "work") if manifest.archives else None,
        str(place / _HADOOP) if manifest.hadoop else None,
    )


def _use(place: Path) -> None:
    """Keep the bundle from being deleted while this process lives."""
    if place not in _used:
        file = open(f"{place}{_USED}", "w")  # noqa: SIM115 (the lock goes with the process)
        fcntl.flock(file, fcntl.LOCK_SH)
        _used[place] = file


def _remove_unused(home: Path) -> None:
    """Delete bundles that no process of this host uses or has used for a week."""
    for ready in home.glob(f"*/{_READY}"):
        place = ready.parent
        if time.time() - ready.stat().st_mtime > _UNUSED_S and place not in _used:
            with open(f"{place}{_USED}", "w") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)


def _unpack(bundle: str, place: Path) -> None:
    with zipfile.ZipFile(bundle) as zipped:
        zipped.extractall(place)
    manifest = _manifest(place)
    for target, archive in manifest.archives.items():
        unpack_zip(place / archive, place / target)
    for executable in manifest.executables:
        path = place / executable
        path.chmod(path.stat().st_mode | 0o111)
    if manifest.requirements:
        _install(place, manifest.packages)


def _manifest(place: Path) -> Manifest:
    return Manifest(**json.loads((place / _MANIFEST).read_text()))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(place: Path, packages: bool) -> None:
    offline = ["--no-index", "--find-links", str(place / _PACKAGES)] if packages else []
    wanted = ["-r", str(place / _REQUIREMENTS), "--target", str(place / "site")]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    log.info("installing the job's requirements on this host, into %s ...", place / "site")
    started = time.monotonic()
    command = [*_pip(), "install", *quiet, *offline, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DependencyError(
            "The requirements of the job cannot be installed on this host",
            where=f"host {os.uname().nodename}, {' '.join(command[:3])}",
            found="\n".join(done.stderr.strip().splitlines()[-5:]),
            cure="give a directory with the packages: set_python_requirements(file, requirements_cache_dir)"
            if not packages
            else "add every package for this platform and Python to the directory: pip download -d directory -r file",
        )
    log.info("requirements installed in %.1f s", time.monotonic() - started)


def _pip() -> list[str]:
    """Return the command of pip: of the workers' Python, else the one that Python includes for new environments."""
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    wheels = glob.glob(os.path.join(os.path.dirname(bundled.origin or ""), "_bundled", "pip-*.whl")) if bundled else []
    if not wheels:
        raise DependencyError(
            "pip is missing, and requirements are installed with pip",
            found=f"{sys.executable} has no pip",
            cure=f"run: {sys.executable} -m ensurepip",
        )
    return [sys.executable, os.path.join(wheels[0], "pip")]
