"""Savepoints of a job from Kafka to Kafka on a real broker: taken, stopped and cancelled with, resumed at other parallelisms."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_programs import serializer
from tests.waiting import eventually
from tidegate.base.errors import JobCancelledError
from tidegate.checkpoint.locate import locate
from tidegate.common import Configuration, JobClient, JobStatus, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSink, KafkaSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.runtime.commands import CancelWithSavepoint
from tidegate.runtime.handle import StartedJob

BATCH = 40


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield f"{ctx.get_current_key()} {value} {self.count.value()}"


def started(job: JobClient) -> StartedJob:
    assert isinstance(job._job, StartedJob)
    return job._job


class Chain:
    """The same job, again and again under another id, from Kafka to Kafka. Checkpoints come so rarely that none ever does."""

    def __init__(self, broker: Broker, topics: Topics, directory: Path) -> None:
        self.servers, self.topics, self.directory = broker.bootstrap_servers, topics, directory
        self.numbers, self.counts = topics.new(2), topics.new(2)
        self.written = 0

    def write(self) -> None:
        self.topics.write(self.numbers, list(range(self.written, self.written + BATCH)))
        self.written += BATCH

    def start(self, name: str, parallelism: int, path: str | None = None) -> JobClient:
        keys = {
            "execution.target": "simulated",
            "execution.checkpointing.interval": "10 min",
            "execution.checkpointing.dir": f"{self.directory}/checkpoints",
            "execution.checkpointing.savepoint-dir": f"{self.directory}/savepoints",
            "pipeline.max-parallelism": 16,
            "tidegate.job-id": name,
            **({} if path is None else {"execution.state-recovery.path": path}),
        }
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys))
        source = KafkaSource.builder().set_bootstrap_servers(self.servers).set_topics(self.numbers)
        source.set_value_only_deserializer(SimpleStringSchema())
        source.set_starting_offsets(KafkaOffsetsInitializer.earliest())
        sink = KafkaSink.builder().set_bootstrap_servers(self.servers).set_record_serializer(serializer(self.counts))
        sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix("savepoints")
        numbers = env.set_parallelism(parallelism).from_source(
            source.build(), WatermarkStrategy.no_watermarks(), "numbers"
        )
        keyed = numbers.uid("numbers").key_by(lambda text: int(text) % 5, key_type=Types.LONG())
        keyed.process(Count(), Types.STRING()).uid("count").sink_to(sink.build()).uid("counts")
        return env.execute_async("savepoints")

    def has_read(self, job: JobClient, records: int) -> None:
        eventually(lambda: started(job).view().totals.records >= records, f"{records} records are read")

    def check(self) -> None:
        """Every number so far is committed once, and each key has counted without a gap."""
        counts: dict[str, list[int]] = defaultdict(list)
        found = [line.split() for line in self.topics.read(self.counts)]
        assert sorted(int(number) for _, number, _ in found) == list(range(self.written))
        for key, _, count in found:
            counts[key].append(int(count))
        assert {key: sorted(every) for key, every in counts.items()} == {
            str(key): list(range(1, self.written // 5 + 1)) for key in range(5)
        }


def test_taken_stopped_cancelled_and_resumed_at_other_parallelisms(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    chain = Chain(broker, topics, tmp_path)
    chain.write()
    job = chain.start("first", 1)
    chain.has_read(job, BATCH)
    beside = job.trigger_savepoint().result()
    assert any(operator.committables for operator in locate(beside).metadata.operators), "a transaction is prepared"
    assert topics.read(chain.counts) == [], "a savepoint commits nothing by itself"

    chain.write()
    chain.has_read(job, 2 * BATCH)
    stopped = job.stop_with_savepoint(False).result()
    assert job.get_job_status().result() is JobStatus.FINISHED
    chain.check()

    chain.write()
    job = chain.start("second", 3, stopped)
    chain.has_read(job, BATCH)
    cancelled = started(job).submit(CancelWithSavepoint(None)).answer.result()
    with pytest.raises(JobCancelledError):
        job.get_job_execution_result().result()
    chain.check()

    chain.write()
    job = chain.start("third", 2, cancelled)
    chain.has_read(job, BATCH)
    job.stop_with_savepoint(True).result()
    chain.check()

    # what was pending in the savepoint beside the first job has been committed since: it is found done, and the rest comes again
    fork = chain.start("fork", 2, beside)
    chain.has_read(fork, 3 * BATCH)
    fork.stop_with_savepoint(False).result()
    assert len(topics.read(chain.counts)) == chain.written + 3 * BATCH
