"""Kafka -> keyed count of texts -> Kafka, exactly once, in Tidegate. Runs until it is ended; ``kafka_count.py`` starts it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, KafkaSource
from tidegate.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    """``key n sent`` for every ``key sent``."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: Any) -> Iterator[str]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        key, sent = value.split(" ")
        yield f"{key} {n} {sent}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("servers", "start", "end", "dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--no-copy", action="store_true", help="checkpoints keep no copy of open transactions")
    args = parser.parse_args()
    settings = Configuration()
    settings.set_string("state.backend.type", "hashmap")
    settings.set_string("execution.checkpointing.interval", f"{args.interval_ms} ms")
    settings.set_string("execution.checkpointing.dir", Path(args.dir).resolve().as_uri())
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(args.parallelism)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(args.servers)
        .set_topics(args.start)
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(args.end)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(args.servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(args.end)
        .set_keep_output(not args.no_copy)
        .build()
    )
    texts = env.from_source(source, WatermarkStrategy.no_watermarks(), "texts", Types.STRING())
    counts = texts.key_by(lambda text: text.split(" ")[0], Types.STRING()).process(Count(), Types.STRING())
    counts.sink_to(sink)
    env.execute("kafka-count")


if __name__ == "__main__":
    main()
