"""Values of Kafka as columns on Spark: through timestamps, keys and windows to another topic, on a real broker."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.kafka.kafka_tools import Broker, Topics
from tidegate.common import Configuration, Duration, Row, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import Aggregates, StreamExecutionEnvironment
from tidegate.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from tidegate.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from tidegate.datastream.window import TumblingEventTimeWindows

ORDER = Types.ROW_NAMED(["user", "price", "time"], [Types.STRING(), Types.LONG(), Types.LONG()])
TOTAL = Types.ROW_NAMED(["user", "records", "total"], [Types.STRING(), Types.LONG(), Types.LONG()])
COUNT = 4_000


class ByTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        time: int = value["time"]
        return time


def test_json_values_pass_windows_as_columns(spark: Any, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    incoming, outgoing = topics.new(2), topics.new(1)
    orders = [
        {"user": ["ann", "bób", "猫"][n % 3], "price": None if n % 7 == 0 else n, "time": n} for n in range(COUNT)
    ]
    for partition in (0, 1):
        topics.write(incoming, [json.dumps(order) for order in orders[partition::2]], partition=partition)
    configuration = Configuration().set_string("execution.checkpointing.dir", str(tmp_path / "checkpoints"))
    configuration.set_string("execution.checkpointing.interval", "200 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    values = JsonRowDeserializationSchema.builder().type_info(ORDER).build()
    source = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics(incoming)
    source = source.set_value_only_deserializer(values).set_bounded(KafkaOffsetsInitializer.latest())
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(COUNT)).with_timestamp_assigner(
        ByTime()
    )
    keyed = env.from_source(source.build(), strategy, "orders").key_by(lambda order: order["user"], Types.STRING())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.seconds(1)))
    totals = windows.aggregate(Aggregates.first("user"), Aggregates.count(), Aggregates.sum("price"))
    rows = totals.map(lambda total: Row(*total), TOTAL)  # type: ignore[union-attr]
    written = JsonRowSerializationSchema.builder().with_type_info(TOTAL).build()
    record = (
        KafkaRecordSerializationSchema.builder().set_topic(outgoing).set_value_serialization_schema(written).build()
    )
    rows.sink_to(
        KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(record).build()
    )
    env.execute("columns of kafka")
    wanted: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for order in orders:
        found = wanted[str(order["user"]), int(str(order["time"])) // 1000]
        found[0] += 1
        found[1] += int(str(order["price"] or 0))
    lines = [json.loads(line) for line in topics.read(outgoing)]
    assert sorted((line["user"], line["records"], line["total"]) for line in lines) == sorted(
        (user, *counted) for (user, _), counted in wanted.items()
    )
