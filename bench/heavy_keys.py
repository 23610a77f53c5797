"""What the sketch of heavy keys costs: its part of the processor time of all tasks of a keyed program, without Spark.

``python bench/heavy_keys.py [RECORDS] [REPEAT]``. The calls of the sketch are timed inside the running program, so load on the
machine changes both sides alike. Rounds are of several sizes: a small chunk costs a look at four keys.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import tasks
import tidegate_jobs

from tidegate.common import Configuration
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.executor import register_executor
from tidegate.operators.flow import heavy_keys

LIMIT = 0.01
_TIMES = 16


class TimedSampler(heavy_keys.KeySampler):
    """``used``: seconds of processor time in the sketch, of all samplers. ``extra``: seconds that only the measurement took.

    A call takes about as long as the clock, so each is timed together with ``_TIMES`` more calls on the same chunk. Each of them
    looks at other keys, which are as far from the processor as those of the first.
    """

    used, extra = 0.0, 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._same = heavy_keys.KeySampler(*arguments)

    def look(self, keys: Any) -> None:
        super().look(keys)
        began = time.thread_time()
        for _ in range(_TIMES):
            self._same.look(keys)
        self._add(time.thread_time() - began)

    def heaviest(self) -> heavy_keys.Heavy | None:
        began = time.thread_time()
        for _ in range(_TIMES):
            super().heaviest()
        self._add(time.thread_time() - began)
        return super().heaviest()

    def _add(self, seconds: float) -> None:
        TimedSampler.used += seconds / _TIMES
        TimedSampler.extra += seconds


def part(records: int, keys: int, round_size: int) -> float:
    """Run the keyed count, and return the sketch's part of the time of its tasks."""
    engine = tasks.InProcess(fresh=False)
    register_executor("in-process", lambda: tasks.InProcessExecutor(engine))
    settings = Configuration()
    settings.set_string("execution.target", "in-process")
    settings.set_string("tidegate.round.max-records", str(round_size))
    settings.set_string("tidegate.round.target-time", "1 h")
    TimedSampler.used = TimedSampler.extra = 0.0
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        env = tidegate_jobs.environment(2, 3_600_000, directory)
        env.configure(settings)
        tidegate_jobs.keyed_count(env, NumberSequenceSource(0, records - 1), keys)
        env.execute("tasks")
    return TimedSampler.used / (sum(engine.used) - TimedSampler.extra)


def main(records: int, repeat: int) -> None:
    from tidegate.operators.flow import feeds

    feeds.KeySampler = TimedSampler  # type: ignore[misc]
    worst = 0.0
    for keys, round_size in ((1_000, 200_000), (100_000, 200_000), (1_000, 10_000), (1_000, 1_000)):
        parts = [part(records, keys, round_size) for _ in range(repeat)]
        worst = max(worst, statistics.median(parts))
        shown = ", ".join(f"{100 * each:.2f}" for each in parts)
        print(f"{keys:,} keys, rounds of {round_size:,}: {shown} %; median {100 * statistics.median(parts):.2f} %")
    print(f"worst median {100 * worst:.2f} %, limit {100 * LIMIT:.0f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
