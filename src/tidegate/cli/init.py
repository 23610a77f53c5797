"""``tidegate init NAME``: a project with a job, its test, a configuration and a Makefile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tidegate.base.errors import ConfigurationError

FILES = {
    "job.py": "job.py.txt",
    "tests/test_job.py": "test_job.py.txt",
    "conf/config.yaml": "config.yaml.txt",
    "data/orders.csv": "orders.csv.txt",
    "Makefile": "Makefile.txt",
    "README.md": "README.md.txt",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore.txt",
}
"""File of the project -> its template in ``cli/project``. A template has the name of the project as ``@NAME@``."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Project:
    """What was made. ``files`` are relative to the directory."""

    directory: Path
    files: list[str]


def make(name: str) -> Project:
    """Write the project. Nothing is written if the name or the directory is unsuitable."""
    directory = Path(name)
    project = directory.resolve().name
    if not _NAME.fullmatch(project):
        raise ConfigurationError(
            "The name of a project has letters, digits, '-' and '_', and begins with a letter",
            found=repr(project),
            cure="tidegate init my-project",
        )
    _refuse_unusable(directory)
    templates = files("tidegate.cli") / "project"
    texts = {file: (templates / template).read_text().replace("@NAME@", project) for file, template in FILES.items()}
    try:
        for file, text in texts.items():
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise ConfigurationError(
            "The project cannot be written", where=str(directory), found=str(error), cure="choose another directory"
        ) from None
    return Project(directory, list(FILES))


def _refuse_unusable(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(
            "The path of a new project is a file", where=str(directory), found="a file", cure="choose another name"
        )
    present = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if present:
        raise ConfigurationError(
            "The directory of a new project is not empty",
            where=str(directory),
            found=", ".join(present[:5]) + (" ..." if len(present) > 5 else ""),
            cure="choose another name, or an empty directory",
        )
