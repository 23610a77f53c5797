"""Files with the encoded rows of one round, on checkpoint storage, for the rounds between two checkpoints.

A database gets one transaction for each subtask and checkpoint, however many rounds a checkpoint covers: servers allow few prepared
transactions, and two transactions must not wait for each other's rows. So a round without a barrier writes its rows, encoded for
the database, into a file. The next writer of the subtask gets the file as its state. The round with the barrier sends the files
and its own rows. No checkpoint ever names such a file: at its cut all rows are in transactions.
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
"""Before each frame: the number of the table, rows, bytes."""


@dataclass(frozen=True)
class Frame:
    """Encoded rows of one table, for one statement."""

    table: int
    rows: int
    payload: bytes


class FrameFile(StagedFile):
    """A file that is being written. It has at least one frame."""

    def __init__(self, context: WriterContext) -> None:
        super().__init__(context, _DIRECTORY, aside=True)
        self._rows = 0

    def add(self, frame: Frame) -> None:
        self._rows += frame.rows
        self.write(_HEAD.pack(frame.table, frame.rows, len(frame.payload)), frame.payload)

    def staged(self) -> dict[str, Any]:
        """Make the file durable. Returns what the next writer needs to read the file."""
        address, size, content = self.finish()
        return {"address": address, "size": size, "hash": content, "rows": self._rows}


def read_frames(staged: dict[str, Any]) -> Iterator[Frame]:
    """The file is verified as a whole before the first frame."""
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
    """Names of all files in the staging directory of a sink."""
    return list(files.list(_DIRECTORY))
