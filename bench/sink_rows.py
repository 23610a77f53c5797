"""Rows a second into a target, by the sink and by the plain way, in turns in one run; medians, a table, a JSON file."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import report

RUNS = 5


@dataclass(frozen=True)
class Way:
    """``work`` writes all rows; ``clear`` and ``check`` are not in the time."""

    work: Callable[[], object]
    clear: Callable[[], object]
    check: Callable[[], object]


def compare(
    scenario: str, title: str, count: int, ways: dict[str, Way], targets: dict[str, str], notes: list[str]
) -> None:
    """``targets``: a way of ours, and what it is held against."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            way.clear()
            started = time.perf_counter()
            way.work()
            seconds[name].append(time.perf_counter() - started)
            way.check()
    rates = {name: count / statistics.median(times) for name, times in seconds.items()}
    verdicts = [
        report.Verdict(f"{ours}, rows a second against {plain}", rates[ours] / rates[plain], 0.5)
        for ours, plain in targets.items()
    ]
    rows = [[name, f"{rates[name]:,.0f}", _spread(count, times)] for name, times in seconds.items()]
    report.show(title, ["way", "rows/s", "slowest to fastest"], rows, verdicts, notes)
    body = {"rows": count, "runs": RUNS, "seconds": seconds, "rows_per_second": rates, "notes": notes}
    print(f"written: {report.write(scenario, body, verdicts)}")


def _spread(count: int, times: list[float]) -> str:
    return f"{count / max(times):,.0f} to {count / min(times):,.0f}"
