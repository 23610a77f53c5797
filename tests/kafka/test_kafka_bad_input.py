"""Bad input: each kind has its own message, or goes where it was asked to go."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import make_sink
from tests.kafka.test_kafka_programs import source, values
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError
from tidegate.common import Configuration, SimpleStringSchema, WatermarkStrategy
from tidegate.datastream import OutputTag, StreamExecutionEnvironment
from tidegate.datastream.connectors.kafka import (
    BadRecord,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from tidegate.testing.sink_run import SinkRun

BAD = OutputTag("bad")


class Numbers(SimpleStringSchema):
    def deserialize(self, message: bytes) -> Any:
        return int(message)


def environment(directory: Path, **settings: Any) -> StreamExecutionEnvironment:
    keys = {"execution.target": "simulated", "tidegate.round.max-records": 7, **settings}
    keys |= {"execution.checkpointing.dir": str(directory), "execution.checkpointing.interval": "10 ms"}
    return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(2)


# -- records that do not deserialize -------------------------------------------------------------------------------------


@pytest.mark.parametrize("assigner", [False, True])
def test_bad_records_go_to_a_side_output(assigner: bool, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(2)
    topics.write(topic, [f"x{n}" if n % 5 == 0 else n for n in range(40)])
    builder = source(broker.bootstrap_servers, topic).set_value_only_deserializer(Numbers())
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if assigner:
        strategy = strategy.with_timestamp_assigner(lambda value, timestamp: value + 1)
    env = environment(tmp_path)
    stream = env.from_source(builder.set_bad_record_output(BAD).build(), strategy, "numbers")
    bad = stream.get_side_output(BAD).map(lambda record: ("bad", record))
    found = list(stream.map(lambda number: ("good", number * 2)).union(bad).execute_and_collect())
    good = sorted(value for kind, value in found if kind == "good")
    assert good == [2 * n for n in range(40) if n % 5]
    records: list[BadRecord] = [record for kind, record in found if kind == "bad"]
    assert sorted(record.value or b"" for record in records) == sorted(f"x{n}".encode() for n in range(0, 40, 5))
    assert {record.topic for record in records} == {topic} and {record.partition for record in records} <= {0, 1}
    assert all(record.error.startswith("ValueError: invalid literal") for record in records)
    assert all(record.key == record.value and record.timestamp > 0 for record in records)
    assert len({(record.partition, record.offset) for record in records}) == 8


def test_bad_records_are_discarded_if_no_stream_reads_the_side_output(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new(1)
    topics.write(topic, ["x", "1", "y"])
    built = source(broker.bootstrap_servers, topic).set_value_only_deserializer(Numbers()).set_bad_record_output(BAD)
    stream = environment(tmp_path).from_source(built.build(), WatermarkStrategy.no_watermarks(), "numbers")
    assert list(stream.map(lambda number: number).execute_and_collect()) == [1]


def test_set_bad_record_output_refuses_another_type_than_a_tag() -> None:
    with pytest.raises(ArgumentTypeError, match="set_bad_record_output takes an OutputTag"):
        KafkaSource.builder().set_bad_record_output("bad")  # type: ignore[arg-type]


# -- offsets to start from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "strategy", "expected"),
    [
        (99, KafkaOffsetResetStrategy.EARLIEST, ["0", "1", "2"]),
        (99, KafkaOffsetResetStrategy.LATEST, []),
        (3, KafkaOffsetResetStrategy.NONE, []),
    ],
)
def test_start_offsets_out_of_range_follow_the_strategy(
    at: int,
    strategy: KafkaOffsetResetStrategy,
    expected: list[str],
    broker: Broker,
    topics: Topics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = topics.new(1)
    topics.write(topic, [0, 1, 2])
    starting = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): at}, strategy)
    with caplog.at_level(logging.WARNING):
        assert values(source(broker.bootstrap_servers, topic).set_starting_offsets(starting).build()) == expected
    assert ("offset 99, the partition holds 0 to 3" in caplog.text) is (at == 99)


def test_start_offsets_out_of_range_without_a_strategy_fail(broker: Broker, topics: Topics) -> None:
    topic = topics.new(1)
    topics.write(topic, [0, 1, 2])
    starting = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): 4}, KafkaOffsetResetStrategy.NONE)
    built = source(broker.bootstrap_servers, topic).set_starting_offsets(starting).build()
    with pytest.raises(ConfigurationError, match="starting offset of a Kafka source does not exist") as caught:
        built.create_enumerator(1, None)
    assert f"topic {topic}, partition 0" in str(caught.value)
    assert "offset 4, the partition holds 0 to 3" in str(caught.value) and "EARLIEST or LATEST" in str(caught.value)


# -- what the broker does not take -----------------------------------------------------------------------------------------


def test_record_over_the_brokers_size_limit_fails_and_is_named(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new(1, max_message_bytes="2000")
    run = SinkRun(make_sink(broker.bootstrap_servers, topic), str(tmp_path), lambda n: "x" * 5_000, 1)
    with pytest.raises(ProgramError, match="larger than the broker allows") as caught:
        run.step(1, checkpoint=True)
    text = str(caught.value)
    assert f"topic {topic}, partition 0" in text and "with 1 record" in text and "'max.message.bytes'" in text
    assert not caught.value.restart_helps
    assert topics.read(topic) == []


def test_record_with_a_time_that_the_broker_refuses_fails_and_is_named(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    """Kafka takes an hour, unless told otherwise. Seconds taken for milliseconds would be 1970, microseconds the year 55000."""
    topic = topics.new(1)
    run = SinkRun(make_sink(broker.bootstrap_servers, topic), str(tmp_path), str, 1)
    for moment, shown in [(int(time.time() * 1000) + 86_400_000, "T"), (int(time.time() * 1e6), "9999-12-31T23:59:59")]:
        writer = run._copy.create_writer(run.writer_context(0, 1), [])
        writer.write_batch(["x"], [moment])
        with pytest.raises(ProgramError, match="event time of a record is outside the range") as caught:
            writer.prepare_commit(False)
        writer.abort()
        text = str(caught.value)
        assert f"topic {topic}, partition 0" in text and f"up to {moment} ms" in text and shown in text
        assert "message.timestamp.after.max.ms" in text and "timestamp assigner" in text


@pytest.mark.parametrize("prefix", ["a b", "ä", "a/b", "", "x" * 65])
def test_illegal_transactional_id_prefix_is_refused(prefix: str) -> None:
    from tidegate.datastream.connectors.kafka import KafkaSink

    with pytest.raises(ConfigurationError, match="1 to 64 letters, digits") as caught:
        KafkaSink.builder().set_transactional_id_prefix(prefix)
    assert repr(prefix) in str(caught.value) and "payments-sink" in str(caught.value)
