"""The keyed count in Tidegate: as a program of its own, and as the job behind the round scenarios."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[tuple[int, int]]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield value[0], n


def environment(
    parallelism: int, interval_ms: int, directory: str, more: Sequence[str] = ()
) -> StreamExecutionEnvironment:
    """``more``: settings as ``key=value``."""
    settings = Configuration()
    settings.set_string("state.backend.type", "hashmap")
    settings.set_string("execution.checkpointing.interval", f"{interval_ms} ms")
    settings.set_string("execution.checkpointing.dir", Path(directory).resolve().as_uri())
    for setting in more:
        settings.set_string(*setting.split("=", 1))
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(parallelism)
    return env


def keyed_count(env: StreamExecutionEnvironment, source: Any, keys: int) -> None:
    """The program that every engine runs."""
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    (
        numbers.map(lambda x: ((x * 2654435761) % keys, x), output_type=PAIR)
        .key_by(lambda pair: pair[0], key_type=Types.LONG())
        .process(Count(), output_type=PAIR)
        .sink_to(DiscardingSink())
    )


def engine_round_ms(client: Any) -> list[float]:
    """Durations of the job's latest rounds as the engine itself counts them (``RoundStatistics``), in order."""
    return [statistics.seconds * 1000 for statistics in client._job.rounds()]


def main(program: Callable[[StreamExecutionEnvironment, Any, int], None] = keyed_count) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated")
    args = parser.parse_args()

    env = environment(args.parallelism, args.interval_ms, args.dir, args.set)
    program(env, NumberSequenceSource(0, args.records - 1), args.keys)
    start = time.perf_counter()
    env.execute("keyed-count")
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "engine": "tidegate",
                "records": args.records,
                "keys": args.keys,
                "seconds": round(seconds, 3),
                "records_per_second": int(args.records / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
