"""Deserialize Kafka's records: their values alone, or all fields of a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.common.serialization import DeserializationSchema, for_many, produced_type
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.kafka.cluster import TopicPartition
from tidegate.connectors.kafka.records import ConsumerRecord
from tidegate.operators.contracts.source import Batch


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
    def deserialize(self, record: ConsumerRecord) -> Any:
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
        values = for_many(self._schema, "deserialize")(payloads)
        if any(value is None for value in values):
            present = [n for n, value in enumerate(values) if value is not None]
            values, times = [values[n] for n in present], [times[n] for n in present]
        return Batch(values, times)
