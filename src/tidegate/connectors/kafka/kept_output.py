"""A copy of what a transaction holds, on checkpoint storage: if the broker drops the transaction, it is written again from here."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from tidegate.common.files import FileHandle, Files, FileWriter
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.operators.sink import WriterContext

_DIRECTORY = "output"
_HEAD = struct.Struct(">HIQ")
"""Of each batch: bytes of the topic's name, partition, bytes of the batch; then name and batch."""

Written = Iterable[tuple[TopicPartition, bytes]]


class KeptOutput:
    """The file of one attempt while it is written. No two attempts share a name."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self._stream: FileWriter | None = files.create_stream(name)

    @staticmethod
    def create(context: WriterContext) -> KeptOutput:
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        return KeptOutput(Files(context.staging), f"{_DIRECTORY}/{context.round:010d}-{context.subtask}-{attempt}")

    def add(self, written: Written) -> None:
        assert self._stream is not None
        for place, data in written:
            topic = place.topic.encode()
            self._stream.write(_HEAD.pack(len(topic), place.partition, len(data)) + topic)
            self._stream.write(data)

    def finish(self) -> tuple[str, int, str]:
        """Durable; returns its address (a full one: another job may restore the checkpoint), size and hash."""
        assert self._stream is not None
        stream, self._stream = self._stream, None
        handle = stream.close()
        return self._files.location(self._name), handle.size, handle.hash

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


def read_kept(kept: tuple[str, int, str]) -> Iterator[tuple[TopicPartition, bytes]]:
    """The batches of a file, verified as a whole before the first."""
    address, size, content = kept
    directory, _, name = address.rpartition("/")
    data = memoryview(Files(directory).read(FileHandle(name, size, content)))
    at = 0
    while at < len(data):
        length, partition, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        topic = bytes(data[at : at + length]).decode()
        at += length
        yield TopicPartition(topic, partition), bytes(data[at : at + count])
        at += count


def delete_kept(kept: tuple[str, int, str]) -> None:
    directory, _, name = kept[0].rpartition("/")
    Files(directory).delete(name)


def lingering_output(files: Files) -> list[str]:
    """Names of all files of a sink's staging directory."""
    return list(files.list(_DIRECTORY))
