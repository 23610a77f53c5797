"""What a round costs the driver, for a number of subtasks and levels: processor time of the driver's Python, without Spark.

Prints one JSON line. The real job master runs; an engine stands in for the tasks: it packs the plans and decodes the acks as the
engine for Spark does, and answers for every subtask what a task with a little state would. What it takes to make these answers
does not count. ``--profile``: prints the driver's dearest functions instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pickle
import pstats
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tidegate_jobs
import trickle

from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream.executor import register_executor
from tidegate.operators.flow.rows import Ack, TaskRun, Work, seen_tokens
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile, StateSchema
from tidegate.state.snapshot import KEYED, SPLITS, KeyedPart, ListPart, OperatorSnapshot, Redistribution

EVERY = 4
"""One subtask of so many has changed state in a round."""
SKIPPED = 3
"""First rounds that do not count."""


class DriverAlone:
    """An engine (runtime/engine.py) whose tasks are made up. ``used``: processor seconds of the driver, a round each."""

    one_host = False

    def __init__(self) -> None:
        self.used: list[float] = []
        self.bytes: list[tuple[int, int]] = []
        """Of all plans, and of all acks, of each round."""
        self._since: float | None = None

    def start(self, spec: Any) -> None:
        self._spec = spec
        self._chains = [pickle.loads(chain).chain for chain in spec.chains]

    def run(self, plan: Any) -> list[Ack]:
        if self._since is not None:
            self.used.append(time.process_time() - self._since)
        self._since = time.process_time()
        packed = [[pickle.dumps([task], 5) for task in level] for level in plan.tasks]
        pickle.dumps(plan.context, 5)
        begun = time.process_time()
        answers = self._answers(plan)
        self.bytes.append((sum(len(one) for level in packed for one in level), sum(map(len, answers))))
        self._since += time.process_time() - begun
        return [pickle.loads(ack) for ack in answers]

    def _answers(self, plan: Any) -> list[bytes]:
        round, answers = plan.context.round, []
        token = [[f"{round:04x}{chain.id:02x}{n:06x}" for n in range(chain.parallelism)] for chain in self._chains]
        chain_of = {o.id: chain.id for chain in self._chains for o in chain.operators}
        for chain in self._chains:
            inputs = {e.id: seen_tokens(token[chain_of[e.source]]) for e in chain.inputs}
            for n in range(chain.parallelism):
                task = plan.tasks[chain.level][chain.offset + n]
                snapshots = {o.id: self._snapshot(o, n, task, round) for o in chain.operators}
                ack = Ack(chain.id, n, token[chain.id][n], TaskRun(0, chain.level, -1, "host-1, executor 1"), inputs)
                ack.snapshots, ack.records_in, ack.records_out, ack.seconds = snapshots, 1, 1, 0.004
                ack.snapshot_seconds = dict.fromkeys(snapshots, 0.0001)
                ack.work = Work(0.001, 0.001, 0.0001, 0.0001, 60, 60, plan.context.now_ms)
                answers.append(pickle.dumps(ack, 5))
        return answers

    def _snapshot(self, o: Any, n: int, task: Any, round: int) -> OperatorSnapshot:
        before = task.snapshots.get(o.id, OperatorSnapshot())
        if o.keyed is not None:
            if KEYED in before.parts and (n + round) % EVERY:
                return before
            groups = range_for(n, o.parallelism, o.max_parallelism)
            name = f"shared/{o.uid_hash[:12]}-{n}-{round}-0123456789ab.segment"
            file = StateFile(name, 1234, "0123456789abcdef0123456789abcdef", f"0123456789ab-{round}", groups, 10)
            files = (*(before.keyed.files[:1] if before.keyed else ()), file)
            return before.with_part(KEYED, KeyedPart(groups, files, (StateSchema("count", "value", "LONG"),), "LONG"))
        if not o.spec.inputs:
            return OperatorSnapshot({SPLITS: ListPart.of(Redistribution.EVEN_SPLIT, [[f"trickle-{n}", 1, 2]])}, round)
        return OperatorSnapshot({}, round)

    def cancel(self) -> None:
        return

    def stop(self) -> None:
        return


class DriverExecutor:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def execute_async(self, program: Any) -> Any:
        return StartedJob(JobMaster(program, self._engine, listeners=[]), [])


def shuffles(env: Any, source: Any, levels: int) -> None:
    """A keyed count after each of ``levels - 1`` shuffles."""
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    stream = stream.map(lambda x: (x, x), output_type=tidegate_jobs.PAIR)
    for level in range(1, levels):
        keyed = stream.key_by(lambda pair: pair[0], key_type=Types.LONG())
        stream = keyed.process(tidegate_jobs.Count(), output_type=tidegate_jobs.PAIR).name(f"count-{level}")
    stream.sink_to(DiscardingSink())


@contextmanager
def profiled_threads() -> Iterator[None]:
    """Profile every thread that starts, and print their dearest functions."""
    run, found = threading.Thread.run, list[cProfile.Profile]()

    def profiled(thread: threading.Thread) -> None:
        found.append(cProfile.Profile(time.thread_time))
        found[-1].runcall(run, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]
    every = pstats.Stats(found[0])
    for one in found[1:]:
        one.create_stats()
        if one.stats:  # type: ignore[attr-defined]
            every.add(one)
    every.sort_stats("tottime").print_stats(40)


def measured(subtasks: int, levels: int, rounds: int, interval_ms: int, profile: bool) -> dict[str, Any]:
    engine = DriverAlone()
    register_executor("driver-alone", lambda: DriverExecutor(engine))
    trickle.reset(None)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        env = tidegate_jobs.environment(subtasks, interval_ms, directory, ["execution.target=driver-alone"])
        shuffles(env, trickle.TrickleSource(0, rounds + SKIPPED, subtasks), levels)
        if profile:
            with profiled_threads():
                env.execute("scale")
        else:
            env.execute("scale")
    used = statistics.median(engine.used[SKIPPED:])
    plans, acks = engine.bytes[-2]
    everyone = subtasks * levels
    return {
        "subtasks": subtasks,
        "levels": levels,
        "checkpoint_each_round": interval_ms < 1000,
        "rounds": len(engine.used) - SKIPPED,
        "driver_ms": used * 1000,
        "ms_a_subtask": used * 1000 / everyone,
        "plan_bytes": plans // everyone,
        "ack_bytes": acks // everyone,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, required=True, help="of each level")
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--interval-ms", type=int, default=3_600_000, help="of checkpoints")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measured(args.subtasks, args.levels, args.rounds, args.interval_ms, args.profile)))


if __name__ == "__main__":
    main()
