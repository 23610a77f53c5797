"""Source and sink of Kafka under the contract suites, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tidegate.common.serialization import SimpleStringSchema
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.operators.contracts.sink import DeliveryGuarantee
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.source_contract import SourceContract

COUNT = 90


class TestKafkaSource(SourceContract):
    """Records of committed transactions, with aborted ones between them: offsets have holes, ranges end in control records."""

    limits = (1, 7, 40, 1_000)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _topic(cls, broker: Broker, topics: Topics) -> None:
        topic = topics.new(3)
        for start in range(0, COUNT, 30):
            topics.write(topic, list(range(start, start + 30)), transaction="commit")
            topics.write(topic, [f"aborted-{start}-{n}" for n in range(5)], transaction="abort")
        cls.topic, cls.servers = topic, broker.bootstrap_servers

    topic: str
    servers: str

    def make_source(self, directory: Path) -> KafkaSource:
        return (
            KafkaSource.builder()
            .set_bootstrap_servers(self.servers)
            .set_topics(self.topic)
            .set_property("isolation.level", "read_committed")
            .set_value_only_deserializer(SimpleStringSchema())
            .set_bounded(KafkaOffsetsInitializer.latest())
            .build()
        )

    def expected(self) -> list[Any]:
        return [str(n) for n in range(COUNT)]


class TestKafkaSink(SinkContract):
    """Each test directory has a topic of its own."""

    test_killed_at_any_point_of_an_attempt = pytest.mark.slow(SinkContract.test_killed_at_any_point_of_an_attempt)
    test_killed_at_any_point_of_a_restore = pytest.mark.slow(SinkContract.test_killed_at_any_point_of_a_restore)

    @pytest.fixture(autouse=True)
    def _servers(self, broker: Broker, topics: Topics) -> None:
        self.servers, self.topics = broker.bootstrap_servers, topics
        self.made: dict[str, str] = {}

    def topic(self, directory: Path) -> str:
        if str(directory) not in self.made:
            self.made[str(directory)] = self.topics.new(2)
        return self.made[str(directory)]

    def make_sink(self, directory: Path) -> KafkaSink:
        serializer = (
            KafkaRecordSerializationSchema.builder()
            .set_topic(self.topic(directory))
            .set_value_serialization_schema(SimpleStringSchema())
            .build()
        )
        return (
            KafkaSink.builder()
            .set_bootstrap_servers(self.servers)
            .set_record_serializer(serializer)
            .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .set_transactional_id_prefix(self.topic(directory))
            .build()
        )

    def value(self, number: int) -> Any:
        return str(number)

    def visible(self, directory: Path) -> list[Any]:
        return self.topics.read(self.topic(directory))

    def leftovers(self, directory: Path) -> list[str]:
        cluster = Cluster.of(self.make_sink(directory).properties)
        kept = [str(path) for path in directory.rglob("output/*")]
        return [producer.transactional_id for producer in open_transactions(cluster, self.topic(directory))] + kept
