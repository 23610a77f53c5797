"""The dependencies of a program in the workers: Python files, archives, requirements, cached files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.common.option_types import parse_bool
from tidegate.common.options import CACHED_FILES, PYTHON_ARCHIVES, PYTHON_FILES, PYTHON_REQUIREMENTS, Option

SEPARATOR, PART = ",", "#"


@dataclass(frozen=True)
class CachedFile:
    """A file or directory that functions find by name."""

    name: str
    path: str
    executable: bool = False

    def __str__(self) -> str:
        return f"name:{self.name},path:{self.path}" + (",executable:true" if self.executable else "")

    @staticmethod
    def parse(text: str) -> CachedFile:
        """Parse ``name:a,path:/x,executable:true``. A path may contain colons and commas, so the other two parts are found around
        it."""
        head, separator, path = text.partition("path:")
        path, _, executable = path.rpartition(",executable:") if ",executable:" in path else (path, "", "false")
        name = head.strip().removeprefix("name:").rstrip(", ")
        if not separator or not name or not head.strip().startswith("name:"):
            cure = f"write {CACHED_FILES.key}: name:a,path:/tmp/a;name:b,path:/tmp/b"
            raise ConfigurationError(f"'{CACHED_FILES.key}' has an invalid entry", found=repr(text), cure=cure)
        return CachedFile(name, path.strip("'\" "), parse_bool(executable))


@dataclass(frozen=True)
class Dependencies:
    """All dependencies of a job. ``archives``: path and target directory."""

    python_files: tuple[str, ...] = ()
    archives: tuple[tuple[str, str], ...] = ()
    requirements: str | None = None
    packages: str | None = None
    """A directory that requirements are installed from; None: from pip's index."""
    cached_files: tuple[CachedFile, ...] = ()

    @staticmethod
    def of(configuration: Mapping[str, Any]) -> Dependencies:
        """Read the dependencies from typed values. Raise before anything starts if a file is missing."""

        def parts(option: Option) -> list[str]:
            return [part.strip() for part in (configuration.get(option.key) or "").split(SEPARATOR) if part.strip()]

        requirements, _, packages = (configuration.get(PYTHON_REQUIREMENTS.key) or "").partition(PART)
        found = Dependencies(
            tuple(parts(PYTHON_FILES)),
            tuple(_archive(part) for part in parts(PYTHON_ARCHIVES)),
            requirements or None,
            packages or None,
            tuple(CachedFile.parse(text) for text in configuration.get(CACHED_FILES.key) or ()),
        )
        found._check()
        return found

    def __bool__(self) -> bool:
        return bool(self.python_files or self.archives or self.requirements or self.cached_files)

    def _check(self) -> None:
        for option, path in self._paths():
            if not os.path.exists(path):
                raise ConfigurationError(
                    f"'{option.key}' names a file that does not exist",
                    found=f"no file or directory {path}",
                    cure="correct the path; a relative path starts in the directory in which the program is started",
                )
        for name, seen in (("archives", [target for _, target in self.archives]),
                           ("cached files", [file.name for file in self.cached_files])):  # fmt: skip
            twice = sorted({each for each in seen if seen.count(each) > 1})
            if twice:
                raise ConfigurationError(
                    f"Two {name} of a job have the same name", found=", ".join(twice), cure="rename one of them"
                )

    def _paths(self) -> Iterator[tuple[Option, str]]:
        yield from ((PYTHON_FILES, path) for path in self.python_files)
        yield from ((PYTHON_ARCHIVES, path) for path, _ in self.archives)
        yield from ((PYTHON_REQUIREMENTS, path) for path in (self.requirements, self.packages) if path)
        yield from ((CACHED_FILES, file.path) for file in self.cached_files)


def _archive(text: str) -> tuple[str, str]:
    path, _, target = text.partition(PART)
    target = target or os.path.basename(path)
    if os.path.isabs(target) or ".." in target.split("/"):
        raise ConfigurationError(
            "The target directory of an archive leads out of the functions' working directory",
            found=repr(text),
            cure="use a plain name",
        )
    return path, target
