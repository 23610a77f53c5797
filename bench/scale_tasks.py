"""What a round costs in the tasks, for a number of subtasks and levels: processor time of the tasks' Python, without Spark.

Prints one JSON line. The levels run in this process, and rows are pickled between them. ``--tasks``: how many tasks run a level;
0: one for each subtask, as on a cluster with enough cores.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pickle
import pstats
import statistics
import sys
import tempfile
import time
from typing import Any

import scale_driver
import tidegate_jobs
import trickle

from tidegate.datastream.executor import register_executor
from tidegate.testing.engine import InProcessEngine

SKIPPED = 3
"""First rounds that do not count."""


class Timed(InProcessEngine):
    """``used``: seconds of processor time of all tasks, a round each. ``rows``, ``bytes``: sent between levels."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.most_tasks = tasks or sys.maxsize
        self.used: list[float] = []
        self.rows, self.bytes = 0, 0
        self.profiler: cProfile.Profile | None = None

    def run(self, plan: Any) -> Any:
        gc.set_threshold(200_000, 20, 50)  # as spark/task.py does
        self.used.append(0.0)
        self.rows = self.bytes = 0
        return super().run(plan)

    def run_task(self, level: int, task: int, plan: Any, rows: Any) -> Any:
        if self.profiler is not None and len(self.used) > SKIPPED:
            self.profiler.enable()
        begun = time.thread_time()
        sent = super().run_task(level, task, plan, rows)
        packed = [pickle.dumps(pair, 5) for pair in sent]
        arrived = [pickle.loads(one) for one in packed]
        self.used[-1] += time.thread_time() - begun
        if self.profiler is not None:
            self.profiler.disable()
        self.rows += len(packed)
        self.bytes += sum(map(len, packed))
        return arrived


def measured(subtasks: int, levels: int, rounds: int, tasks: int, profile: bool) -> dict[str, Any]:
    engine = Timed(tasks)
    engine.profiler = cProfile.Profile(time.thread_time) if profile else None
    register_executor("timed-tasks", lambda: scale_driver.DriverExecutor(engine))
    trickle.reset(None)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", dir="/dev/shm") as directory:
        env = tidegate_jobs.environment(subtasks, 3_600_000, directory, ["execution.target=timed-tasks"])
        scale_driver.shuffles(env, trickle.TrickleSource(0, rounds + SKIPPED, subtasks), levels)
        env.execute("scale")
    if engine.profiler is not None:
        pstats.Stats(engine.profiler).sort_stats("tottime").print_stats(45)
    used = statistics.median(engine.used[SKIPPED : SKIPPED + rounds]) * 1000
    return {
        "subtasks": subtasks,
        "levels": levels,
        "tasks": tasks or subtasks,
        "tasks_ms": used,
        "ms_a_subtask": used / (subtasks * levels),
        "rows": engine.rows,
        "bytes": engine.bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, required=True, help="of each level")
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measured(args.subtasks, args.levels, args.rounds, args.tasks, args.profile)))


if __name__ == "__main__":
    main()
