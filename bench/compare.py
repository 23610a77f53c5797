"""Two trees of Tidegate side by side: `python bench/compare.py --before TREE [--scenario NAME ...] [--repeat N]`.

For "speed stays": the same programs with the sources of TREE (another clone or worktree) and with those of this one, in turn, so
that both see the same machine. Prints a table and writes results/compare.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import report
from engines import BENCH, INTERVAL_MS, PARALLELISM, REPO, run_program
from report import Verdict
from rich.console import Console

LEAST = 0.95
KEYED = {
    "keyed-count": ("tidegate_jobs.py", 20_000, 10_000_000, 40_000_000),
    "keyed-count-1m": ("tidegate_jobs.py", 1_000_000, 5_000_000, 20_000_000),
    "text-count": ("text_count.py", 20_000, 1_000_000, 5_000_000),
}
"""Program, keys, records of the small and of the large run."""
ROUNDS = ["--rounds=80", "--warm-up=100", "--keys", "1000", "1000000"]
progress = Console(stderr=True)


def keyed(tree: Path, scenario: str) -> float:
    """Records a second by the two-size method."""
    program, keys, small, large = KEYED[scenario]
    seconds = []
    for records in (small, large):
        directory = tempfile.mkdtemp(prefix="bench-compare-")
        arguments = [f"--records={records}", f"--keys={keys}", f"--parallelism={PARALLELISM}", f"--dir={directory}"]
        try:
            command = [sys.executable, str(BENCH / program), *arguments, f"--interval-ms={INTERVAL_MS}"]
            seconds.append(float(run_program(command, sources=tree / "src")["seconds"]))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return (large - small) / (seconds[1] - seconds[0])


def empty_round(tree: Path, scenario: str) -> float:
    """Rounds a second with 1,000,000 keys of state, each job against the bare rounds inside of it."""
    command = [sys.executable, str(tree / "bench" / "rounds.py"), "empty-round", *ROUNDS]
    jobs: list[dict[str, Any]] = run_program(command, sources=tree / "src", path=tree / "bench")["jobs"]
    return statistics.median(job["bare_ms"] / job["round_ms"] for job in jobs)


def measure(tree: Path, scenario: str) -> float:
    value = (keyed if scenario in KEYED else empty_round)(tree, scenario)
    progress.print(f"{scenario}: {tree}: {value:,.2f}", highlight=False)
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other tree")
    parser.add_argument("--scenario", action="append", choices=[*KEYED, "empty-round"])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    trees = {"before": args.before.resolve(), "now": REPO}
    rows, verdicts, found = [], [], {}
    for scenario in args.scenario or [*KEYED, "empty-round"]:
        runs: dict[str, list[float]] = {"before": [], "now": []}
        for repetition in range(args.repeat):
            for name in ("before", "now") if repetition % 2 == 0 else ("now", "before"):
                runs[name].append(measure(trees[name], scenario))
        before, now = (statistics.median(runs[name]) for name in ("before", "now"))
        digits = 0 if scenario in KEYED else 3
        rows.append([scenario, f"{before:,.{digits}f}", f"{now:,.{digits}f}", f"{now / before:.2f}"])
        verdicts.append(Verdict(f"{scenario}: now / before", now / before, LEAST))
        found[scenario] = runs
    notes = [
        "keyed-count, keyed-count-1m, text-count: records/s by the two-size method; empty-round: bare round / round.",
        f"Medians of {args.repeat} runs of each tree, in turn.",
    ]
    report.show("before and now", ["scenario", "before", "now", "ratio"], rows, verdicts, notes)
    progress.print(f"written: {report.write('compare', {'repeat': args.repeat, 'runs': found}, verdicts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
