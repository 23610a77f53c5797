"""Builders, checks before the start and messages, on a real broker."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError, ServiceError, UserCodeError
from tidegate.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.common.serialization import for_many
from tidegate.connectors.kafka.cluster import Cluster, TopicPartition
from tidegate.connectors.kafka.dev_broker import free_port
from tidegate.connectors.kafka.offsets import committed
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.reader import OffsetsGoneError
from tidegate.connectors.kafka.source import commit_offsets
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import (
    ConsumerRecord,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordDeserializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)
from tidegate.testing.source_contract import START_MS, read_all, read_interval

SECRET = "hunter2-planted"


def source(servers: str, *topics: str) -> KafkaSourceBuilder:
    builder = KafkaSource.builder().set_bootstrap_servers(servers)
    builder.set_value_only_deserializer(SimpleStringSchema()).set_bounded(KafkaOffsetsInitializer.latest())
    return builder.set_topics(*topics) if topics else builder


def serializer(topic: str) -> KafkaRecordSerializationSchema:
    builder = KafkaRecordSerializationSchema.builder().set_topic(topic)
    return builder.set_value_serialization_schema(SimpleStringSchema()).build()


def values(built: KafkaSource) -> list[Any]:
    return sorted(read_all(built, [(2, 50)]).values)


# -- where a source starts and ends --------------------------------------------------------------------------------------


def test_source_starts_at_the_set_offsets(broker: Broker, topics: Topics) -> None:
    topic = topics.new(1)
    topics.write(topic, list(range(5)))
    at = KafkaTopicPartition(topic, 0)
    for starting, expected in [
        (KafkaOffsetsInitializer.earliest(), 5),
        (KafkaOffsetsInitializer.latest(), 0),
        (KafkaOffsetsInitializer.offsets({at: 3}), 2),
        (KafkaOffsetsInitializer.timestamp(0), 5),
        (KafkaOffsetsInitializer.timestamp(START_MS * 10), 0),
        (KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST), 5),
    ]:
        built = source(broker.bootstrap_servers, topic).set_group_id(topic).set_starting_offsets(starting).build()
        assert len(values(built)) == expected, starting


def test_committed_offsets_are_those_of_the_group(broker: Broker, topics: Topics) -> None:
    topic = topics.new(1)
    topics.write(topic, list(range(5)))
    builder = source(broker.bootstrap_servers, topic).set_group_id(topic)
    builder.set_starting_offsets(KafkaOffsetsInitializer.committed_offsets())
    with pytest.raises(ConfigurationError, match="A partition has no starting offset"):
        builder.build().create_enumerator(1, None)
    cluster = Cluster.of(builder.build().properties)
    commit_offsets(cluster, topic, {TopicPartition(topic, 0): 2})
    assert values(builder.build()) == ["2", "3", "4"]


def test_complete_checkpoint_commits_offsets_to_the_group(broker: Broker, topics: Topics) -> None:
    topic = topics.new(1)
    topics.write(topic, list(range(5)))
    built = source(broker.bootstrap_servers, topic).set_group_id(topic).build()
    enumerator = built.create_enumerator(1, None)
    enumerator.plan(3, START_MS)
    enumerator.checkpoint_complete(enumerator.snapshot())
    enumerator.close()
    assert committed(Cluster.of(built.properties), topic, [TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 3}


def test_source_reads_a_pattern_of_topics_or_partitions(broker: Broker, topics: Topics) -> None:
    one, other = topics.new(2), topics.new(1)
    topics.write(one, ["a"], partition=0)
    topics.write(one, ["b"], partition=1)
    topics.write(other, ["c"])
    pattern = source(broker.bootstrap_servers).set_topic_pattern(f"{one}|{other}").build()
    assert values(pattern) == ["a", "b", "c"]
    partitions = source(broker.bootstrap_servers).set_partitions({KafkaTopicPartition(one, 1)}).build()
    assert values(partitions) == ["b"]


def test_new_partitions_are_found_while_it_runs(broker: Broker, topics: Topics) -> None:
    topic = topics.new(1)
    built = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics(topic)
    built.set_value_only_deserializer(SimpleStringSchema()).set_property("partition.discovery.interval.ms", "1000")
    enumerator = built.build().create_enumerator(2, None)
    [empty] = enumerator.plan(10, START_MS).intervals
    assert (empty.split, empty.units) == (f"{topic}-0", 0), "event time waits for a partition without records"
    topics.more_partitions(topic, 2)
    topics.write(topic, ["new"], partition=1)
    assert enumerator.plan(10, START_MS + 500).intervals == []
    [interval] = enumerator.plan(10, START_MS + 1_500).intervals
    assert (interval.split, interval.subtask) == (f"{topic}-1", 1)
    assert read_interval(built.build(), interval) == ["new"]


def test_deserializer_gets_all_fields_of_a_record(broker: Broker, topics: Topics) -> None:
    class Whole(KafkaRecordDeserializationSchema):
        def deserialize(self, record: ConsumerRecord) -> Any:
            return record.partition, record.offset, record.key, record.value

    topic = topics.new(1)
    topics.write(topic, ["x", "y"])
    built = source(broker.bootstrap_servers, topic).set_deserializer(Whole()).build()
    assert values(built) == [(0, 0, b"x", b"x"), (0, 1, b"y", b"y")]


def test_deleted_offsets_fail_the_job_unless_reset_is_set(broker: Broker, topics: Topics) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    topic = topics.new(1)
    topics.write(topic, list(range(10)))
    builder = source(broker.bootstrap_servers, topic)
    enumerator = builder.build().create_enumerator(1, None)
    enumerator.plan(2, START_MS)
    position = enumerator.snapshot()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([Place(topic, 0, 6)]).values():
        future.result(30)
    with pytest.raises(OffsetsGoneError, match="offset 2") as caught:
        builder.build().create_enumerator(1, position)
    assert "holds offsets 6 to 10" in str(caught.value) and "auto.offset.reset" in str(caught.value)
    again = builder.set_property("auto.offset.reset", "earliest").build()
    [interval] = again.create_enumerator(1, position).plan(100, START_MS).intervals
    assert read_interval(again, interval) == ["6", "7", "8", "9"]


def test_a_record_that_does_not_deserialize_is_named(broker: Broker, topics: Topics) -> None:
    class Numbers(SimpleStringSchema):
        def deserialize(self, message: bytes) -> Any:
            return int(message)

    topic = topics.new(1)
    topics.write(topic, ["1", "two", "3"])
    built = source(broker.bootstrap_servers, topic).set_value_only_deserializer(Numbers()).build()
    [interval] = built.create_enumerator(1, None).plan(10, START_MS).intervals
    with pytest.raises(UserCodeError, match=f"topic {topic}, partition 0, offset 1") as caught:
        read_interval(built, interval)
    assert "ValueError" in str(caught.value) and "b'two'" in str(caught.value)


# -- before the start ----------------------------------------------------------------------------------------------------


def test_unknown_topics_are_refused(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="no topic nowhere"):
        source(broker.bootstrap_servers, "nowhere").build().create_enumerator(1, None)
    with pytest.raises(ConfigurationError, match="no topic 'nowhere'"):
        _sink(broker.bootstrap_servers, "nowhere").validate()


def test_missing_broker_fails_and_its_address_is_named() -> None:
    built = source("127.0.0.1:1", "t").set_property("request.timeout.ms", "1000").build()
    with pytest.raises(ServiceError, match=r"No Kafka broker answers(.|\n)*127\.0\.0\.1:1"):
        built.create_enumerator(1, None)


def _sink(servers: str, topic: str, **properties: str) -> KafkaSink:
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(serializer(topic))
    builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix("p")
    for key, value in properties.items():
        builder.set_property(key.replace("_", "."), value)
    return builder.build()


def test_exactly_once_is_checked_against_job_and_broker(broker: Broker, topics: Topics) -> None:
    topic = topics.new()
    sink = _sink(broker.bootstrap_servers, topic, transaction_timeout_ms="5000")
    sink.validate()
    sink.validate_checkpoints(1000)
    with pytest.raises(ConfigurationError, match="the job takes none"):
        sink.validate_checkpoints(None)
    with pytest.raises(ConfigurationError, match=r"checkpoints every 5000 ms, transaction.timeout.ms 5000"):
        sink.validate_checkpoints(5000)
    long = _sink(broker.bootstrap_servers, topic, transaction_timeout_ms="900001")
    with pytest.raises(ConfigurationError, match=r"transaction.max.timeout.ms is 900000"):
        long.validate()


def test_builders_say_what_is_missing_and_wrong() -> None:
    with pytest.raises(ProgramError, match=r"without set_bootstrap_servers\(...\), set_topics\(...\)"):
        KafkaSource.builder().set_value_only_deserializer(SimpleStringSchema()).build()
    with pytest.raises(ProgramError, match="one of the three"):
        KafkaSource.builder().set_topics("a").set_topic_pattern("b.*")
    with pytest.raises(ConfigurationError, match=r"regular expression(.|\n)*'\['"):
        KafkaSource.builder().set_topic_pattern("[")
    with pytest.raises(ArgumentTypeError, match="KafkaOffsetsInitializer"):
        KafkaSource.builder().set_starting_offsets("earliest")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="1 to 64 letters"):
        KafkaSink.builder().set_transactional_id_prefix("a b")
    with pytest.raises(ProgramError, match=r"without set_transactional_id_prefix\(...\)"):
        KafkaSink.builder().set_bootstrap_servers("b").set_record_serializer(serializer("t")).set_delivery_guarantee(
            DeliveryGuarantee.EXACTLY_ONCE
        ).build()
    with pytest.raises(ProgramError, match="neither"):
        KafkaRecordSerializationSchema.builder().build()
    with pytest.raises(ConfigurationError, match="read_uncommitted, read_committed"):
        source("b", "t").set_property("isolation.level", "x").build()


def test_properties_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        source("b", "t").set_property("linger.ms", "5").build()
    assert "have no effect, because the engine decides them: linger.ms" in caplog.text


def test_repr_and_errors_contain_no_secret() -> None:
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="app" password="{SECRET}";'
    properties = ClientProperties({"sasl.jaas.config": jaas, "sasl.password": SECRET, "client.id": "me"})
    assert SECRET not in f"{properties} {properties!r}"
    assert SECRET not in properties.masked(f"failed with {SECRET}")
    assert properties.client()["sasl_plain_password"] == SECRET
    with pytest.raises(ConfigurationError) as caught:
        ClientProperties({"sasl.jaas.config": f"nonsense {SECRET}"}).client()
    assert SECRET not in str(caught.value)


def test_a_wrong_password_has_a_message_of_its_own(
    own_broker: Callable[..., Broker], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = own_broker(
        {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_app="right";',
        },
        sasl_port=port,
    )
    topics = Topics(broker.bootstrap_servers)
    topic = topics.new()
    topics.write(topic, ["x"])
    builder = source(f"127.0.0.1:{port}", topic).set_property("security.protocol", "SASL_PLAINTEXT")
    builder.set_property("sasl.mechanism", "PLAIN").set_property("sasl.username", "app")
    builder.set_property("request.timeout.ms", "5000")
    assert values(builder.set_property("sasl.password", "right").build()) == ["x"]
    with caplog.at_level(logging.DEBUG), pytest.raises(ServiceError, match="refuses user and password") as caught:
        builder.set_property("sasl.password", SECRET).build().create_enumerator(1, None)
    assert "user 'app' with PLAIN" in str(caught.value)
    shown = capfd.readouterr()
    assert SECRET not in f"{caught.value} {caught.value.__cause__} {caplog.text} {shown.out} {shown.err}"


# -- the page ------------------------------------------------------------------------------------------------------------


def test_the_program_of_the_page_builds(broker: Broker, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
    [program] = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program.replace('env.execute("upper")', ""), "kafka.md", "exec"), namespace)
    assert isinstance(namespace["env"], StreamExecutionEnvironment)
    assert isinstance(namespace["sink"], KafkaSink)


def test_from_topic_to_topic_in_one_process(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    start, end = topics.new(3), topics.new(2)
    topics.write(start, list(range(200)), transaction="commit")
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.checkpointing.interval": "10 ms"}
    settings |= {"execution.target": "simulated", "tidegate.round.max-records": "40"}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(2)
    numbers = env.from_source(source(broker.bootstrap_servers, start).build(), WatermarkStrategy.no_watermarks(), "in")
    numbers.map(lambda text: f"{int(text) * 2}").sink_to(_sink(broker.bootstrap_servers, end))
    env.execute()
    assert sorted(map(int, topics.read(end))) == [2 * n for n in range(200)]


def test_a_way_for_one_record_wins_over_the_inherited_way_for_many() -> None:
    class Upper(SimpleStringSchema):
        def deserialize(self, message: bytes) -> str:
            return message.decode().upper()

        def serialize(self, value: Any) -> bytes:
            return str(value).upper().encode()

    assert for_many(Upper(), "deserialize")([b"a"]) == ["A"]
    assert for_many(Upper(), "serialize")(["a"]) == [b"A"]
    assert for_many(SimpleStringSchema(), "deserialize")([b"a"]) == ["a"]


def test_the_type_of_a_stream_is_that_of_its_schema_unless_a_subclass_deserializes_otherwise() -> None:
    class Numbers(SimpleStringSchema):
        def deserialize(self, message: bytes) -> Any:
            return int(message)

    class Typed(Numbers):
        def get_produced_type(self) -> Any:
            return Types.INT()

    for schema, expected in ((SimpleStringSchema(), Types.STRING()), (Numbers(), None), (Typed(), Types.INT())):
        builder = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t")
        assert builder.set_value_only_deserializer(schema).build().get_produced_type() == expected
