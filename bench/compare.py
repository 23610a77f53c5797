"""Two trees of Tidegate side by side: `python bench/compare.py --before TREE [--scenario NAME ...] [--repeat N]`.

For "speed stays": the same programs with the sources of TREE (another clone or worktree) and with those of this one, in turn, so
that both see the same machine. Prints a table and writes results/compare.json.

Each keyed program gives two figures: records a second, and records for a second of processor time of all its processes (driver,
JVM, workers). On a machine that others use too neither says much: there the rounds, sized by the clock, become small. For those
there is ``--tasks``: only what tasks do, without Spark, in rounds of a fixed size, in processor time (``tasks.py``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import report
from engines import INTERVAL_MS, PARALLELISM, REPO, run_program
from report import Verdict
from rich.console import Console

LEAST = 0.95
KEYED = {
    "keyed-count": ("tidegate_jobs.py", 20_000, 10_000_000, 40_000_000),
    "keyed-count-1m": ("tidegate_jobs.py", 1_000_000, 5_000_000, 20_000_000),
    "text-count": ("text_count.py", 20_000, 1_000_000, 5_000_000),
}
"""Program, keys, records of the small and of the large run."""
TASKS = {
    "keyed-count": ["--program=keyed", "--keys=20000", "--records=8000000", "--round=2000000"],
    "keyed-count-1m": ["--program=keyed", "--keys=1000000", "--records=6000000", "--round=1000000"],
    "text-count": ["--program=text", "--keys=20000", "--records=2000000", "--round=500000"],
    "rounds of 4 records": ["--program=keyed", "--keys=1000", "--records=1200", "--round=4"],
}
"""With ``--tasks``."""
ROUNDS = ["--rounds=80", "--warm-up=100", "--keys", "1000", "1000000"]
progress = Console(stderr=True)


class Processors:
    """Seconds of processor time that children of this process, and theirs, use while it is entered."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Processors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        """Again and again: what a process has used is gone with it."""
        while not self._over.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    times = child.cpu_times()
                except psutil.Error:
                    continue
                self._used[child.pid] = times.user + times.system

    @property
    def seconds(self) -> float:
        return sum(self._used.values())


class Speed(NamedTuple):
    """Records for a second of time, and of processor time."""

    wall: float
    processor: float


def keyed(tree: Path, scenario: str) -> Speed:
    """By the two-size method."""
    program, keys, small, large = KEYED[scenario]
    wall, used = [], []
    for records in (small, large):
        directory = tempfile.mkdtemp(prefix="bench-compare-")
        arguments = [f"--records={records}", f"--keys={keys}", f"--parallelism={PARALLELISM}", f"--dir={directory}"]
        try:
            command = [sys.executable, str(tree / "bench" / program), *arguments, f"--interval-ms={INTERVAL_MS}"]
            with Processors() as processors:
                wall.append(float(run_program(command, sources=tree / "src")["seconds"]))
            used.append(processors.seconds)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return Speed((large - small) / (wall[1] - wall[0]), (large - small) / (used[1] - used[0]))


def empty_round(tree: Path, scenario: str) -> float:
    """Rounds a second with 1,000,000 keys of state, each job against the bare rounds inside of it."""
    command = [sys.executable, str(tree / "bench" / "rounds.py"), "empty-round", *ROUNDS]
    jobs: list[dict[str, Any]] = run_program(command, sources=tree / "src", path=tree / "bench")["jobs"]
    return statistics.median(job["bare_ms"] / job["round_ms"] for job in jobs)


def tasks(tree: Path, scenario: str) -> float:
    """Records a second of processor time."""
    result = run_program([sys.executable, str(tree / "bench" / "tasks.py"), *TASKS[scenario]], sources=tree / "src")
    return 1e9 / float(result["ns_a_record"])


def measure(tree: Path, scenario: str, only_tasks: bool) -> dict[str, float]:
    """The figures of one run, by the row of the table they belong to."""
    if only_tasks:
        figures = {f"{scenario}, tasks": tasks(tree, scenario)}
    elif scenario in KEYED:
        speed = keyed(tree, scenario)
        figures = {scenario: speed.wall, f"{scenario}, processor time": speed.processor}
    else:
        figures = {scenario: empty_round(tree, scenario)}
    for row, value in figures.items():
        progress.print(f"{row}: {tree}: {value:,.2f}", highlight=False)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other tree")
    parser.add_argument("--scenario", action="append", choices=[*KEYED, "empty-round", "rounds of 4 records"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tasks", action="store_true", help="only what tasks do, without Spark, in processor time")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    trees = {"before": args.before.resolve(), "now": REPO}
    found: dict[str, dict[str, list[float]]] = {}
    every = list(TASKS) if args.tasks else [*KEYED, "empty-round"]
    for scenario in [name for name in every if not args.scenario or name in args.scenario]:
        for repetition in range(args.repeat):
            for name in ("before", "now") if repetition % 2 == 0 else ("now", "before"):
                for row, value in measure(trees[name], scenario, args.tasks).items():
                    found.setdefault(row, {"before": [], "now": []})[name].append(value)
        # after each: a run that breaks off has measured something
        _write("compare-tasks" if args.tasks else "compare", found, args.repeat)
    return 0


def _write(name: str, found: dict[str, dict[str, list[float]]], repeat: int) -> None:
    rows, verdicts = [], []
    for row, runs in found.items():
        before, now = (statistics.median(runs[name]) for name in ("before", "now"))
        digits = 3 if row == "empty-round" else 0
        rows.append([row, f"{before:,.{digits}f}", f"{now:,.{digits}f}", f"{now / before:.2f}"])
        verdicts.append(Verdict(f"{row}: now / before", now / before, LEAST))
    notes = [
        "Records a second, by the two-size method; tasks: of processor time; empty-round: bare round / round.",
        f"Medians of {repeat} runs of each tree, in turn.",
    ]
    report.show("before and now", ["scenario", "before", "now", "ratio"], rows, verdicts, notes)
    progress.print(f"written: {report.write(name, {'repeat': repeat, 'runs': found}, verdicts)}")


if __name__ == "__main__":
    sys.exit(main())
