"""Programs of the shape of PyFlink's Kafka examples, on a broker that creates topics; and the names of former Flink versions."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka.kafka_tools import Broker, Topics
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError
from tidegate.base.hashing import new_token
from tidegate.common import ByteArraySchema, Configuration, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.cluster import TopicPartition as Place
from tidegate.connectors.kafka.dev_broker import free_port
from tidegate.connectors.kafka.source import commit_offsets
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import (
    FlinkKafkaConsumer,
    FlinkKafkaProducer,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    Semantic,
)
from tidegate.datastream.formats.avro import AvroRowDeserializationSchema, AvroRowSerializationSchema
from tidegate.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from tidegate.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from tidegate.datastream.functions import ProcessFunction
from tidegate.operators.contracts.sink import SinkGuarantee
from tidegate.testing.source_contract import read_all

ROWS = [(1, "hi"), (2, "hello"), (3, "hi"), (6, "hello"), (6, "hello")]
ROW_TYPE = Types.ROW([Types.INT(), Types.STRING()])
AVRO = json.dumps(
    {
        "type": "record",
        "name": "TestRecord",
        "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
    }
)


@pytest.fixture(scope="module")
def creating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that creates a topic when a client asks for it, as brokers do unless configured otherwise."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "2"}
    with Broker(tmp_path_factory.mktemp("creating"), free_port(), settings) as running:
        yield running


@pytest.fixture(scope="module")
def created(creating: Broker) -> Topics:
    return Topics(creating.bootstrap_servers)


@pytest.fixture
def env(tmp_path: Path) -> StreamExecutionEnvironment:
    settings = {"execution.target": "simulated", "execution.checkpointing.dir": str(tmp_path)}
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))


def sink_of(servers: str, topic: str, schema: Any, delivery: DeliveryGuarantee = DeliveryGuarantee.NONE) -> KafkaSink:
    serializer = KafkaRecordSerializationSchema.builder().set_topic(topic).set_value_serialization_schema(schema)
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(serializer.build())
    return builder.set_property("group.id", "test_group").set_delivery_guarantee(delivery).build()


def read(env: StreamExecutionEnvironment, servers: str, topic: str, schema: Any) -> list[Any]:
    source = (
        KafkaSource.builder()
        .set_topics(topic)
        .set_value_only_deserializer(schema)
        .set_properties({"bootstrap.servers": servers, "group.id": "test_group_1"})
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_bounded(KafkaOffsetsInitializer.latest())
        .build()
    )
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka source")
    with stream.execute_and_collect() as found:  # type: ignore[union-attr]
        return list(found)


@pytest.mark.parametrize(
    ("writes", "reads"),
    [
        pytest.param(
            lambda: JsonRowSerializationSchema.Builder().with_type_info(ROW_TYPE).build(),
            lambda: JsonRowDeserializationSchema.Builder().type_info(ROW_TYPE).build(),
            id="json",
        ),
        pytest.param(
            lambda: CsvRowSerializationSchema.Builder(ROW_TYPE).build(),
            lambda: CsvRowDeserializationSchema.Builder(ROW_TYPE).build(),
            id="csv",
        ),
        pytest.param(
            lambda: AvroRowSerializationSchema(avro_schema_string=AVRO),
            lambda: AvroRowDeserializationSchema(avro_schema_string=AVRO),
            id="avro",
        ),
    ],
)
def test_rows_are_written_to_a_topic_that_the_broker_creates_and_read_again(
    writes: Callable[[], Any], reads: Callable[[], Any], creating: Broker, env: StreamExecutionEnvironment
) -> None:
    topic, servers = f"rows-{new_token()}", creating.bootstrap_servers
    env.from_collection(ROWS, type_info=ROW_TYPE).sink_to(sink_of(servers, topic, writes()))
    env.execute()
    assert sorted(map(tuple, read(env, servers, topic, reads()))) == ROWS


def test_byte_arrays_are_written_and_read_as_in_the_example(creating: Broker, env: StreamExecutionEnvironment) -> None:
    topic, servers = f"bytes-{new_token()}", creating.bootstrap_servers
    documents = [json.dumps({"id": n, "country": name}).encode() for n, name in enumerate(("USA", "Canada"))]
    stream = env.from_collection([(d,) for d in documents], type_info=Types.ROW([Types.PRIMITIVE_ARRAY(Types.BYTE())]))
    bare = stream.map(lambda row: row[0], output_type=Types.PRIMITIVE_ARRAY(Types.BYTE()))
    bare.sink_to(sink_of(servers, topic, ByteArraySchema()))
    env.execute()
    assert sorted(read(env, servers, topic, ByteArraySchema())) == documents


# -- topics and properties -----------------------------------------------------------------------------------------------


def test_a_missing_topic_is_created_by_the_brokers_in_a_transaction_too(
    creating: Broker, created: Topics, env: StreamExecutionEnvironment
) -> None:
    topic = f"exactly-{new_token()}"
    env.enable_checkpointing(10)
    serializer = KafkaRecordSerializationSchema.builder().set_topic(topic)
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(creating.bootstrap_servers)
        .set_record_serializer(serializer.set_value_serialization_schema(SimpleStringSchema()).build())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(topic)
        .build()
    )
    env.from_collection(["a", "b", "c"], Types.STRING()).sink_to(sink)
    env.execute()
    assert sorted(created.read(topic)) == ["a", "b", "c"]


def test_a_missing_topic_fails_the_start_where_no_broker_creates_it(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match=r"no topic 'nowhere', and auto.create.topics.enable .* is false"):
        sink_of(broker.bootstrap_servers, "nowhere", SimpleStringSchema()).validate()


def test_a_source_on_a_missing_topic_fails_as_in_flink_and_creates_nothing(creating: Broker, created: Topics) -> None:
    topic = f"missing-{new_token()}"
    builder = KafkaSource.builder().set_bootstrap_servers(creating.bootstrap_servers).set_topics(topic)
    source = builder.set_value_only_deserializer(SimpleStringSchema()).build()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"no topic {topic}"):
            source.create_enumerator(1, None)


def test_unknown_properties_are_ignored_with_a_notice_that_names_the_likely_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        sink_of("b", "t", SimpleStringSchema())
        builder = KafkaSource.builder().set_bootstrap_servers("b").set_topics("t")
        builder.set_property("isolation.levle", "x").set_value_only_deserializer(SimpleStringSchema()).build()
    assert "KafkaSink: unknown properties are ignored: group.id." in caplog.text
    assert "KafkaSource: unknown properties are ignored: isolation.levle (is it isolation.level?)." in caplog.text


# -- names of former versions --------------------------------------------------------------------------------------------


def consumer(servers: str, topic: str, **properties: str) -> FlinkKafkaConsumer:
    given = {"bootstrap.servers": servers, **{key.replace("_", "."): value for key, value in properties.items()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return FlinkKafkaConsumer(topic, SimpleStringSchema(), given)


def producer(servers: str, topic: str, semantic: Semantic = Semantic.AT_LEAST_ONCE) -> FlinkKafkaProducer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return FlinkKafkaProducer(topic, SimpleStringSchema(), {"bootstrap.servers": servers}, semantic=semantic)


def starts(built: FlinkKafkaConsumer) -> list[str]:
    """What it would read of a topic that does not grow."""
    built.stopping, built.discovery_ms = KafkaOffsetsInitializer.latest(), -1
    return sorted(read_all(built, [(1, 50)]).values)


def test_former_consumer_starts_at_the_set_offsets(broker: Broker, topics: Topics) -> None:
    topic, servers = topics.new(1), broker.bootstrap_servers
    topics.write(topic, list(range(5)))
    every, none = ["0", "1", "2", "3", "4"], list[str]()
    assert starts(consumer(servers, topic)) == none, "without a group the reset decides, which is latest"
    assert starts(consumer(servers, topic, auto_offset_reset="earliest")) == every
    assert starts(consumer(servers, topic, group_id=topic, auto_offset_reset="earliest")) == every
    cluster = Cluster.of({"bootstrap.servers": servers})
    commit_offsets(cluster, topic, {Place(topic, 0): 3})
    assert starts(consumer(servers, topic, group_id=topic, auto_offset_reset="earliest")) == ["3", "4"]
    assert starts(consumer(servers, topic, group_id=topic).set_start_from_earliest()) == every
    assert starts(consumer(servers, topic, group_id=topic).set_start_from_latest()) == none
    assert starts(consumer(servers, topic, group_id=topic).set_start_from_timestamp(0)) == every
    assert starts(consumer(servers, topic, group_id=topic).set_start_from_latest().set_start_from_group_offsets()) == [
        "3",
        "4",
    ]


def test_a_former_program_runs_from_topic_to_topic(
    broker: Broker, topics: Topics, env: StreamExecutionEnvironment
) -> None:
    start, end, servers = topics.new(2), topics.new(1), broker.bootstrap_servers
    topics.write(start, list(range(20)))
    env.enable_checkpointing(10)
    source = consumer(servers, start, group_id=start).set_start_from_earliest()
    source.stopping = KafkaOffsetsInitializer.latest()  # so that the test ends
    stream = env.add_source(source, source_name="kafka source", type_info=Types.STRING())
    stream.map(lambda text: f"{int(text) * 2}", Types.STRING()).add_sink(producer(servers, end, Semantic.EXACTLY_ONCE))
    env.execute()
    assert sorted(map(int, topics.read(end))) == [2 * n for n in range(20)]


def test_a_former_consumer_assigns_watermarks(broker: Broker, topics: Topics, env: StreamExecutionEnvironment) -> None:
    topic = topics.new(1)
    topics.write_times(topic, 0, [1_000, 2_000, 3_000])
    source = consumer(broker.bootstrap_servers, topic).set_start_from_earliest()
    source.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
    source.stopping = KafkaOffsetsInitializer.latest()

    class Times(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
            yield int(value), ctx.timestamp()

    with env.add_source(source).process(Times()).execute_and_collect() as found:  # type: ignore[union-attr]
        assert sorted(found) == [(1_000, 1_000), (2_000, 2_000), (3_000, 3_000)]


def stamps(servers: str, topic: str) -> list[int]:
    reader = Consumer({"bootstrap.servers": servers, "group.id": new_token(), "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, 0, 0)])
    message = reader.poll(10)
    assert message is not None and message.error() is None
    reader.close()
    return [message.timestamp()[1]]


@pytest.mark.parametrize("written", [False, True])
def test_former_producer_writes_event_times_only_if_set(
    written: bool, broker: Broker, topics: Topics, env: StreamExecutionEnvironment
) -> None:
    class Fixed(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return 1_700_000_000_000

    topic = topics.new(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Fixed())
    stream = env.from_collection(["x"], Types.STRING()).assign_timestamps_and_watermarks(strategy)
    sink = producer(broker.bootstrap_servers, topic)
    stream.add_sink(sink.set_write_timestamp_to_kafka(True) if written else sink)
    env.execute()
    [stamp] = stamps(broker.bootstrap_servers, topic)
    assert (stamp == 1_700_000_000_000) is written


def test_what_a_former_producer_guarantees() -> None:
    for semantic, expected in (
        (Semantic.EXACTLY_ONCE, SinkGuarantee.TWO_PHASE_COMMIT),
        (Semantic.AT_LEAST_ONCE, SinkGuarantee.NONE),
        (Semantic.NONE, SinkGuarantee.BEST_EFFORT),
    ):
        assert producer("b", "t", semantic).guarantee is expected
    assert producer("b", "t").set_flush_on_checkpoint(False).guarantee is SinkGuarantee.BEST_EFFORT
    assert producer("b", "t", Semantic.NONE).set_flush_on_checkpoint(True).guarantee is SinkGuarantee.NONE
    exactly = producer("b", "t", Semantic.EXACTLY_ONCE)
    assert exactly.set_flush_on_checkpoint(False).guarantee is SinkGuarantee.TWO_PHASE_COMMIT
    assert exactly.ignore_failures_after_transaction_timeout() is exactly
    assert producer("b", "t").set_log_failures_only(True).guarantee is SinkGuarantee.BEST_EFFORT
    with pytest.raises(ProgramError, match="loses records cannot be exactly-once"):
        exactly.set_log_failures_only(True)


def test_a_former_producer_that_only_logs_failures_drops_what_the_broker_refuses(
    broker: Broker, topics: Topics, env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.new(1, max_message_bytes="2000")
    env.from_collection(["x" * 9_000], Types.STRING()).add_sink(
        producer(broker.bootstrap_servers, topic).set_log_failures_only(True)
    )
    with caplog.at_level(logging.ERROR):
        env.execute()
    assert "records are lost, which set_log_failures_only(True) allows" in caplog.text
    assert topics.read(topic) == []


def test_former_names_are_deprecated_and_say_what_is_missing() -> None:
    with pytest.warns(DeprecationWarning, match=r"use KafkaSource.builder\(\) instead"):
        FlinkKafkaConsumer(["a", "b"], SimpleStringSchema(), {"bootstrap.servers": "b"})
    with pytest.warns(DeprecationWarning, match=r"use KafkaSink.builder\(\) instead"):
        FlinkKafkaProducer("t", SimpleStringSchema(), {"bootstrap.servers": "b", "group.id": "g"})
    with pytest.warns(DeprecationWarning, match="KafkaS"), pytest.raises(ProgramError, match=r"no 'bootstrap.servers'"):
        FlinkKafkaConsumer("t", SimpleStringSchema(), {})
    with pytest.warns(DeprecationWarning, match="KafkaS"), pytest.raises(ArgumentTypeError, match="a Semantic"):
        FlinkKafkaProducer("t", SimpleStringSchema(), {"bootstrap.servers": "b"}, semantic="none")  # type: ignore[arg-type]
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ArgumentTypeError, match="a FlinkKafkaConsumer"):
        env.add_source(object())  # type: ignore[arg-type]
    assert consumer("b", "t").get_produced_type() == Types.STRING()
