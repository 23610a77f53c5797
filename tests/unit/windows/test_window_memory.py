"""Windows that have closed take no memory: what a worker has allocated is the same after a hundred windows and a thousand."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.unit.windows.test_window_state import BUILDS
from tests.unit.windows.window_jobs import WindowJob, timed
from tidegate.base.user_code import CHAIN_FILE
from tidegate.datastream import MapFunction
from tidegate.testing.simulation.engine import Chances

WORKERS = [CHAIN_FILE, *(f"{Path(tidegate.__file__).parent}/{room}/*" for room in ("operators", "state"))]
"""Where what outlives a round in a worker is allocated. The simulated engine and the driver keep a history of their own."""
EARLY, LATE = 100, 990
MOST_GROWTH = 16 << 10
"""Bytes. A window that left but one entry of a dict behind would come to more than 90 KB."""
measured: list[int] = []


class Measures(MapFunction):
    def map(self, value: Any) -> Any:
        if value[2] in (2 * EARLY, 2 * LATE):
            gc.collect()
            filters = [tracemalloc.Filter(True, place) for place in WORKERS]
            traces = tracemalloc.take_snapshot().filter_traces(filters).traces
            measured.append(sum(trace.size for trace in traces))
        return value


@pytest.mark.parametrize("name", ["tumbling", "session", "session-counted", "count"])
def test_a_thousand_windows_take_no_more_memory_than_a_hundred(name: str, tmp_path: Path) -> None:
    records = [(f"k{n % 2}", n * 5, n) for n in range(2000)]  # two in a window
    job = WindowJob(tmp_path, lambda s: BUILDS[name](s.map(Measures())), timed(records), limit=40)
    job._chances = Chances()  # a task that is run again would measure twice
    measured.clear()
    tracemalloc.start()
    try:
        job.run(1, **{"tidegate.chunk.records": 8})
    finally:
        tracemalloc.stop()
    early, late = measured
    assert late - early < MOST_GROWTH, (early, late)
