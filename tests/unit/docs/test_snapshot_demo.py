"""The demo of why barriers: wrong without, right with them, and the picture on the page is the one it draws."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples" / "snapshot" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    return runpy.run_path(str(DEMO))


def test_without_barriers_records_are_lost_and_doubled(demo: dict[str, Any]) -> None:
    crashed = demo["naive"]()
    assert demo["Pipeline"].restored(crashed.snapshot).finish() == (9, 93)
    fates = {(o, n): demo["fate"](crashed, o, n) for o in crashed.done for n in range(1, 13)}
    assert [n for (o, n), fate in fates.items() if fate == "lost"] == [4, 5, 6]
    assert [n for (o, n), fate in fates.items() if fate == "twice"] == [7, 8]


def test_what_the_picture_says_of_a_record_is_what_the_numbers_are(demo: dict[str, Any]) -> None:
    for crashed in (demo["naive"](), demo["with_barriers"]()):
        times = {"lost": 0, "once": 1, "twice": 2}
        seen = {o: [times[demo["fate"](crashed, o, n)] for n in range(1, 13)] for o in ("count", "total")}
        counted, added = demo["Pipeline"].restored(crashed.snapshot).finish()
        assert sum(seen["count"]) == counted
        assert sum(n * often for n, often in enumerate(seen["total"], 1)) == added


def test_a_barrier_at_any_place_gives_the_right_numbers(demo: dict[str, Any]) -> None:
    for place in range(13):
        pipeline = demo["Pipeline"]()
        for number in range(40):
            if number == place:
                pipeline.barrier()
            pipeline.step()
        assert demo["Pipeline"].restored(pipeline.snapshot).finish() == demo["RIGHT"]


def test_on_the_terminal() -> None:
    shown = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, check=True).stdout
    assert "9 numbers, total 93: WRONG, it is 12 and 78" in shown
    assert "12 numbers, total 78: right" in shown


def test_the_picture_on_the_page_is_current(demo: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "snapshot.svg").read_text() == demo["svg"]()
