"""Serialize values to Kafka's records: topic, key, value, headers, partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common.serialization import SerializationSchema, for_many

Bytes = bytes | None


class KafkaTopicSelector(ABC):
    """Choose the topic of each record."""

    @abstractmethod
    def apply(self, data: Any) -> str:
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
        return KafkaRecordSerializationSchemaBuilder()

    def keys(self, values: list[Any]) -> list[Bytes]:
        return [None] * len(values) if self._key is None else _serialized(self._key, values)

    def values(self, values: list[Any]) -> list[Bytes]:
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
        self._topic = topic
        return self

    def set_topic_selector(
        self, topic_selector: KafkaTopicSelector | Callable[[Any], str]
    ) -> KafkaRecordSerializationSchemaBuilder:
        if not callable(topic_selector) and not hasattr(topic_selector, "apply"):
            raise wrong("set_topic_selector", "a KafkaTopicSelector or a callable", topic_selector, "lambda value: ...")
        self._selector = topic_selector
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
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
