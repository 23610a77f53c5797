"""The job of ``homes.py``: fills keyed state, then changes a little of it in each round. Prints one JSON line.

``homes_job.py STATE_MB ROUNDS RECORDS PLACEMENT``: ``own`` lets tasks prefer their homes; with ``spark`` Spark chooses the host.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import trickle

from tidegate.common import Types, WatermarkStrategy
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.spark.engine import SparkEngine
from tidegate.spark.homes import Homes

VALUE_BYTES = 10_000
SKIPPED = 20
"""Rounds after the state is complete that do not count."""


class Rewrite(KeyedProcessFunction):
    """Reads the value of a key and replaces it."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        before = self.value.value()
        self.value.update(os.urandom(VALUE_BYTES))
        yield 0 if before is None else 1


def main() -> None:
    state_mb, rounds, per_round, placement = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    keys = state_mb * 1_000_000 // VALUE_BYTES
    places: list[dict[str, str]] = []
    rebuilds: list[int] = []
    run = SparkEngine.run

    def noted(engine: SparkEngine, plan: Any) -> Any:
        acks = run(engine, plan)
        assert engine._spec is not None
        sources = {chain for chain, _ in engine._spec.partitions[0]}  # their tasks have no home
        places.append({f"{a.chain}/{a.subtask}": a.run.place.partition(",")[0] for a in acks if a.chain not in sources})
        return acks

    SparkEngine.run = noted  # type: ignore[method-assign]
    if placement == "spark":
        Homes.prefer = lambda self, shuffled, tasks: shuffled  # type: ignore[method-assign]
    trickle.reset(lambda done: rebuilds.append(job.view().totals.rebuilds))
    env = StreamExecutionEnvironment.get_execution_environment()
    source = trickle.TrickleSource(keys, rounds + SKIPPED, per_round)
    (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
        .key_by(lambda number: number * 2_654_435_761 % keys, Types.LONG())
        .process(Rewrite(), Types.LONG())
        .sink_to(DiscardingSink())
    )
    job = env._start("homes")
    job.result()
    took = [end - start for start, end in trickle.clocked][SKIPPED:]
    settled = places[-rounds:]
    moves = sum(before[s] != after[s] for before, after in pairwise(settled) for s in before if s in after)
    result = {
        "placement": placement,
        "state_mb": keys * VALUE_BYTES / 1e6,
        "subtasks": env.get_parallelism(),
        "rounds": len(took),
        "records_a_round": per_round,
        "records_a_second": per_round * len(took) / sum(took),
        "round_ms": statistics.median(took) * 1000,
        "slowest_round_ms": max(took) * 1000,
        "rebuilds": rebuilds[-1] - rebuilds[SKIPPED - 1],
        "rebuilds_before": rebuilds[SKIPPED - 1],
        "moves": moves,
        "attempts": len(job.view().attempts),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
