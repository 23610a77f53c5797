"""The program that tests of database sinks kill: every number into one table, running totals of accounts into another."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.mysql import MySqlSink
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table


def main(directory: str) -> None:
    said = json.loads(os.environ["SQL_JOB"])
    kind: Any = PostgreSqlSink if said["kind"] == "postgresql" else MySqlSink
    keys = {
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.interval": "10",
        "tidegate.round.max-records": "100",
        "tidegate.job-id": "totals",
        "parallelism.default": "2",
    }
    configuration = Configuration()
    for key, value in keys.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    numbers = env.from_source(
        NumberSequenceSource(0, 599), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    orders = numbers.map(lambda n: (n, f"a{n % 7}"), Types.TUPLE([Types.LONG(), Types.STRING()])).uid("orders")
    totals = (
        orders.key_by(lambda order: order[1], Types.STRING())
        .reduce(lambda one, other: (one[0] + other[0], one[1]))
        .uid("totals")
    )
    facts = kind(said["url"], Table(said["facts"], ["id", "account"]))
    upserts = kind(
        said["url"],
        Table(said["totals"], ["account", "total"], ["account"]),
        to_rows=lambda total: [(said["totals"], (total[1], total[0]))],
    )
    orders.sink_to(facts).uid("facts")
    totals.sink_to(upserts).uid("upserts")
    env.execute("totals")


if __name__ == "__main__":
    main(sys.argv[1])
