"""A copy of what a transaction holds, on checkpoint storage: if the broker drops the transaction, it is written again from here."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tidegate.base.files import FileHandle, Files
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.staged_file import StagedFile

OUTPUT = "output"
_HEAD = struct.Struct(">HIQ")
"""Of each batch: bytes of the topic's name, partition, bytes of the batch; then name and batch."""

Written = Iterable[tuple[TopicPartition, bytes]]


def add_kept(file: StagedFile, written: Written) -> None:
    for place, data in written:
        topic = place.topic.encode()
        file.write(_HEAD.pack(len(topic), place.partition, len(data)) + topic, data)


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
    return list(files.list(OUTPUT))
