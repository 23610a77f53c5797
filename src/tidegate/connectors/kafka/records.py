"""Record batches as Kafka stores them: read from a fetch answer, written for a produce request, stamped anew."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidegate.connectors.kafka.libraries import DefaultRecordBatchBuilder, MemoryRecords, crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_CRC_AT, _CHECKED_FROM, _GREATEST_AT, _PRODUCER_AT, _COUNT_AT = 17, 21, 35, 43, 57
_COMMIT = 1


class ConsumerRecord(NamedTuple):
    """A record as a full deserializer gets it. ``timestamp`` in milliseconds; ``headers``: pairs of name and bytes."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class BadRecord(NamedTuple):
    """A record that did not deserialize. ``error``: what the deserializer raised, as text."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    error: str


class Marker(NamedTuple):
    """The end of a transaction, in the log. ``epoch``: of the producer, one higher where the broker has fenced it."""

    offset: int
    producer_id: int
    epoch: int
    committed: bool


def batches(data: bytes) -> Iterator[Any]:
    """The batches of a fetch answer; the last may be cut off, and is left out."""
    records = MemoryRecords(data)
    while records.has_next():
        yield records.next_batch()


def end_of(batch: Any) -> int:
    """The offset behind a batch: what was compacted away at its end counts."""
    return int(batch.next_offset)


def marker(batch: Any) -> Marker:
    """What a control batch says."""
    record = next(iter(batch))
    _, kind = struct.unpack(">hh", record.key[:4])
    return Marker(int(batch.base_offset), int(batch.producer_id), int(batch.producer_epoch), kind == _COMMIT)


class Aborted:
    """Leaves out the records of aborted transactions: a fetch answer names each by its producer and its first offset."""

    def __init__(self, transactions: Sequence[Any]) -> None:
        self._waiting = sorted(((t.first_offset, t.producer_id) for t in transactions), reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: Any) -> bool:
        """Whether no reader may see the batch. Asked for every batch, in order."""
        while self._waiting and self._waiting[-1][0] <= batch.next_offset - 1:
            self._open.add(self._waiting.pop()[1])
        if batch.is_control_batch:
            found = marker(batch)
            if not found.committed:
                self._open.discard(found.producer_id)
            return True
        return bool(batch.is_transactional) and batch.producer_id in self._open


class BatchBuilder:
    """Collects records of one partition for one batch of at most ``size`` bytes."""

    def __init__(self, codec: int, size: int, *, transactional: bool) -> None:
        self._codec, self._size, self._transactional = codec, size, transactional
        self._new()

    def _new(self) -> None:
        self._builder = DefaultRecordBatchBuilder(2, self._codec, int(self._transactional), -1, -1, -1, self._size)
        self.count = 0

    def add(self, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> bool:
        """False: the batch is full. Then it holds at least one record, however large that is."""
        if self._builder.append(self.count, timestamp, key, value, headers) is None:
            return False
        self.count += 1
        return True

    def take(self) -> bytes:
        """The batch, and a new one is begun. Producer and sequence are not in it yet."""
        data = bytes(self._builder.build())
        self._new()
        return data


def stamped(data: bytes, producer: tuple[int, int], sequence: int) -> bytes:
    """A batch with its producer (id and epoch) and its place in that producer's sequence for the partition."""
    batch = bytearray(data)
    struct.pack_into(">qhi", batch, _PRODUCER_AT, *producer, sequence)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_CHECKED_FROM:])))
    return bytes(batch)


def count_of(data: bytes) -> int:
    """How many records a batch holds."""
    (count,) = struct.unpack_from(">i", data, _COUNT_AT)
    return int(count)


def greatest_time_of(data: bytes) -> int:
    """The greatest timestamp of its records, in milliseconds."""
    (moment,) = struct.unpack_from(">q", data, _GREATEST_AT)
    return int(moment)
