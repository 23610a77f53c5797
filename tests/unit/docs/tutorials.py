"""The programs of examples/tutorials, and what their pages promise."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
PAGE_OF = {
    "fraud.py": "fraud.md",
    "sessions.py": "sessions.md",
    "late_sensors.py": "late-data.md",
    "enrichment.py": "enrichment.md",
    "deduplication.py": "deduplication.md",
    "on_a_cluster.py": "cluster.md",
}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"^\d+> ")


def promised(program: str) -> list[str]:
    """The lines of the first output on the page of a program, sorted, without the numbers of subtasks."""
    blocks = _BLOCK.findall((PAGES / PAGE_OF[program]).read_text())
    return results(next(text for language, text in blocks if not language))


def results(printed: str) -> list[str]:
    return sorted(_PLACE.sub("", line) for line in printed.splitlines())
