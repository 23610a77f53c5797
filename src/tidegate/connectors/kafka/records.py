"""Record batches as Kafka stores them: read from a fetch answer, built for a produce request, stamped with their producer."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidegate.connectors.kafka.libraries import DefaultRecordBatchBuilder, MemoryRecords, crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_CRC_AT, _CHECKED_FROM, _GREATEST_AT, _PRODUCER_AT, _COUNT_AT = 17, 21, 35, 43, 57
_COMMIT = 1


class ConsumerRecord(NamedTuple):
    """A record for a ``KafkaRecordDeserializationSchema``. ``timestamp`` in milliseconds; ``headers``: pairs of name and bytes."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class BadRecord(NamedTuple):
    """A record that did not deserialize. ``error``: the exception of the deserializer, as text."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    error: str


class Marker(NamedTuple):
    """The end of a transaction in the log. ``epoch``: of the producer; one higher if the broker has fenced the producer."""

    offset: int
    producer_id: int
    epoch: int
    committed: bool


def batches(data: bytes) -> Iterator[Any]:
    """The record batches of a fetch answer. The last one may be incomplete, and is skipped."""
    records = MemoryRecords(data)
    while records.has_next():
        yield records.next_batch()


def end_of(batch: Any) -> int:
    """The offset after a batch, including records at its end that compaction removed."""
    return int(batch.next_offset)


def marker(batch: Any) -> Marker:
    """The marker in a control batch."""
    record = next(iter(batch))
    _, kind = struct.unpack(">hh", record.key[:4])
    return Marker(int(batch.base_offset), int(batch.producer_id), int(batch.producer_epoch), kind == _COMMIT)


class Aborted:
    """Hide the records of aborted transactions: a fetch answer names each by its producer and its first offset."""

    def __init__(self, transactions: Sequence[Any]) -> None:
        self._waiting = sorted(((t.first_offset, t.producer_id) for t in transactions), reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: Any) -> bool:
        """Whether readers may not see the batch. Called for every batch, in order."""
        while self._waiting and self._waiting[-1][0] <= batch.next_offset - 1:
            self._open.add(self._waiting.pop()[1])
        if batch.is_control_batch:
            found = marker(batch)
            if not found.committed:
                self._open.discard(found.producer_id)
            return True
        return bool(batch.is_transactional) and batch.producer_id in self._open


class BatchBuilder:
    """Collect records of one partition into a record batch of at most ``size`` bytes."""

    def __init__(self, codec: int, size: int, *, transactional: bool) -> None:
        self._codec, self._size, self._transactional = codec, size, transactional
        self._new()

    def _new(self) -> None:
        self._builder = DefaultRecordBatchBuilder(2, self._codec, int(self._transactional), -1, -1, -1, self._size)
        self.count = 0

    def add(self, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> bool:
        """False: the batch is full. A batch takes at least one record, however large it is."""
        if self._builder.append(self.count, timestamp, key, value, headers) is None:
            return False
        self.count += 1
        return True

    def take(self) -> bytes:
        """Finish the batch and begin a new one. Producer and sequence are not in it yet."""
        data = bytes(self._builder.build())
        self._new()
        return data


def stamped(data: bytes, producer: tuple[int, int], sequence: int) -> bytes:
    """The batch with its producer (id and epoch) and its number in the producer's sequence for the partition."""
    batch = bytearray(data)
    struct.pack_into(">qhi", batch, _PRODUCER_AT, *producer, sequence)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_CHECKED_FROM:])))
    return bytes(batch)


def count_of(data: bytes) -> int:
    """The number of records in a batch."""
    (count,) = struct.unpack_from(">i", data, _COUNT_AT)
    return int(count)


def greatest_time_of(data: bytes) -> int:
    """The greatest timestamp of the records in a batch, in milliseconds."""
    (moment,) = struct.unpack_from(">q", data, _GREATEST_AT)
    return int(moment)
