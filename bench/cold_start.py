"""From the shell to the first line: `tidegate run` of the smallest program, and a bare PySpark program, in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report
from cpu_time import CpuTime
from engines import BENCH, RunFailed
from report import Verdict

ENGINES = {
    "tidegate": [str(Path(sys.executable).with_name("tidegate")), "run", str(BENCH / "first_record_job.py")],
    "pyspark": [sys.executable, str(BENCH / "peers/pyspark_first_row.py")],
}
REPEATS = 5
"""Times ``--repeat``: a start takes seconds, and differs much from the next."""


def started(command: list[str]) -> dict[str, float]:
    """Run it. Returns the seconds to its first line and to its end, and the processor time of all its processes."""
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with CpuTime(process.pid) as used:
        first = process.stdout.readline()
        shown = time.monotonic() - begun
        process.stdout.read()
        code = process.wait()
    if code != 0 or not first:
        raise RunFailed(f"exit code {code}, first line {first!r}: {' '.join(command)}")
    return {"first_line": shown, "seconds": time.monotonic() - begun, "cpu_seconds": used.seconds}


def cold_start(scenario: str, repeat: int, quick: bool) -> bool:
    runs: list[dict[str, Any]] = []
    for _ in range(1 if quick else repeat * REPEATS):
        runs += [{"engine": name, **started(command)} for name, command in ENGINES.items()]
    fields = ("first_line", "seconds", "cpu_seconds")
    medians = {
        name: {field: statistics.median(run[field] for run in runs if run["engine"] == name) for field in fields}
        for name in ENGINES
    }
    ours, bare = medians["tidegate"], medians["pyspark"]
    verdicts = [
        Verdict("first line / a bare PySpark program's", ours["first_line"] / bare["first_line"], 1.2, at_least=False),
        Verdict("the same by CPU time, to the end", ours["cpu_seconds"] / bare["cpu_seconds"], 1.2, at_least=False),
    ]
    rows = [[name, *(f"{medians[name][field]:.2f}" for field in fields)] for name in ENGINES]
    head = ["program", "to the first line, s", "to the end, s", "CPU time, s"]
    notes = [f"Medians of {len(runs) // len(ENGINES)} starts each, in turn; each a process and a JVM of its own."]
    report.show("cold-start: from the shell to the first record", head, rows, verdicts, notes)
    report.write(scenario, {"repeat": repeat, "quick": quick, "medians": medians, "runs": runs}, verdicts)
    return True
