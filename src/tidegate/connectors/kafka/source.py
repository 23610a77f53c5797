"""Kafka topics as a source: the driver plans ranges of offsets, the tasks read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.common.serialization import DeserializationSchema
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.kafka.cluster import READ_COMMITTED, READ_UNCOMMITTED
from tidegate.connectors.kafka.deserialization import KafkaRecordDeserializationSchema
from tidegate.connectors.kafka.enumerator import KafkaEnumerator, Subscription
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer, KafkaTopicPartition
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.graph.output_tag import OutputTag
from tidegate.operators.contracts.source import Boundedness, Source, SplitEnumerator, SplitReader

_DISCOVERY_MS = 300_000
USED = {
    "group.id",
    "isolation.level",
    "auto.offset.reset",
    "partition.discovery.interval.ms",
    "commit.offsets.on.checkpoint",
    "max.partition.fetch.bytes",
    "client.id.prefix",
}


@made_by("KafkaSource.builder(), then build()", ClientProperties)
class KafkaSource(Source):
    """Read the records of topics. Made by ``builder``. The checkpoint holds the offsets. With a group id, complete checkpoints also
    commit the offsets to the group, for monitoring only. Rates and limits count records."""

    def __init__(
        self,
        properties: ClientProperties,
        subscription: Subscription,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        deserializer: KafkaRecordDeserializationSchema,
        *,
        bounded: bool,
        bad: OutputTag | None = None,
    ) -> None:
        self.properties, self.subscription = properties, subscription
        self.bad, self.emits_tagged = bad, bad is not None
        self.starting, self.stopping, self.deserializer = starting, stopping, deserializer
        self.boundedness = Boundedness.BOUNDED if bounded else Boundedness.CONTINUOUS_UNBOUNDED
        self.group = properties.get("group.id")
        self.isolation = (
            READ_COMMITTED
            if properties.choice("isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
            == "read_committed"
            else READ_UNCOMMITTED
        )
        self.reset = properties.choice("auto.offset.reset", ("none", "earliest", "latest"), "none")
        self.discovery_ms = properties.number("partition.discovery.interval.ms", _DISCOVERY_MS, least=-1)

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        commits = self.properties.choice("commit.offsets.on.checkpoint", ("true", "false"), "true") == "true"
        return KafkaEnumerator(
            self.properties,
            self.subscription,
            self.starting,
            self.stopping,
            group=self.group if commits or self.starting.kind == "committed" else None,
            isolation=self.isolation,
            reset=self.reset,
            discovery_ms=self.discovery_ms,
            parallelism=parallelism,
            restored=restored,
        )

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the values, if the schema knows it."""
        return self.deserializer.get_produced_type()

    def create_reader(self, subtask: int) -> SplitReader:
        return KafkaReader(self.properties, self.isolation, self.deserializer, self.bad)


class KafkaSourceBuilder:
    """Requires bootstrap servers, topics (or a pattern, or partitions) and a deserializer. By default the source starts at the
    earliest offsets and does not end."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._subscription: Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._bounded = False
        self._deserializer: KafkaRecordDeserializationSchema | None = None
        self._bad: OutputTag | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        return self._subscribe(Subscription(topics=tuple(topics)))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Read topics whose whole name matches a regular expression, also topics that are created later."""
        pattern = getattr(topic_pattern, "pattern", topic_pattern)
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigurationError(
                "set_topic_pattern takes a regular expression",
                found=f"{pattern!r}: {error}",
                cure='for example "orders-.*"',
            ) from None
        return self._subscribe(Subscription(pattern=pattern))

    def set_partitions(self, partitions: set[KafkaTopicPartition]) -> KafkaSourceBuilder:
        for partition in partitions:
            if not isinstance(partition, KafkaTopicPartition):
                raise wrong("set_partitions", "KafkaTopicPartition objects", partition, 'KafkaTopicPartition("t", 0)')
        return self._subscribe(Subscription(partitions=tuple(sorted(p.place for p in partitions))))

    def _subscribe(self, subscription: Subscription) -> KafkaSourceBuilder:
        if self._subscription is not None:
            raise ProgramError(
                "A Kafka source reads topics, a pattern of topics or partitions, and only one of the three",
                where="KafkaSource.builder()",
                found=f"{self._subscription} and {subscription}",
                cure="call one of set_topics, set_topic_pattern and set_partitions, once",
            )
        if not (subscription.topics or subscription.pattern or subscription.partitions):
            raise ProgramError(
                "A Kafka source needs a topic",
                where="KafkaSource.builder()",
                found="none",
                cure="name at least one topic",
            )
        self._subscription = subscription
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        self._starting = _initializer("set_starting_offsets", starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Stop at these offsets, in a job that still counts as unbounded."""
        self._stopping = _initializer("set_unbounded", stopping_offsets_initializer)
        self._bounded = False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Stop at these offsets, which are resolved at the first start."""
        self._stopping = _initializer("set_bounded", stopping_offsets_initializer)
        self._bounded = True
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> KafkaSourceBuilder:
        self._deserializer = KafkaRecordDeserializationSchema.value_only(deserialization_schema)
        return self

    def set_deserializer(self, record_deserializer: KafkaRecordDeserializationSchema) -> KafkaSourceBuilder:
        """For programs that need key, headers, timestamp, partition or offset."""
        if not isinstance(record_deserializer, KafkaRecordDeserializationSchema):
            raise wrong(
                "set_deserializer", "a KafkaRecordDeserializationSchema", record_deserializer, "extend that class"
            )
        self._deserializer = record_deserializer
        return self

    def set_bad_record_output(self, output_tag: OutputTag) -> KafkaSourceBuilder:
        """Send records that do not deserialize to a side output, each as a ``BadRecord``: ``get_side_output(output_tag)`` of the
        source's stream. Without this the first such record fails the job. (Not in PyFlink.)"""
        if not isinstance(output_tag, OutputTag):
            raise wrong("set_bad_record_output", "an OutputTag", output_tag, 'OutputTag("bad")')
        self._bad = output_tag
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        return self.set_property("client.id", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        self._properties[key] = str(value)
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder:
        for key, value in dict(props).items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        properties = ClientProperties(self._properties)
        properties.check("KafkaSource", USED)
        properties.client()
        needed = {
            "set_bootstrap_servers(...)": "bootstrap.servers" in properties,
            "set_topics(...)": self._subscription is not None,
            "set_value_only_deserializer(...)": self._deserializer is not None,
        }
        missing = [call for call, there in needed.items() if not there]
        if missing:
            raise ProgramError(
                "The Kafka source is not complete",
                found=f"without {', '.join(missing)}",
                cure="call the missing methods",
            )
        if self._starting.kind == "committed" and "group.id" not in properties:
            raise ProgramError(
                "set_group_id is required to start from committed offsets", found="no group", cure="set_group_id(...)"
            )
        assert self._subscription is not None and self._deserializer is not None
        return KafkaSource(
            properties,
            self._subscription,
            self._starting,
            self._stopping,
            self._deserializer,
            bounded=self._bounded,
            bad=self._bad,
        )


def _initializer(where: str, initializer: Any) -> KafkaOffsetsInitializer:
    if not isinstance(initializer, KafkaOffsetsInitializer):
        raise wrong(where, "a KafkaOffsetsInitializer", initializer, "KafkaOffsetsInitializer.earliest()")
    return initializer
