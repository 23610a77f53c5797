"""FlinkKafkaConsumer and FlinkKafkaProducer: the Kafka source and sink of former Flink versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Self

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common import WatermarkStrategy
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.connectors.functions.function_sink import AddedSink, AddedSource, deprecated
from tidegate.connectors.kafka import sink, source
from tidegate.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.serialization import KafkaRecordDeserializationSchema, KafkaRecordSerializationSchema
from tidegate.connectors.kafka.source import Subscription
from tidegate.operators.contracts.sink import DeliveryGuarantee

_DISCOVERY = ("flink.partition-discovery.interval-millis", "partition.discovery.interval.ms")
"""The former name of a property, and its name today."""
_COMMITS = "commit.offsets.on.checkpoint"


class FlinkKafkaConsumerBase(source.KafkaSource, AddedSource):
    """A ``KafkaSource`` with the methods of former versions. They set the offsets of the first start; a restored job starts at
    the offsets of its snapshot."""

    def set_commit_offsets_on_checkpoints(self, commit_on_checkpoints: bool) -> Self:
        """Whether a complete checkpoint commits its offsets to the group. True by default."""
        self.properties[_COMMITS] = "true" if commit_on_checkpoints else "false"
        return self

    def set_start_from_earliest(self) -> Self:
        """Start a new job at the earliest offset of each partition. A restore starts at the offsets of the
        checkpoint."""
        return self._from(KafkaOffsetsInitializer.earliest())

    def set_start_from_latest(self) -> Self:
        """Start a new job at the end of each partition. A restore starts at the offsets of the checkpoint."""
        return self._from(KafkaOffsetsInitializer.latest())

    def set_start_from_timestamp(self, startup_offsets_timestamp: int) -> Self:
        """Start at the first record whose timestamp in milliseconds is not less; at the end of partitions without such a record."""
        return self._from(KafkaOffsetsInitializer.timestamp(startup_offsets_timestamp))

    def set_start_from_group_offsets(self) -> Self:
        """Start at the committed offsets of the group (the default). For a partition without one ``auto.offset.reset`` decides,
        which is ``latest`` unless set."""
        reset = self.properties.choice("auto.offset.reset", ("none", "earliest", "latest"), "latest")
        strategy = KafkaOffsetResetStrategy[reset.upper()]
        if self.group is None:  # there are no committed offsets
            return self._from(KafkaOffsetsInitializer.offsets({}, strategy))
        return self._from(KafkaOffsetsInitializer.committed_offsets(strategy))

    def _from(self, starting: KafkaOffsetsInitializer) -> Self:
        self.starting = starting
        return self

    def disable_filter_restored_partitions_with_subscribed_topics(self) -> Self:
        """Has no effect: restored partitions are always read, even if the source no longer names their topics."""
        return self

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> Self:
        """Timestamps and watermarks for each partition, as ``from_source`` takes them."""
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise wrong(
                "assign_timestamps_and_watermarks",
                "a WatermarkStrategy",
                watermark_strategy,
                "WatermarkStrategy.for_monotonous_timestamps()",
            )
        self.watermark_strategy = watermark_strategy
        return self


class FlinkKafkaConsumer(FlinkKafkaConsumerBase):
    """A ``KafkaSource``, for ``add_source``. Deprecated since Flink 1.16: use ``KafkaSource.builder()``."""

    def __init__(
        self, topics: str | list[str], deserialization_schema: DeserializationSchema, properties: Mapping[str, Any]
    ) -> None:
        deprecated("FlinkKafkaConsumer", "KafkaSource.builder()")
        given = _properties("FlinkKafkaConsumer", properties)
        former, today = _DISCOVERY
        if former in given:
            given[today] = given.pop(former)
        given.check("FlinkKafkaConsumer", source.USED)
        given.client()
        named: Sequence[str] = [topics] if isinstance(topics, str) else list(topics)
        if not named:
            raise ProgramError(
                "A Kafka source needs a topic", where="FlinkKafkaConsumer", found="none", cure="name at least one topic"
            )
        super().__init__(
            given,
            Subscription(topics=tuple(named)),
            KafkaOffsetsInitializer.latest(),
            None,
            KafkaRecordDeserializationSchema.value_only(deserialization_schema),
            bounded=False,
        )
        self.set_start_from_group_offsets()


class Semantic(Enum):
    """The guarantee of FlinkKafkaProducer: that of the ``DeliveryGuarantee`` with the same name."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class FlinkKafkaProducerBase(sink.KafkaSink, AddedSink):
    """A ``KafkaSink`` with the methods of former versions."""

    stamps = False

    def set_log_failures_only(self, log_failures_only: bool) -> Self:
        """Whether records that the brokers refuse are only reported in the log, and lost. Then nothing is guaranteed."""
        if log_failures_only and self.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            raise ProgramError(
                "A producer that loses records cannot be exactly-once",
                where="FlinkKafkaProducer",
                found="set_log_failures_only(True) with Semantic.EXACTLY_ONCE",
                cure="Semantic.AT_LEAST_ONCE, or leave set_log_failures_only out",
            )
        self.only_logs = bool(log_failures_only)
        self._deliver(self.delivery)
        return self

    def set_flush_on_checkpoint(self, flush_on_checkpoint: bool) -> Self:
        """Whether a checkpoint waits until the brokers have the records: True is at-least-once, False no guarantee. Exactly-once
        always waits."""
        if self.delivery is not DeliveryGuarantee.EXACTLY_ONCE:
            self._deliver(DeliveryGuarantee.AT_LEAST_ONCE if flush_on_checkpoint else DeliveryGuarantee.NONE)
        return self

    def set_write_timestamp_to_kafka(self, write_timestamp_to_kafka: bool) -> Self:
        """Whether records carry their event time in Kafka. Otherwise they carry the time at which they are written."""
        self.stamps = bool(write_timestamp_to_kafka)
        return self


class FlinkKafkaProducer(FlinkKafkaProducerBase):
    """A ``KafkaSink``, for ``add_sink``. Deprecated since Flink 1.16: use ``KafkaSink.builder()``.

    ``kafka_producer_pool_size`` has no effect: a subtask uses as many transactional ids as it needs. The ids start with
    ``transactional.id.prefix`` of the properties, or else with the job id.
    """

    def __init__(
        self,
        topic: str,
        serialization_schema: SerializationSchema,
        producer_config: Mapping[str, Any],
        kafka_producer_pool_size: int = 5,
        semantic: Semantic = Semantic.AT_LEAST_ONCE,
    ) -> None:
        deprecated("FlinkKafkaProducer", "KafkaSink.builder()")
        if not isinstance(semantic, Semantic):
            raise wrong("FlinkKafkaProducer", "a Semantic", semantic, "Semantic.AT_LEAST_ONCE")
        given = _properties("FlinkKafkaProducer", producer_config)
        given.check("FlinkKafkaProducer", sink.USED)
        given.client()
        builder = KafkaRecordSerializationSchema.builder().set_topic(topic)
        serializer = builder.set_value_serialization_schema(serialization_schema).build()
        prefix = given.get("transactional.id.prefix")
        super().__init__(given, serializer, DeliveryGuarantee[semantic.name], prefix, keep_output=True)

    def ignore_failures_after_transaction_timeout(self) -> Self:
        """Has no effect: a transaction that the broker aborted after its timeout is written again from the checkpoint, so no record
        is lost."""
        return self


def _properties(where: str, properties: Any) -> ClientProperties:
    if not isinstance(properties, Mapping):
        raise wrong(where, "a dict of properties", properties, '{"bootstrap.servers": "host:9092"}')
    given = ClientProperties(properties)
    if "bootstrap.servers" not in given:
        raise ProgramError(
            "A Kafka client needs the address of a broker",
            where=where,
            found="no 'bootstrap.servers' in the properties",
            cure='{"bootstrap.servers": "host:9092"}',
        )
    return given
