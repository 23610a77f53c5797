"""Encoded rows of one round, as a file on checkpoint storage: rounds between two checkpoints keep them there.

A database sees one transaction for each subtask and checkpoint, however many rounds a checkpoint covers: prepared ones are few on
every server, and two of them must not wait for each other's rows. So a round without a barrier writes its rows, encoded as the
database wants them, into a file that the next writer of the subtask gets as its state; the round with the barrier sends the
files and its own rows. No checkpoint ever names such a file: at its cut all rows are in transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.base.files import FileHandle, Files
from tidegate.connectors.staged_file import StagedFile
from tidegate.operators.contracts.sink import WriterContext

_DIRECTORY = "rows"
_HEAD = struct.Struct(">HIQ")
"""Of each frame: number of the table, rows, bytes; then the bytes."""


@dataclass(frozen=True)
class Frame:
    """Rows of one table as bytes of one statement."""

    table: int
    rows: int
    payload: bytes


class FrameFile:
    """While it is written. It has a frame at least."""

    def __init__(self, context: WriterContext) -> None:
        self._file, self._rows = StagedFile(context, _DIRECTORY, aside=True), 0

    def add(self, frame: Frame) -> None:
        self._rows += frame.rows
        self._file.write(_HEAD.pack(frame.table, frame.rows, len(frame.payload)), frame.payload)

    def finish(self) -> dict[str, Any]:
        """Durable; what the next writer needs to read it."""
        address, size, content = self._file.finish()
        return {"address": address, "size": size, "hash": content, "rows": self._rows}

    def drop(self) -> None:
        self._file.drop()

    def close(self) -> None:
        self._file.close()


def read_frames(staged: dict[str, Any]) -> Iterator[Frame]:
    """Verified as a whole before the first."""
    directory, _, name = staged["address"].rpartition("/")
    data = memoryview(Files(directory).read(FileHandle(name, staged["size"], staged["hash"])))
    at = 0
    while at < len(data):
        table, rows, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Frame(table, rows, bytes(data[at : at + length]))
        at += length


def delete_frames(address: str) -> None:
    directory, _, name = address.rpartition("/")
    Files(directory).delete(name)


def staged_files(files: Files) -> list[str]:
    """Names of all files of a sink's staging directory."""
    return list(files.list(_DIRECTORY))
