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
    """Each call sets Flink's keys in the configuration; ``execute`` checks that all files exist."""

    _configuration: Configuration

    def add_python_file(self, file_path: str) -> None:
        """Add a Python file, a package, a directory of modules, or a zip, whl or egg file for imports in the workers. The last
        one is found first."""
        self._append(PYTHON_FILES, _path("add_python_file", file_path), first=True)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Set a requirements file. pip installs it once on every host, before the first record, into a separate directory.

        ``requirements_cache_dir``: a directory with the packages, for hosts without access to an index (``pip download -d``).
        """
        text = _path("set_python_requirements", requirements_file_path)
        if requirements_cache_dir is not None:
            text += PART + _path("set_python_requirements", requirements_cache_dir)
        self._configuration.write(PYTHON_REQUIREMENTS, text)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Add a zip file that is unpacked on every host. Functions open its files by a relative path that begins with
        ``target_dir``, else with the file's name: the functions of a job with archives run in the directory of the archives."""
        text = _path("add_python_archive", archive_path)
        if target_dir is not None:
            text += PART + expect_text("add_python_archive", target_dir, "the name of a directory")
        self._append(PYTHON_ARCHIVES, text, first=False)

    def set_python_executable(self, python_exec: str) -> None:
        """Set the Python of the workers: on the PATH there, absolute, or in an archive. Only the first job of the process uses
        it: Spark's workers stay."""
        self._configuration.write(
            PYTHON_EXECUTABLE, expect_text("set_python_executable", python_exec, "for example python3")
        )

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """Add a file or directory that functions find on every host by
        ``RuntimeContext.get_distributed_cache().get_file(name)``."""
        if not isinstance(executable, bool):
            raise wrong("register_cached_file", "True or False", executable, "executable=True")
        expect_text("register_cached_file", name, "a name to find the file by")
        if any(letter in name for letter in ",;:"):
            raise ProgramError(
                "The name of a cached file contains ',', ';' or ':'", found=repr(name), cure="use another name"
            )
        files = [CachedFile.parse(text) for text in self._configuration.read(CACHED_FILES) or ()]
        if any(file.name == name for file in files):
            raise ProgramError(
                "Two cached files have the same name", found=f"a second '{name}'", cure="use another name"
            )
        files.append(CachedFile(name, _path("register_cached_file", file_path), executable))
        self._configuration.write(CACHED_FILES, [str(file) for file in files])

    def add_jars(self, *jars_path: str) -> None:
        """Accept jars of PyFlink programs as ``pipeline.jars``. No Java code runs: when the program is executed, a notice says
        for each jar which part of Tidegate replaces it."""
        self._add_java(JARS, "add_jars", jars_path)

    def add_classpaths(self, *classpaths: str) -> None:
        """Accept class paths as ``pipeline.classpaths``, as ``add_jars`` does."""
        self._add_java(CLASSPATHS, "add_classpaths", classpaths)

    def _add_java(self, option: Option, method: str, places: tuple[str, ...]) -> None:
        added = [expect_text(method, place, "file:///opt/flink-sql-connector-kafka.jar") for place in places]
        self._configuration.write(option, [*(self._configuration.read(option) or ()), *added])

    def _append(self, option: Option, text: str, *, first: bool) -> None:
        before = self._configuration.read(option)
        parts = [text, before] if first else [before, text]
        self._configuration.write(option, SEPARATOR.join(filter(None, parts)))


def _path(method: str, path: str) -> str:
    """Return the absolute path: the program may change its directory before it executes."""
    expect_text(method, path, "the path of a file")
    if SEPARATOR in path or PART in path:
        raise ProgramError(
            f"{method} takes a path without '{SEPARATOR}' and '{PART}'", found=repr(path), cure="rename the file"
        )
    return os.path.abspath(path)
