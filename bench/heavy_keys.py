"""What the sketch of heavy keys costs: its part of the processor time of all tasks of a keyed program, without Spark.

``python bench/heavy_keys.py [RECORDS] [REPEAT]``. The calls of the sketch are timed inside the running program, so load on the
machine changes both sides alike. What the clock itself takes is subtracted. Rounds are of several sizes: a small chunk costs a look
at eight keys.
"""

from __future__ import annotations

import itertools
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


class TimedSampler(heavy_keys.KeySampler):
    """``used``: seconds of processor time in the sketch, of all samplers."""

    used, clock = 0.0, 0.0

    def look(self, keys: Any) -> None:
        began = time.thread_time()
        super().look(keys)
        TimedSampler.used += time.thread_time() - began - self.clock

    def heaviest(self) -> heavy_keys.Heavy | None:
        began = time.thread_time()
        found = super().heaviest()
        TimedSampler.used += time.thread_time() - began - self.clock
        return found


def clock_costs() -> float:
    """Return how long nothing takes by the clock."""
    times = [time.thread_time() for _ in range(20_001)]
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def part(records: int, keys: int, round_size: int) -> float:
    """Run the keyed count, and return the sketch's part of the time of its tasks."""
    engine = tasks.InProcess(fresh=False)
    register_executor("in-process", lambda: tasks.InProcessExecutor(engine))
    settings = Configuration()
    settings.set_string("execution.target", "in-process")
    settings.set_string("tidegate.round.max-records", str(round_size))
    settings.set_string("tidegate.round.target-time", "1 h")
    TimedSampler.used = 0.0
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        env = tidegate_jobs.environment(2, 3_600_000, directory)
        env.configure(settings)
        tidegate_jobs.keyed_count(env, NumberSequenceSource(0, records - 1), keys)
        env.execute("tasks")
    return TimedSampler.used / sum(engine.used)


def main(records: int, repeat: int) -> None:
    from tidegate.operators.flow import feeds

    feeds.KeySampler = TimedSampler  # type: ignore[misc]
    TimedSampler.clock = clock_costs()
    worst = 0.0
    for keys, round_size in ((1_000, 200_000), (100_000, 200_000), (1_000, 10_000), (1_000, 1_000)):
        parts = [part(records, keys, round_size) for _ in range(repeat)]
        worst = max(worst, statistics.median(parts))
        shown = ", ".join(f"{100 * each:.2f}" for each in parts)
        print(f"{keys:,} keys, rounds of {round_size:,}: {shown} %; median {100 * statistics.median(parts):.2f} %")
    print(f"worst median {100 * worst:.2f} %, limit {100 * LIMIT:.0f} %")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
