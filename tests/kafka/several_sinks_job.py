"""The program of ``test_several_sinks.py``: numbers into files, a table of PostgreSQL and a topic of Kafka, by one job.

Started with a directory it is the driver. Without, it starts drivers: a process of their own for each line it reads, which says
how, and for each it prints the exit code. A driver that is forked has all modules at hand.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.forked_drivers import start_drivers
from tests.simulation.executor import SimulatedExecutor
from tests.sources import ScriptedSource
from tidegate.common import Configuration, Encoder, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from tidegate.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tidegate.runtime import master as _master  # noqa: F401


def main(directory: str) -> None:
    said = json.loads(os.environ["SEVERAL_SINKS"])
    executor.register_executor("simulated", SimulatedExecutor)
    keys = {
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.interval": "10",
        "restart-strategy.type": "none",
        "tidegate.round.max-records": "20",
        "tidegate.job-id": "several",
        "parallelism.default": "2",
        **said["settings"],
    }
    configuration = Configuration()
    for key, value in keys.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    # Two splits, as far as they have come by now: what is not there yet comes with a later start.
    scripts = [list(range(split, said["until"], 2)) for split in range(2)]
    source = ScriptedSource(*scripts, ends=said["ends"])
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).uid("numbers")
    texts = numbers.map(str, Types.STRING()).uid("texts")
    rows = numbers.map(lambda n: (n, f"row {n}"), Types.TUPLE([Types.LONG(), Types.STRING()])).uid("rows")
    texts.sink_to(_files(directory)).uid("files")
    rows.sink_to(PostgreSqlSink(said["url"], Table(said["table"], ["id", "label"]))).uid("table")
    texts.sink_to(_topic(said["servers"], said["topic"])).uid("topic")
    env.execute("several")


def _files(directory: str) -> FileSink:
    return (
        FileSink.for_row_format(f"{directory}/out", Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )


def _topic(servers: str, topic: str) -> Any:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(topic)
        .build()
    )


if __name__ == "__main__":
    main(sys.argv[1]) if sys.argv[1:] else start_drivers(main)
