"""What a round of next to no data costs on Spark, for a number of subtasks and levels: wall time and processor time.

Prints one JSON line. Processor time is that of the driver, of its JVM and of Python's workers, without their start. A round gives
each subtask of the source one record. ``--cluster``: a Spark task for each subtask, as on a cluster with enough cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import psutil
import scale_driver
import tidegate_jobs
import trickle

from tidegate.spark import engine

SKIPPED = 6
"""First rounds that do not count."""


def processor_seconds() -> float:
    """Return what this process and all processes that it has started have used."""
    used = 0.0
    for process in [psutil.Process(os.getpid()), *psutil.Process(os.getpid()).children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


def measured(subtasks: int, levels: int, rounds: int) -> dict[str, Any]:
    at: list[float] = []
    trickle.reset(lambda done: at.append(processor_seconds()))
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        env = tidegate_jobs.environment(subtasks, 3_600_000, directory)
        scale_driver.shuffles(env, trickle.TrickleSource(0, rounds + SKIPPED, subtasks), levels)
        env.execute("scale")
    took = [(end - start) * 1000 for start, end in trickle.clocked][SKIPPED:]
    used = (at[-1] - at[SKIPPED - 1]) * 1000 / (len(at) - SKIPPED)
    return {
        "subtasks": subtasks,
        "levels": levels,
        "rounds": len(took),
        "round_ms": statistics.median(took),
        "processor_ms": used,
        "ms_a_subtask": used / (subtasks * levels),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, required=True, help="of each level")
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cluster", action="store_true")
    args = parser.parse_args()
    if args.cluster:
        vars(engine)["_most_tasks"] = lambda context: sys.maxsize
    start = time.perf_counter()
    result = measured(args.subtasks, args.levels, args.rounds)
    print(json.dumps(result | {"cluster": args.cluster, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
