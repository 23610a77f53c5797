"""The environment's methods for what functions need in the workers: modules, archives, packages, files."""

from __future__ import annotations

import os

from tidegate.base.arguments import expect_text, wrong
from tidegate.base.errors import ProgramError
from tidegate.common.configuration import Configuration
from tidegate.common.dependencies import PART, SEPARATOR, CachedFile
from tidegate.common.options import (
    CACHED_FILES,
    CLASSPATHS,
    JARS,
    PYTHON_ARCHIVES,
    PYTHON_EXECUTABLE,
    PYTHON_FILES,
    PYTHON_REQUIREMENTS,
    Option,
)


class JobDependencies:
    """Each call is kept in the configuration, by Flink's keys; ``execute`` looks whether everything is there."""

    _configuration: Configuration

    def add_python_file(self, file_path: str) -> None:
        """A Python file, a package, a directory of modules, or a zip, whl or egg file that functions import in the workers.
        What was added last is found first."""
        self._append(PYTHON_FILES, _path("add_python_file", file_path), first=True)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """A requirements file. pip installs it once on every host, before the first record, into a directory of its own.

        ``requirements_cache_dir``: a directory with the packages, for hosts without access to an index (``pip download -d``).
        """
        text = _path("set_python_requirements", requirements_file_path)
        if requirements_cache_dir is not None:
            text += PART + _path("set_python_requirements", requirements_cache_dir)
        self._configuration.write(PYTHON_REQUIREMENTS, text)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """A zip file that is unpacked on every host. Functions open what is in it by a relative path that begins with
        ``target_dir``, else with the file's name: while a job has archives, its functions run in the directory they are in."""
        text = _path("add_python_archive", archive_path)
        if target_dir is not None:
            text += PART + expect_text("add_python_archive", target_dir, "the name of a directory")
        self._append(PYTHON_ARCHIVES, text, first=False)

    def set_python_executable(self, python_exec: str) -> None:
        """The Python of the workers: on the PATH there, absolute, or in an archive. It counts when the first job of the process
        starts: Spark's workers then stay as they are."""
        self._configuration.write(
            PYTHON_EXECUTABLE, expect_text("set_python_executable", python_exec, "for example python3")
        )

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """A file or directory that functions find, on every host, by ``RuntimeContext.get_distributed_cache().get_file(name)``."""
        if not isinstance(executable, bool):
            raise wrong("register_cached_file", "True or False", executable, "executable=True")
        expect_text("register_cached_file", name, "a name to find the file by")
        if any(letter in name for letter in ",;:"):
            raise ProgramError("The name of a cached file has no ',', ';' or ':'", found=repr(name))
        files = [CachedFile.parse(text) for text in self._configuration.read(CACHED_FILES) or ()]
        if any(file.name == name for file in files):
            raise ProgramError("A cached file is registered once", found=f"a second '{name}'", cure="another name")
        files.append(CachedFile(name, _path("register_cached_file", file_path), executable))
        self._configuration.write(CACHED_FILES, [str(file) for file in files])

    def add_jars(self, *jars_path: str) -> None:
        """Accepted for PyFlink programs, and kept as ``pipeline.jars``. No Java code runs: when the program is executed, a notice
        says for each jar which part of Tidegate does its work."""
        self._add_java(JARS, "add_jars", jars_path)

    def add_classpaths(self, *classpaths: str) -> None:
        """As ``add_jars``, for ``pipeline.classpaths``."""
        self._add_java(CLASSPATHS, "add_classpaths", classpaths)

    def _add_java(self, option: Option, method: str, places: tuple[str, ...]) -> None:
        added = [expect_text(method, place, "file:///opt/flink-sql-connector-kafka.jar") for place in places]
        self._configuration.write(option, [*(self._configuration.read(option) or ()), *added])

    def _append(self, option: Option, text: str, *, first: bool) -> None:
        before = self._configuration.read(option)
        parts = [text, before] if first else [before, text]
        self._configuration.write(option, SEPARATOR.join(filter(None, parts)))


def _path(method: str, path: str) -> str:
    """Absolute: the program may change its directory before it executes."""
    expect_text(method, path, "the path of a file")
    if SEPARATOR in path or PART in path:
        raise ProgramError(
            f"{method} takes a path without '{SEPARATOR}' and '{PART}'", found=repr(path), cure="rename it"
        )
    return os.path.abspath(path)
