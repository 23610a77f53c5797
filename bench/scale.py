"""How far it goes: `python bench/scale.py [--part NAME ...] [--repeat N]`. What rounds and checkpoints of wide and deep jobs cost.

Each point is a process of its own; the points of a part take turns, all of it ``repeat`` times, and the median counts. A part that
is not measured now keeps its former points. Writes results/scale.json, which scripts/draw_pictures.py draws.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from sys import executable
from typing import Any

import report
from engines import BENCH, run_program
from report import Verdict
from rich.console import Console

WIDTHS = (2, 32, 128, 512, 2048)
PARTS: dict[str, list[list[str]]] = {
    # Rounds of 2,048 subtasks at 8 levels leave gigabytes of acks; three of them show the cost.
    "driver": [
        ["scale_driver.py", f"--subtasks={n}", f"--levels={d}", "--rounds=3"] for d in (1, 2, 4, 8) for n in WIDTHS
    ],
    "driver-checkpoints": [["scale_driver.py", f"--subtasks={n}", "--rounds=6", "--interval-ms=10"] for n in WIDTHS],
    "tasks-of-their-own": [["scale_tasks.py", f"--subtasks={n}", "--rounds=2"] for n in WIDTHS[:-1]],
    "tasks-shared": [["scale_tasks.py", f"--subtasks={n}", "--rounds=2", "--tasks=4"] for n in WIDTHS[:-1]],
    "spark": [["scale_rounds.py", f"--subtasks={n}", "--rounds=10"] for n in (2, 8, 32, 128)],
    "spark-tasks-of-their-own": [
        ["scale_rounds.py", "--cluster", f"--subtasks={n}", "--rounds=10"] for n in (2, 8, 32, 128)
    ],
    "spark-levels": [["scale_rounds.py", "--subtasks=4", f"--levels={d}", "--rounds=10"] for d in (1, 4, 8)],
    "storage": [["scale_storage.py", f"--subtasks={n}"] for n in (200, 2_000, 20_000)],
    "storage-operators": [["scale_storage.py", f"--operators={n}", "--subtasks=2"] for n in (10, 100, 1_000)],
}
GOAL_MS = 1.0
"""Of the driver's processor time for a subtask and round, at 2,048 subtasks a level."""
progress = Console(stderr=True)


def median_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one point: the median of every number."""
    point = {}
    for name, value in runs[0].items():
        if isinstance(value, dict):
            point[name] = median_of([run[name] for run in runs])
        elif isinstance(value, bool) or not isinstance(value, int | float):
            point[name] = value
        else:
            point[name] = statistics.median(run[name] for run in runs)
    return point


def measured(part: str, repeat: int) -> list[dict[str, Any]]:
    runs: dict[int, list[dict[str, Any]]] = {}
    for _ in range(repeat):
        for number, (program, *arguments) in enumerate(PARTS[part]):
            result = run_program([executable, str(BENCH / program), *arguments])
            result |= {"load": os.getloadavg()[0]}
            runs.setdefault(number, []).append(result)
            progress.print(f"{part} {' '.join(arguments)}: {result}", soft_wrap=True)
    return [median_of(each) for each in runs.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="may be repeated; default: all")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    former = report.RESULTS / "scale.json"
    parts: dict[str, Any] = json.loads(former.read_text())["parts"] if former.exists() else {}
    for part in args.part or PARTS:
        parts[part] = {"repeat": args.repeat, "points": measured(part, args.repeat)}
        show_and_write(parts)


def show_and_write(parts: dict[str, Any]) -> None:
    widest = [point for point in parts.get("driver", {"points": []})["points"] if point["subtasks"] == WIDTHS[-1]]
    dearest = max((point["ms_a_subtask"] for point in widest), default=None)
    verdicts = [Verdict("driver: ms a subtask and round at 2,048 subtasks", dearest, GOAL_MS, at_least=False)]
    rows = [
        [part, f"{point['subtasks']:,}", str(point.get("levels", "")), f"{point['ms_a_subtask']:.3f}"]
        for part, found in parts.items()
        for point in found["points"]
        if "ms_a_subtask" in point
    ]
    report.show("scale: processor time of a round", ["part", "subtasks", "levels", "ms a subtask"], rows, verdicts, [])
    report.write("scale", {"parts": parts}, verdicts)


if __name__ == "__main__":
    main()
