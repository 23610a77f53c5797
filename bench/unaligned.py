"""Checkpoints with one slow operator and a backlog, aligned and unaligned: how long each took, and how long the job.

``python bench/unaligned.py [--records 3000] [--ms 5]`` prints a table, and the same as JSON with ``--json``. Everything the
source has is planned for the first round, so an aligned checkpoint waits for all of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tidegate.checkpoint.history import read_history
from tidegate.common import Configuration
from tidegate.common.files import Files
from tidegate.datastream import StreamExecutionEnvironment

RUNS = {
    "aligned": {},
    "unaligned, timeout 0": {"execution.checkpointing.unaligned.enabled": True},
    "unaligned, timeout 2 s": {
        "execution.checkpointing.unaligned.enabled": True,
        "execution.checkpointing.aligned-checkpoint-timeout": "2 s",
    },
}


def measured(name: str, records: int, ms: float) -> dict[str, Any]:
    home = tempfile.mkdtemp()
    keys = {
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
        "checkpoints": name,
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
    parser.add_argument("--records", type=int, default=3_000)
    parser.add_argument("--ms", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measured(name, given.records, given.ms) for name in RUNS]
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print(
            "| " + " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()) + " |"
        )


if __name__ == "__main__":
    main()
