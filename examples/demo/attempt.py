"""The process the demo kills: runs ``orders_job`` and tells, in JSON lines on standard output, how it goes.

Each start is the same program with the same job id on the same directory, so it continues from the latest completed checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from orders_job import build

from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

JOB_ID = "orders-demo"


def tell(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class TellLog(logging.Handler):
    """Tidegate logs every step of the checkpoint protocol by its number; the parent shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        tell("log", text=record.getMessage())


def configuration(home: str) -> Configuration:
    """Everything of the demo stays below ``home``, so that it can be cleared away whatever is killed when."""
    return Configuration.from_dict(
        {
            "tidegate.job-id": JOB_ID,
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": f"{home}/checkpoints",
            "tidegate.state.local-dir": f"{home}/state",
            "parallelism.default": 2,
            "tidegate.round.max-records": 10_000,  # what piled up while Spark started is not read in one go
            "spark.master": "local[2,4]",
            "spark.local.dir": f"{home}/spark",
            "spark.python.unix.domain.socket.dir": f"{home}/spark",
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("orders", type=int)
    parser.add_argument("rate", type=float)
    given = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.INFO)
    logging.getLogger("tidegate").addHandler(TellLog())
    env = StreamExecutionEnvironment.get_execution_environment(configuration(given.home))
    build(env, f"{given.home}/output", given.orders, given.rate)
    tell("built")
    client = env.execute_async("orders by customer")
    client.add_round_listener(
        lambda r: tell("round", round=r.round, checkpoint=r.checkpoint_id, seconds=r.seconds, records=r.records_in)
    )
    client.get_job_execution_result().result()
    tell("finished")


if __name__ == "__main__":
    main()
