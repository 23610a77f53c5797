"""The tasks of a bench program in one process, without Spark, in rounds of a fixed size: processor time a record.

Prints one JSON line. For machines that others use too: there the rounds of a real run, which are sized by the clock, become small,
and each costs something. Workers come and go as under Spark: with every second round subtasks change places. ``--fresh``: each
round has new ones, which know nothing of the rounds before.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import tempfile
import time
from typing import Any

import grown_jobs
import interval_join
import text_count
import tidegate_jobs
import tidegate_windows

from tidegate.common import Configuration
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.executor import register_executor
from tidegate.operators.flow.level import Job
from tidegate.runtime import handle
from tidegate.runtime.master import JobMaster

PROGRAMS = {
    "keyed": tidegate_jobs.keyed_count,
    "text": text_count.text_count,
    "interval-join": interval_join.interval_join,
    **grown_jobs.GROWN,
    **{name: tidegate_windows.window_count(assigner) for name, assigner in tidegate_windows.WINDOWS.items()},
}


class InProcess:
    """An engine (runtime/engine.py) with two workers in this process. ``used``: seconds of processor time, by level."""

    one_host = True

    def __init__(self, fresh: bool) -> None:
        self.used: list[float] = []
        self.rounds, self._fresh = 0, fresh

    def start(self, spec: Any) -> None:
        gc.set_threshold(200_000, 20, 50)  # as spark/task.py does
        self._spec, self._workers = spec, [Job(spec), Job(spec)]
        self.used = [0.0] * len(spec.widths)

    def run(self, plan: Any) -> list[Any]:
        self.rounds += 1
        if self._fresh:
            self._workers = [Job(self._spec), Job(self._spec)]
        rows: list[list[Any]] = [[] for _ in range(self._spec.widths[0])]
        for level in range(len(plan.tasks)):
            sent = [self._task(level, partition, plan, rows[partition]) for partition in range(len(rows))]
            if level + 1 == len(plan.tasks):
                break
            rows = [[] for _ in range(self._spec.widths[level + 1])]
            for partition, row in (pair for pairs in sent for pair in pairs):
                rows[partition].append(row)
        return [pickle.loads(ack) for acks in sent for _, ack in acks]

    def _task(self, level: int, partition: int, plan: Any, rows: list[Any]) -> Any:
        worker = self._workers[(partition + self.rounds // 2) % len(self._workers)]
        task = pickle.loads(pickle.dumps(plan.tasks[level][partition], 5))
        started = time.thread_time()
        sent = list(worker.run_partition(level, partition, plan.context, task, iter(rows)))
        self.used[level] += time.thread_time() - started
        return pickle.loads(pickle.dumps(sent, 5))

    def cancel(self) -> None:
        return

    def stop(self) -> None:
        return


class InProcessExecutor:
    def __init__(self, engine: InProcess) -> None:
        self._engine = engine

    def execute_async(self, program: Any) -> Any:
        started: Any = getattr(handle, "StartedJob", None) or vars(handle)["JobHandle"]  # its name in older trees
        return started(JobMaster(program, self._engine, listeners=[]), [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, default="keyed")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--round", type=int, required=True, help="records of a round")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="new workers in every round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated")
    args = parser.parse_args()
    engine = InProcess(args.fresh)
    register_executor("in-process", lambda: InProcessExecutor(engine))
    settings = Configuration()
    settings.set_string("execution.target", "in-process")
    settings.set_string("tidegate.round.max-records", str(args.round))
    settings.set_string("tidegate.round.target-time", "1 h")
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        # A shorter interval would bound the time of rounds
        env = tidegate_jobs.environment(args.parallelism, 3_600_000, directory, args.set)
        env.configure(settings)
        PROGRAMS[args.program](env, NumberSequenceSource(0, args.records - 1), args.keys)
        env.execute("tasks")
    per_level = [seconds / args.records * 1e9 for seconds in engine.used]
    print(json.dumps({"rounds": engine.rounds, "ns_a_record": sum(per_level), "by_level": per_level}))


if __name__ == "__main__":
    main()
