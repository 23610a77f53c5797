"""Event time of Kafka partitions: side by side inside a round, idle ones, and those that run ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_programs import source
from tidegate.base.clock import MIN_WATERMARK
from tidegate.common import Configuration, Duration, Types, WatermarkStrategy
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.kafka import (
    ConsumerRecord,
    KafkaRecordDeserializationSchema,
    KafkaSource,
)
from tidegate.datastream.state import ValueStateDescriptor

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
BASE = 1_700_000_000_000


class Places(KafkaRecordDeserializationSchema):
    def deserialize(self, record: ConsumerRecord) -> Any:
        return record.partition, record.timestamp - BASE


class Marks(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timer_service().current_watermark()


def environment(directory: Path, most: int = 10_000) -> StreamExecutionEnvironment:
    settings: dict[str, Any] = {
        "execution.target": "simulated",
        "tidegate.round.max-records": most,
        "tidegate.chunk.records": 20,
    }
    settings |= {"execution.checkpointing.dir": str(directory), "execution.checkpointing.interval": "10 ms"}
    configuration = Configuration.from_dict(settings)
    return StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)


def filled(topics: Topics, *partitions: list[int]) -> str:
    topic = topics.new(len(partitions), message_timestamp_before_max_ms=str(1 << 62))
    for number, moments in enumerate(partitions):
        topics.write_times(topic, number, [BASE + moment for moment in moments])
    return topic


@pytest.mark.parametrize("interleaves", [True, False])
def test_event_time_continues_inside_of_a_round(
    interleaves: bool, broker: Broker, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False is the test of the test: read one after the other, the first partition would wait for the second."""
    monkeypatch.setattr(KafkaReader, "interleaves", interleaves)
    topic = filled(topics, list(range(1000)), list(range(1000)))
    built = source(broker.bootstrap_servers, topic).set_deserializer(Places()).build()
    stream = environment(tmp_path).from_source(built, MONOTONOUS, "places").key_by(lambda value: 0)
    found = list(stream.process(Marks()).execute_and_collect())
    assert len(found) == 2000
    late = [(place, mark - BASE) for place, mark in found if mark >= BASE + place[1]]
    assert late == []
    last = {partition: mark for (partition, _), mark in found}
    still = min(last.values()) == MIN_WATERMARK
    assert still is not interleaves
    if interleaves:
        assert min(last.values()) > BASE + 900


def running(servers: str, topic: str) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic)
    return builder.set_deserializer(Places()).build()


def test_a_partition_without_records_is_idle_after_a_while(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """The second one has stopped at 9, and would hold back event time for ever."""
    topic = filled(topics, list(range(500)), list(range(10)))
    strategy = MONOTONOUS.with_idleness(Duration.of_millis(1))
    stream = environment(tmp_path, 50).from_source(running(broker.bootstrap_servers, topic), strategy, "places")
    collected: Any = stream.key_by(lambda value: 0).process(Marks()).execute_and_collect()
    with collected as found:
        marks = [mark for _, (_, mark) in zip(range(510), found, strict=False)]
    assert max(marks) > BASE + 300


def test_event_time_waits_for_the_first_record_of_every_partition(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    """As in Flink: what the empty partition holds later may be of any time."""
    topic = filled(topics, list(range(500)), [])
    stream = environment(tmp_path, 50).from_source(running(broker.bootstrap_servers, topic), MONOTONOUS, "places")
    collected: Any = stream.key_by(lambda value: 0).process(Marks()).execute_and_collect()
    with collected as found:
        before = [mark for _, (_, mark) in zip(range(500), found, strict=False)]
        topics.write_times(topic, 1, [BASE + 7])
        assert next(iter(found)) == ((1, 7), MIN_WATERMARK)
    assert set(before) == {MIN_WATERMARK}


class Leads(KeyedProcessFunction):
    """How far the fast partition is ahead of the slow one, at each of its records."""

    def open(self, runtime_context: Any) -> None:
        self.slow = runtime_context.get_state(ValueStateDescriptor("slow", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        partition, moment = value
        if partition == 0:
            self.slow.update(moment)
        else:
            yield moment - (self.slow.value() or 0)


def test_partitions_that_are_aligned_wait_for_each_other(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = filled(topics, list(range(0, 4_000, 5)), list(range(0, 40_000, 50)))

    def most(directory: Path, strategy: WatermarkStrategy) -> int:
        built = source(broker.bootstrap_servers, topic).set_deserializer(Places()).build()
        stream = environment(directory, 40).from_source(built, strategy, "places").key_by(lambda value: 0)
        leads = list(stream.process(Leads()).execute_and_collect())
        assert len(leads) == 800
        return max(leads[:80])  # while the slow one has not ended

    aligned = MONOTONOUS.with_watermark_alignment("group", Duration.of_millis(500), Duration.of_millis(1))
    assert most(tmp_path / "apart", MONOTONOUS) > 3_000
    assert most(tmp_path / "together", aligned) < 1_000
