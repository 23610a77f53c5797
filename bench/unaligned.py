"""Checkpoints with one slow operator and a backlog, aligned and unaligned: how long each took, and how long the job.

``python bench/unaligned.py [--records 2000] [--ms 10] [--repeat 3]``, in turns in one session; medians. Everything the source
has is planned for the first round, so an aligned checkpoint waits for all of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import report

from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

RUNS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned, timeout 0": {"execution.checkpointing.unaligned.enabled": True},
    "unaligned, timeout 2 s": {
        "execution.checkpointing.unaligned.enabled": True,
        "execution.checkpointing.aligned-checkpoint-timeout": "2 s",
    },
}


TIMEOUTS_S = {"unaligned, timeout 0": 0.0, "unaligned, timeout 2 s": 2.0}
FIELDS = {
    "number": "checkpoints",
    "longest_seconds": "the longest took, s",
    "median_seconds": "median, s",
    "longest_gap_seconds": "longest from one to the next, s",
    "most_in_flight": "most records in flight",
    "most_in_flight_bytes": "most bytes in flight",
    "job_seconds": "the job, s",
}


def measured(name: str, records: int, ms: float) -> dict[str, Any]:
    home = tempfile.mkdtemp()
    keys: dict[str, Any] = {
        "execution.checkpointing.dir": home,
        "execution.checkpointing.interval": "1 s",
        "tidegate.job-id": "slow",
        **RUNS[name],
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(2)

    def slow(value: int) -> int:
        time.sleep(ms / 1000)
        return value

    stream = env.from_collection(list(range(records))).rebalance().map(slow)
    began = time.perf_counter()
    assert sum(stream.execute_and_collect()) == sum(range(records))
    seconds = time.perf_counter() - began
    entries = [entry for entry in read_history(Files(str(Path(home, "slow")))) if entry.trigger_ms]
    gaps = [later.end_ms - earlier.end_ms for earlier, later in pairwise(entries)]
    return {
        "job_seconds": round(seconds, 1),
        "number": len(entries),
        "longest_seconds": round(max(entry.duration_ms for entry in entries) / 1000, 2),
        "median_seconds": round(statistics.median(entry.duration_ms for entry in entries) / 1000, 2),
        "longest_gap_seconds": round(max(gaps, default=0) / 1000, 2),
        "most_in_flight": max(entry.in_flight_records for entry in entries),
        "most_in_flight_bytes": max(entry.in_flight_bytes for entry in entries),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--ms", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    measured("aligned", 20, 1)  # for the JVM's sake
    for repetition in range(given.repeat):
        for name in RUNS if repetition % 2 == 0 else reversed(RUNS):
            runs[name].append(measured(name, given.records, given.ms))
            print(json.dumps({name: runs[name][-1]}), file=sys.stderr, flush=True)
    rows = [[name, *(f"{median(of, field):g}" for field in FIELDS)] for name, of in runs.items()]
    longest = {name: max(run["longest_seconds"] for run in of) for name, of in runs.items()}
    verdicts = [
        report.Verdict(f"{name}: the longest of all, s", longest[name], timeout_s + 2, at_least=False)
        for name, timeout_s in TIMEOUTS_S.items()
    ]
    title = f"unaligned: {given.records:,} records at {given.ms:g} ms, parallelism 2, a checkpoint every second"
    report.show(title, ["checkpoints", *FIELDS.values()], rows, verdicts, [f"Medians over {given.repeat} runs."])
    print(f"written: {report.write('unaligned', {'repeat': given.repeat, 'runs': runs}, verdicts)}")


def median(runs: list[dict[str, Any]], field: str) -> float:
    return float(statistics.median(run[field] for run in runs))


if __name__ == "__main__":
    main()
