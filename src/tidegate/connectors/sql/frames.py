"""Encoded rows of one round, as a file on checkpoint storage: rounds between two checkpoints keep them there.

A database sees one transaction for each subtask and checkpoint, however many rounds a checkpoint covers: prepared ones are few on
every server, and two of them must not wait for each other's rows. So a round without a barrier writes its rows, encoded as the
database wants them, into a file that the next writer of the subtask gets as its state; the round with the barrier sends the
files and its own rows. No checkpoint ever names such a file: at its cut all rows are in transactions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.common.files import FileHandle, Files, FileWriter
from tidegate.operators.sink import WriterContext

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
    """The file of one attempt while it is written. No two attempts share a name."""

    def __init__(self, context: WriterContext) -> None:
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        self._files = Files(context.staging)
        self._name = f"{_DIRECTORY}/{context.round:010d}-{context.subtask}-{attempt}"
        self._stream: FileWriter | None = self._files.create_stream(self._name)
        self._rows = 0

    def add(self, frame: Frame) -> None:
        assert self._stream is not None
        self._rows += frame.rows
        self._stream.write(_HEAD.pack(frame.table, frame.rows, len(frame.payload)))
        self._stream.write(frame.payload)

    def finish(self) -> dict[str, Any]:
        """Durable; what the next writer needs to read it. The address is a full one."""
        assert self._stream is not None
        stream, self._stream = self._stream, None
        handle = stream.close()
        location = self._files.location(self._name)
        return {"address": location, "size": handle.size, "hash": handle.hash, "rows": self._rows}

    def drop(self) -> None:
        if self._stream is not None:
            self._stream.discard()
            self._stream = None
        else:
            self._files.delete(self._name)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.discard()
            self._stream = None


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
