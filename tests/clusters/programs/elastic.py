"""Counts numbers by key into files, in jobs of one application: ``elastic.py OUTPUT RECORDS PAUSE_S PARALLELISM...``.

The jobs run one after the other; ``2+1`` are two jobs at once. Each writes into a directory of its own and prints its figures.
"""

import json
import sys
import time
from typing import Any

from counting import KEYS, Count  # type: ignore[import-not-found]  # beside this file, not in this package

from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource


def started(output: str, records: int, pause: float, parallelism: int) -> Any:
    def slowly(number: int) -> int:
        if pause and number % 10 == 0:
            time.sleep(pause)
        return number

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    numbers = env.from_source(NumberSequenceSource(1, records), WatermarkStrategy.no_watermarks(), "numbers")
    slow = numbers.map(slowly, Types.LONG())
    counts = slow.key_by(lambda number: number % KEYS, Types.LONG()).process(Count(), Types.STRING())
    sink = FileSink.for_row_format(output, Encoder.simple_string_encoder())
    counts.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build())
    return env._start(output)


if __name__ == "__main__":
    place, count, seconds, *plan = sys.argv[1:]
    done = 0
    for together in plan:
        jobs = []
        for parallelism in together.split("+"):
            jobs.append(started(f"{place}/{done}", int(count), float(seconds), int(parallelism)))
            done += 1
        for job in jobs:
            job.result()
            totals = job.view().totals
            figures = {"attempts": len(job.view().attempts), "rounds": totals.rounds, "rebuilds": totals.rebuilds}
            print(json.dumps(figures), flush=True)
