"""Schemas of Kafka's records: serialize values to records, and deserialize records to values.

A record has a topic, key, value, headers and partition. A deserializer takes the value alone, or all fields of a
record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.serialization import (
    DeserializationSchema,
    SerializationSchema,
    as_batch,
    for_many,
    produced_type,
)
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.kafka.records import ConsumerRecord
from tidegate.operators.contracts.source import Batch

Bytes = bytes | None


class KafkaTopicSelector(ABC):
    """Choose the topic of each record."""

    @abstractmethod
    def apply(self, data: Any, /) -> str:
        """The topic of the record; the topic must exist."""


class KafkaRecordSerializationSchema:
    """Convert a value to a record. Made by ``builder()``."""

    def __init__(
        self,
        topic: str | None,
        selector: Callable[[Any], str] | None,
        key: SerializationSchema | None,
        value: SerializationSchema,
        headers: Callable[[Any], Sequence[tuple[str, bytes]]] | None,
        partitioner: Callable[..., int] | None,
    ) -> None:
        self.topic, self.selector = topic, selector
        self._key, self._value = key, value
        self.headers, self.partitioner = headers, partitioner

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Return a builder without topic and schema."""
        return KafkaRecordSerializationSchemaBuilder()

    def keys(self, values: list[Any]) -> list[Bytes]:
        """Return the keys of the messages for a batch of records: None without a schema for the key."""
        return [None] * len(values) if self._key is None else _serialized(self._key, values)

    def values(self, values: list[Any]) -> list[Bytes]:
        """Return the values of the messages for a batch of records."""
        return _serialized(self._value, values)


def _serialized(schema: SerializationSchema, values: list[Any]) -> list[Bytes]:
    return for_many(schema, "serialize")(values)


class KafkaRecordSerializationSchemaBuilder:
    """Requires a topic or a topic selector, and a schema for the value."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._selector: Any = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None
        self._headers: Any = None
        self._partitioner: Any = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        """Write all records to this topic."""
        self._topic = topic
        return self

    def set_topic_selector(
        self, topic_selector: KafkaTopicSelector | Callable[[Any], str]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Choose the topic for each record."""
        if not callable(topic_selector) and not hasattr(topic_selector, "apply"):
            raise wrong("set_topic_selector", "a KafkaTopicSelector or a callable", topic_selector, "lambda value: ...")
        self._selector = topic_selector
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Make the key of a message from the record. Without it, messages have no key."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Make the value of a message from the record."""
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def set_header_provider(
        self, header_provider: Callable[[Any], Sequence[tuple[str, bytes]]]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a callable: value -> pairs of name and bytes."""
        self._headers = header_provider
        return self

    def set_partitioner(self, partitioner: Callable[..., int]) -> KafkaRecordSerializationSchemaBuilder:
        """Set a callable: (value, key bytes or None, topic, number of partitions) -> partition from 0. By default the hash of the
        key decides, as in Kafka's own clients; records without a key go to the partitions in turn."""
        self._partitioner = partitioner
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """Return the serializer. It needs a topic or a selector, and a schema for the value."""
        if (self._topic is None) == (self._selector is None):
            raise ProgramError(
                "A record serializer needs a topic or a topic selector",
                where="KafkaRecordSerializationSchema.builder()",
                found="neither" if self._topic is None else "both",
                cure="call one of set_topic(...) and set_topic_selector(...)",
            )
        if self._value is None:
            raise ProgramError(
                "A record serializer needs a schema for the value",
                where="KafkaRecordSerializationSchema.builder()",
                found="no schema for the value",
                cure="call set_value_serialization_schema(SimpleStringSchema())",
            )
        selector = getattr(self._selector, "apply", self._selector)
        return KafkaRecordSerializationSchema(
            self._topic, selector, self._key, self._value, self._headers, self._partitioner
        )


def _schema(where: str, schema: Any) -> SerializationSchema:
    if not hasattr(schema, "serialize"):
        raise wrong(where, "a SerializationSchema", schema, "for example SimpleStringSchema()")
    found: SerializationSchema = schema
    return found


# -- the partition of a key ----------------------------------------------------------------------------------------------

_SEED, _M = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


def partitions_of(keys: list[bytes], count: int) -> list[int]:
    """The partition of each key as in Kafka's clients: murmur2 of its bytes. Hashes all keys of one length at once."""
    result = np.empty(len(keys), np.int64)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        rows = np.frombuffer(b"".join([keys[n] for n in places.tolist()]), np.uint8).reshape(len(places), length)
        result[places] = (_murmur2(rows) & np.uint32(0x7FFFFFFF)) % np.uint32(count)
    found: list[int] = result.tolist()
    return found


def _murmur2(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    count, length = rows.shape
    h = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    with np.errstate(over="ignore"):
        words = np.ascontiguousarray(rows[:, : length // 4 * 4]).view("<u4")
        for n in range(length // 4):
            k = words[:, n] * _M
            k ^= k >> np.uint32(24)
            k *= _M
            h *= _M
            h ^= k
        rest = rows[:, length // 4 * 4 :]
        for n in range(rest.shape[1] - 1, -1, -1):
            h ^= rest[:, n].astype(np.uint32) << np.uint32(8 * n)
        if rest.shape[1]:
            h *= _M
        h ^= h >> np.uint32(13)
        h *= _M
        h ^= h >> np.uint32(15)
    return h


class KafkaRecordDeserializationSchema(ABC):
    """Convert a record of a topic to a value. Extend this class to read key, headers, timestamp, partition and offset.

    Instances are pickled to the executors; ``open`` is called once for each copy. The event time of a value is the timestamp of
    its record.
    """

    def open(self) -> None:
        """Called before the first record."""

    def close(self) -> None:
        """Called when the copy is discarded."""

    @abstractmethod
    def deserialize(self, record: ConsumerRecord, /) -> Any:
        """The value of the record; None: skip the record."""

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the values; None: unknown."""
        return None

    @staticmethod
    def value_only(deserialization_schema: DeserializationSchema) -> KafkaRecordDeserializationSchema:
        """Deserialize the value of a record by a schema; key and headers are ignored."""
        return ValueOnly(deserialization_schema)

    def batch(self, place: TopicPartition, records: list[Any]) -> Batch:
        """The values of many records with the timestamps of the records, as the client has read them."""
        topic, partition = place
        values, times = [], []
        for r in records:
            headers = tuple((name, value or b"") for name, value in r.headers)
            value = self.deserialize(ConsumerRecord(topic, partition, r.offset, r.timestamp, r.key, r.value, headers))
            if value is not None:
                values.append(value)
                times.append(r.timestamp)
        return Batch(values, times)


class ValueOnly(KafkaRecordDeserializationSchema):
    """Deserialize whole batches at once, if the schema can. Records without a value (tombstones) are skipped."""

    def __init__(self, schema: DeserializationSchema) -> None:
        if not hasattr(schema, "deserialize"):
            raise wrong("a Kafka source", "a DeserializationSchema", schema, "for example SimpleStringSchema()")
        self._schema = schema

    def get_produced_type(self) -> TypeInformation | None:
        return produced_type(self._schema)

    def deserialize(self, record: ConsumerRecord) -> Any:
        return None if record.value is None else self._schema.deserialize(record.value)

    def batch(self, place: TopicPartition, records: list[Any]) -> Batch:
        payloads = [record.value for record in records]
        times = [record.timestamp for record in records]
        if any(payload is None for payload in payloads):
            present = [n for n, payload in enumerate(payloads) if payload is not None]
            payloads, times = [payloads[n] for n in present], [times[n] for n in present]
        values = (as_batch(self._schema) or for_many(self._schema, "deserialize"))(payloads)
        if isinstance(values, Batch):
            return values.with_times(times)
        if any(value is None for value in values):
            present = [n for n, value in enumerate(values) if value is not None]
            values, times = [values[n] for n in present], [times[n] for n in present]
        return Batch(values, times)
