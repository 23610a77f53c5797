"""The README shows the speeds that the bench has measured."""

from __future__ import annotations

import json
import runpy

from tests.unit.docs.tutorials import ROOT


def test_speeds_of_the_readme_are_those_of_the_results() -> None:
    copied = runpy.run_path(str(ROOT / "scripts" / "copy_figures.py"))
    assert (ROOT / "README.md").read_text() == copied["page"](), "run: python scripts/copy_figures.py"
    measured = json.loads((ROOT / "bench/results/keyed-count.json").read_text())["steady"]["tidegate"]
    assert f"| {round(measured, -3):,.0f} |" in copied["page"]()
