"""How the cost of a record grows: `python bench/growth.py [--axis NAME ...] [--repeat N]`. Processor time of tasks, without Spark.

Each point is a process of its own (``tasks.py``), with two sizes: their difference drops what a start costs. The points of an
axis take turns, all of it ``repeat`` times. Prints tables; writes results/growth.json, which scripts/draw_pictures.py draws.
"""

from __future__ import annotations

import argparse
import statistics
from sys import executable
from typing import Any, NamedTuple

import report
from engines import BENCH, run_program
from report import Verdict
from rich.console import Console

progress = Console(stderr=True)


class Point(NamedTuple):
    """One value of an axis: the arguments of ``tasks.py`` and the records of the small and of the large run."""

    value: int
    arguments: list[str]
    small: int
    large: int


def _point(value: int, size: int, *, round: int = 250_000, start: int = 0, **arguments: Any) -> Point:
    given = {"program": "keyed", "keys": 20_000, "round": round} | arguments
    return Point(value, [f"--{name}={given[name]}" for name in given], start + size, start + 3 * size)


AXES: dict[str, tuple[str, list[Point], float]] = {
    "keys": (
        "keys in state (keyed count of numbers)",
        # The small run has met every key, so that the difference has none that is new.
        [_point(keys, 2_000_000, keys=keys, start=keys) for keys in (10_000, 100_000, 1_000_000, 10_000_000)],
        4.0,
    ),
    "chained": (
        "chained operators, for each of them",
        [_point(n, 6_000_000 // (n + 5), program=f"chain-{n}") for n in (1, 2, 5, 10, 20, 50)],
        1.5,
    ),
    "shuffles": (
        "shuffles, for each of them",
        [_point(n, 3_000_000 // (n + 1), program=f"shuffles-{n}") for n in (1, 2, 4, 8)],
        1.5,
    ),
    "parallelism": (
        "parallelism, a round of 250,000 records",
        [_point(n, 2_000_000, parallelism=n) for n in (1, 2, 4, 8, 16)],
        1.5,
    ),
    "round": (
        "records of a round, parallelism 2",
        [_point(n, min(200 * n, 2_000_000), round=n) for n in (1_000_000, 100_000, 10_000, 1_000)],
        10.0,
    ),
}
"""Axis -> what it counts, its points, and how many times the cheapest point's cost the dearest may have."""
EACH = {"chained", "shuffles"}
"""The cost is divided by the value."""


def measured(point: Point) -> float:
    """Return nanoseconds of processor time for a record."""
    used = []
    for records in (point.small, point.large):
        result = run_program([executable, str(BENCH / "tasks.py"), *point.arguments, f"--records={records}"])
        used.append(result["ns_a_record"] * records)
    return (used[1] - used[0]) / (point.large - point.small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axis", action="append", choices=list(AXES), help="may be repeated; default: all")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    curves: dict[str, Any] = {}
    verdicts, rows = [], []
    for axis in args.axis or AXES:
        what, points, most = AXES[axis]
        runs: dict[int, list[float]] = {point.value: [] for point in points}
        for repetition in range(args.repeat):
            for point in points:
                cost = measured(point) / (point.value if axis in EACH else 1)
                runs[point.value].append(cost)
                progress.print(f"{axis} {point.value:,}, {repetition + 1} of {args.repeat}: {cost:,.0f} ns")
        medians = {value: statistics.median(costs) for value, costs in runs.items()}
        rows += [[what, f"{value:,}", f"{cost:,.0f}"] for value, cost in medians.items()]
        grown = max(medians.values()) / min(medians.values())
        verdicts.append(Verdict(f"{what}: dearest / cheapest point", grown, most, at_least=False))
        curves[axis] = {"what": what, "medians": medians, "runs": runs}
    report.show("growth: processor time of tasks", ["axis", "value", "ns a record"], rows, verdicts, [])
    report.write("growth", {"repeat": args.repeat, "curves": curves}, verdicts)


if __name__ == "__main__":
    main()
