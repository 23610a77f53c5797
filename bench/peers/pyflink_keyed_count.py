"""The keyed count in PyFlink, thread mode (the Python interpreter runs inside the JVM's task threads)."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
DISCARDING_SINK = "org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink"


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield value[0], n


def configuration(interval_ms: int, directory: str) -> Configuration:
    settings = Configuration()
    settings.set_string("python.execution-mode", "thread")
    # Meant to favour PyFlink (its default is 1,000); the difference was not measured.
    settings.set_string("python.fn-execution.bundle.size", "10000")
    settings.set_string("state.backend.type", "hashmap")
    settings.set_string("execution.checkpointing.interval", f"{interval_ms} ms")
    settings.set_string("execution.checkpointing.storage", "filesystem")
    settings.set_string("execution.checkpointing.dir", Path(directory).resolve().as_uri())
    return settings


def build(env: StreamExecutionEnvironment, records: int, keys: int) -> None:
    numbers = env.from_source(
        NumberSequenceSource(0, records - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    (
        numbers.map(lambda x: ((x * 2654435761) % keys, x), output_type=PAIR)
        .key_by(lambda pair: pair[0], key_type=Types.LONG())
        .process(Count(), output_type=PAIR)
        .sink_to(Sink(DISCARDING_SINK))
    )


def main(build=build) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--dir", required=True)
    args = parser.parse_args()
    # The JVM starts `python` from the PATH to find PyFlink's own modules: it must be this environment's.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    env = StreamExecutionEnvironment.get_execution_environment(configuration(args.interval_ms, args.dir))
    env.set_parallelism(args.parallelism)
    build(env, args.records, args.keys)
    start = time.perf_counter()
    env.execute("keyed-count")
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "engine": "pyflink-thread",
                "records": args.records,
                "keys": args.keys,
                "seconds": round(seconds, 3),
                "records_per_second": int(args.records / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
