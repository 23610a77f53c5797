"""Copies the measured speeds of bench/results into the README's table: ``python scripts/copy_figures.py [--check]``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
ENGINES = ("tidegate", "pyflink-thread", "pyspark-tws", "flink-java")
ROWS = {
    "keyed-count": "keyed count, 20,000 keys",
    "keyed-count-1m": "keyed count, 1,000,000 keys",
    "window-count": "tumbling window count by text",
    "interval-join": "interval join",
}
_TABLE = re.compile(r"(?<=^\| program \|)(.*\n\|[-|]+\n)((?:\|.*\n)+)", re.MULTILINE)


def page() -> str:
    """The README with the figures as they are in the results now."""
    rows = "".join(_row(scenario, label) for scenario, label in ROWS.items())
    text, found = _TABLE.subn(lambda match: match[1] + rows, README.read_text())
    assert found == 1, "README.md has no table of speeds, or several"
    return text


def _row(scenario: str, label: str) -> str:
    steady = json.loads((ROOT / f"bench/results/{scenario}.json").read_text())["steady"]
    cells = (_figure(steady.get(engine)) for engine in ENGINES)
    return f"| {label} |" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"


def _figure(pace: float | None) -> str:
    if pace is None:
        return ""
    return f"{round(pace, -3 if pace >= 100_000 else -2):,.0f}"


def main() -> int:
    current = README.read_text() == page()
    if "--check" in sys.argv:
        print("README.md is current" if current else "run: python scripts/copy_figures.py")
        return 0 if current else 1
    README.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
