"""The round scenarios, one process each: the cost of a round of next to no data, what a checkpoint takes, and the driver's memory.

Prints one JSON line. Bare PySpark rounds run in between, in the same process and session and in the same phase of the
JVM's warm-up: a bare round takes 150 ms when the JVM is young and half of that some hundred rounds later, so blocks measured
one after the other would mislead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import tidegate_jobs
import trickle
from pyspark import SparkContext

from tidegate.base.files import Files
from tidegate.checkpoint.history import STEPS, CheckpointHistory, CheckpointStatus

PARALLELISM = 2
BLOCK = 10
"""After so many rounds of Tidegate come as many bare ones."""
SETTLE = 20
"""Trickle rounds at the start of a job that do not count: they still digest the preload."""


def bare_round(context: SparkContext) -> float:
    """A two-stage job of a round's shape: two tasks send a small row to each of two tasks, those answer with a row. In ms."""

    def send(rows: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
        list(rows)  # a task that does not drain its input loses its Python worker
        for target in range(PARALLELISM):
            yield target, b"x" * 200

    def receive(rows: Iterable[Any]) -> Iterator[int]:
        yield len(list(rows))

    start = time.perf_counter()
    source = context.parallelize(range(PARALLELISM), PARALLELISM)
    answers = (
        source.mapPartitions(send).partitionBy(PARALLELISM, lambda target: target).mapPartitions(receive).collect()
    )
    elapsed = (time.perf_counter() - start) * 1000
    if answers != [PARALLELISM] * PARALLELISM:
        raise RuntimeError(f"bare round: expected {PARALLELISM} rows in each task, found {answers}")
    return elapsed


def active_context() -> SparkContext:
    """The Spark context the engine made for its job."""
    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("the engine has no Spark context in this process while it plans a round")
    return context


def run_job(keys: int, rounds: int, per_round: int) -> list[float]:
    """Fill the state with ``keys`` keys, run the trickle rounds, return the engine's own durations of those rounds (ms)."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        env = tidegate_jobs.environment(PARALLELISM, 1000, directory)
        tidegate_jobs.keyed_count(env, trickle.TrickleSource(keys, rounds, per_round), keys)
        client = env.execute_async("rounds")
        client.get_job_execution_result().result()
        return tidegate_jobs.engine_round_ms(client)[-rounds:]


def empty_rounds(keys: int, rounds: int) -> dict[str, Any]:
    """One job of ``rounds`` trickle rounds with bare rounds in between; medians of both, in ms."""
    bare: list[float] = []

    def interleave(done: int) -> None:
        if done >= SETTLE and done % BLOCK == 0:
            context = active_context()
            # The first of a block is dropped: the engine may still be busy in the background with its own last round.
            bare.extend([bare_round(context) for _ in range(BLOCK)][1:])

    trickle.reset(interleave)
    engine = run_job(keys, rounds, PARALLELISM)
    outside = [(end - start) * 1000 for start, end in trickle.clocked][SETTLE:]
    return {
        "keys": keys,
        "rounds": len(outside),
        "round_ms": statistics.median(outside),
        "round_ms_by_engine": statistics.median(engine[SETTLE:]),
        "bare_rounds": len(bare),
        "bare_ms": statistics.median(bare),
    }


def empty_round_scenario(rounds: int, keys: list[int], warm_up: int) -> dict[str, Any]:
    """Jobs with little and much state in turn, forth and back, so that neither gains from a warmer JVM."""
    empty_rounds(keys[0], warm_up)
    return {"jobs": [empty_rounds(count, rounds) for count in [*keys, *reversed(keys)]]}


CHANGED = 10_000
"""Keys that change in each round of ``checkpoints``."""


NOT_CACHED = "tidegate.state.cache-size=0"


def checkpoints(backend: str, keys: int, rounds: int, *, cached: bool = True) -> dict[str, Any]:
    """One job whose rounds change 10,000 keys each, with a checkpoint as often as one can be taken: medians of its history.

    ``cached`` False: whatever the size of the state, all of them are read from the store.
    """
    trickle.reset(None)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        settings = [f"state.backend.type={backend}", *([] if cached else [NOT_CACHED])]
        env = tidegate_jobs.environment(PARALLELISM, 10, directory, settings)
        source = trickle.TrickleSource(keys, rounds, CHANGED, at_least=250_000)
        tidegate_jobs.keyed_count(env, source, keys)
        env.execute("checkpoints")
        (job,) = Path(directory).iterdir()
        entries = CheckpointHistory(Files(str(job))).entries
    own = [entry for entry in entries if entry.status is CheckpointStatus.COMPLETED][-rounds + SETTLE :]
    steps = {step: statistics.median(entry.steps_ms.get(step, 0.0) for entry in own) for step in STEPS[:5]}
    return {
        "backend": backend,
        "cached": cached,
        "keys": keys,
        "checkpoints": len(own),
        "duration_ms": statistics.median(entry.duration_ms for entry in own),
        "incremental_bytes": statistics.median(entry.incremental for entry in own),
        "bytes": own[-1].size,
        "steps_ms": steps,
    }


def checkpoint_scenario(rounds: int, keys: list[int], warm_up: int) -> dict[str, Any]:
    """Jobs with little and much state forth and back, so that neither gains from a warmer JVM; the first one does not count."""
    checkpoints("hashmap", keys[0], warm_up)
    kinds = [(backend, cached) for cached in (True, False) for backend in ("hashmap", "rocksdb")]
    there_and_back = [*keys, *reversed(keys)]
    return {
        "jobs": [checkpoints(name, count, rounds, cached=cached) for name, cached in kinds for count in there_and_back]
    }


_COLLECTIONS = 4


def jvm_heap_after_gc(context: SparkContext) -> int:
    """Live bytes. The serial collector moves everything only at each fourth collection; in between it leaves up to 5 % of
    dead objects where they are (``[I`` in a histogram), so the least of four is what is alive."""
    jvm: Any = context._jvm
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    used = []
    for _ in range(_COLLECTIONS):
        jvm.java.lang.System.gc()
        used.append(int(memory.getHeapMemoryUsage().getUsed()))
    return min(used)


def memory_scenario(rounds: int, per_round: int, keys: int, every: int) -> dict[str, Any]:
    """One job of many rounds; the driver's memory every so many of them."""
    samples: list[dict[str, int]] = []
    process = psutil.Process(os.getpid())

    def sample(done: int) -> None:
        if done % every == 0:
            heap = jvm_heap_after_gc(active_context())
            samples.append({"round": done, "python_rss": process.memory_info().rss, "jvm_heap": heap})

    trickle.reset(sample)
    run_job(keys, rounds, per_round)
    return {"rounds": rounds, "records": rounds * per_round, "keys": keys, "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=["empty-round", "checkpoint", "memory"])
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--keys", type=int, nargs="+", required=True)
    parser.add_argument("--warm-up", type=int, default=150, help="trickle rounds of a first job that does not count")
    parser.add_argument("--per-round", type=int, default=500, help="memory: records of a round")
    parser.add_argument("--every", type=int, default=50, help="memory: rounds between two samples")
    args = parser.parse_args()
    if args.scenario == "empty-round":
        result = empty_round_scenario(args.rounds, args.keys, args.warm_up)
    elif args.scenario == "checkpoint":
        result = checkpoint_scenario(args.rounds, args.keys, args.warm_up)
    else:
        result = memory_scenario(args.rounds, args.per_round, args.keys[0], args.every)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
