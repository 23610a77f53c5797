"""Kafka -> keyed count of texts -> Kafka, exactly once, in PyFlink. Runs until it is ended."""

import argparse
import os
import sys
from pathlib import Path

from pyflink.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        key, sent = value.split(" ")
        yield f"{key} {n} {sent}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("servers", "start", "end", "dir", "jar"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--mode", choices=["process", "thread"], default="process")
    args = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = Configuration()
    settings.set_string("python.execution-mode", args.mode)
    settings.set_string("python.fn-execution.bundle.size", "10000")
    settings.set_string("state.backend.type", "hashmap")
    settings.set_string("execution.checkpointing.interval", f"{args.interval_ms} ms")
    settings.set_string("execution.checkpointing.storage", "filesystem")
    settings.set_string("execution.checkpointing.dir", Path(args.dir).resolve().as_uri())
    settings.set_string("pipeline.jars", Path(args.jar).resolve().as_uri())
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(args.parallelism)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(args.servers)
        .set_topics(args.start)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
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
        .set_property("transaction.timeout.ms", "900000")
        .build()
    )
    texts = env.from_source(source, WatermarkStrategy.no_watermarks(), "texts", Types.STRING())
    counts = texts.key_by(lambda text: text.split(" ")[0], Types.STRING()).process(Count(), Types.STRING())
    counts.sink_to(sink)
    env.execute("kafka-count")


if __name__ == "__main__":
    main()
