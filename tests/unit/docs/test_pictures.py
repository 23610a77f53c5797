"""The pictures of the docs are those that the script draws, and each one can be read on light and dark pages."""

from __future__ import annotations

import json
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "draw_pictures.py"))


def test_pictures_are_current(script: dict[str, Any]) -> None:
    for name, draw in script["PICTURES"].items():
        drawn = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        assert drawn == draw(), "run: python scripts/draw_pictures.py"


def test_pictures_load_nothing_and_have_a_panel_for_light_and_dark_pages(script: dict[str, Any]) -> None:
    for draw in script["PICTURES"].values():
        text = draw()
        ET.fromstring(text)  # noqa: S314 - our own file
        assert "prefers-color-scheme: dark" in text and 'class="panel"' in text
        assert re.findall(r"(?:href|src)=|@import|url\((?!#)|<script", text) == []


def test_text_stays_inside_its_picture(script: dict[str, Any]) -> None:
    for name, draw in script["PICTURES"].items():
        root = ET.fromstring(draw())  # noqa: S314 - our own file
        width = float(root.get("width", "0"))
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            style = text.get("class", "")
            long = len("".join(text.itertext())) * (5.9 if "small" in style else 7.1 if "bold" in style else 6.7)
            left = float(text.get("x", "0")) - (long / 2 if "middle" in style else long if "end" in style else 0)
            assert left > 0 and left + long < width, f"{name}: {text.text}"


def test_the_recorded_run_lost_and_doubled_nothing_and_was_killed(script: dict[str, Any]) -> None:
    text = script["kill_and_recovery"]()
    assert text.count(">kill -9<") == 2 and "lost 0, doubled 0" in text


def test_the_figures_of_the_readme_are_those_of_the_results(script: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text()
    order = ["tidegate", "pyflink-thread", "pyspark-tws", "flink-java"]
    for scenario, title in script["SPEED"].items():
        steady = json.loads((ROOT / "bench" / "results" / f"{scenario}.json").read_text())["steady"]
        cells = [_rounded(steady[engine]) if engine in steady else "" for engine in order]
        assert f"| {' | '.join([title, *cells])} |".replace("|  |", "| |").replace("|  |", "| |") in readme


def _rounded(figure: int) -> str:
    return f"{round(figure, -3 if figure > 100_000 else -2):,}"
