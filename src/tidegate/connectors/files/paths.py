"""Paths of data files, as users write them and as connectors store them. ``base/files.py`` holds the files themselves."""

from __future__ import annotations

import os

from tidegate.base.files import FILE_SINK, Files

COPY_BUFFER = 1 << 20
SINK, SOURCE = FILE_SINK, "the directory of a file source"
"""Owners of files, for messages."""


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if name else directory


def full_path(path: str) -> str:
    """Return a path that means the same in every process: an absolute local path, or the URL itself."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if "://" in path else os.path.abspath(path)


def same_content(files: Files, one: str, other: str) -> bool:
    with files.open_stream(one) as left, files.open_stream(other) as right:
        while block := left.read(COPY_BUFFER):
            if block != right.read(COPY_BUFFER):
                return False
        return not right.read(1)
