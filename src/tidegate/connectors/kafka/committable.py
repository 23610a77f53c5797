"""A transaction that a round hands to the driver, written and open, and the copy of its output on checkpoint storage.

If the broker aborts the transaction, the committer writes the copy into a new one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.base.files import FileHandle, Files
from tidegate.base.plain_text import count
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.kafka.transactions import Producer
from tidegate.connectors.staged_file import StagedFile

OUTPUT = "output"
"""The directory of the copies, in the staging directory of the sink."""
_HEAD = struct.Struct(">HIQ")
"""Before each record batch: bytes of the topic's name, partition, bytes of the batch; then name and batch."""


@dataclass(frozen=True)
class KafkaCommittable:
    """``firsts``: the first offset in every partition, so that the log can show how the transaction ended. ``copy``: the file with
    a copy of the output (its path, size and hash), or None."""

    producer: Producer
    firsts: dict[TopicPartition, int]
    records: int
    copy: tuple[str, int, str] | None = None

    @property
    def name(self) -> str:
        """Unique for ever: an id and an epoch have one transaction."""
        p = self.producer
        return f"{p.transactional_id}-{p.producer_id}-{p.epoch}"

    def plain(self) -> dict[str, Any]:
        """The form in a checkpoint."""
        p = self.producer
        return {
            "id": p.transactional_id,
            "producer": [p.producer_id, p.epoch],
            "firsts": [[*place, first] for place, first in self.firsts.items()],
            "records": self.records,
            "kept": None if self.copy is None else list(self.copy),
        }

    @staticmethod
    def from_plain(data: dict[str, Any]) -> KafkaCommittable:
        producer = Producer(data["id"], *data["producer"])
        firsts = {TopicPartition(topic, partition): first for topic, partition, first in data["firsts"]}
        copy = None if data["kept"] is None else (data["kept"][0], data["kept"][1], data["kept"][2])
        return KafkaCommittable(producer, firsts, data["records"], copy)

    def __str__(self) -> str:
        places = ", ".join(f"{place} from offset {first}" for place, first in self.firsts.items())
        return f"transaction {self.name} with {count(self.records, 'record')} ({places})"


# -- the copy of the output ----------------------------------------------------------------------------------------------


def add_copy(file: StagedFile, written: Iterable[tuple[TopicPartition, bytes]]) -> None:
    for place, data in written:
        topic = place.topic.encode()
        file.write(_HEAD.pack(len(topic), place.partition, len(data)) + topic, data)


def read_copy(copy: tuple[str, int, str]) -> Iterator[tuple[TopicPartition, bytes]]:
    """The record batches of a file. The file is verified as a whole before the first."""
    address, size, content = copy
    directory, _, name = address.rpartition("/")
    data = memoryview(Files(directory).read(FileHandle(name, size, content)))
    at = 0
    while at < len(data):
        length, partition, bytes_of_batch = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        topic = bytes(data[at : at + length]).decode()
        at += length
        yield TopicPartition(topic, partition), bytes(data[at : at + bytes_of_batch])
        at += bytes_of_batch


def delete_copy(copy: tuple[str, int, str]) -> None:
    directory, _, name = copy[0].rpartition("/")
    Files(directory).delete(name)


def stored_copies(files: Files) -> list[str]:
    """Names of all copies in the staging directory of a sink."""
    return list(files.list(OUTPUT))
