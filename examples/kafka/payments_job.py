"""Payments in, balances out, both topics on Kafka, exactly once: ``payments_job.py SERVERS DIRECTORY [PAYMENTS]``.

With a number of payments the job ends when it has read them; without one it runs until it is stopped.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tidegate.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from tidegate.datastream.state import ValueStateDescriptor

PAYMENTS, BALANCES = "payments", "balances"


class Balance(KeyedProcessFunction):
    """The account's balance after each payment."""

    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        balance = (self.balance.value() or 0) + value["amount"]
        self.balance.update(balance)
        yield json.dumps({"account": value["account"], "payment": value["id"], "balance": balance})


def main(servers: str, directory: str, bounded: bool) -> None:
    settings = {
        "tidegate.job-id": "balances",
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.interval": "1 s",
        "tidegate.state.local-dir": f"{directory}/local",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(2)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(PAYMENTS)
        .set_group_id("balances")
        .set_property("isolation.level", "read_committed")
        .set_value_only_deserializer(SimpleStringSchema())
    )
    if bounded:
        source.set_bounded(KafkaOffsetsInitializer.latest())
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(BALANCES)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("balances")
        .build()
    )
    payments = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "payments").uid("payments")
    changes = payments.map(json.loads).key_by(lambda payment: payment["account"], Types.STRING()).process(Balance())
    changes.uid("balance").sink_to(sink).uid("balances")
    env.execute("balances")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], len(sys.argv) > 3)
