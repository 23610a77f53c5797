"""After a failure a reader sees what the computed guarantee promises, for every source with every sink.

``tests/kafka/test_guarantee_of_servers.py`` has those that need a server, and says how the page is made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.connectors.guarantee_matrix import SINKS, SOURCES, cell, check, observe, of_page

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("source", SOURCES)
def test_visible_output_is_the_computed_output(source: str, sink: str, tmp_path: Path) -> None:
    computed, seen = observe(SOURCES[source], SINKS[sink], tmp_path)
    check(computed, seen)
    made = "the page is made by: python tests/kafka/guarantee_of_servers.py"
    assert of_page(PAGE.read_text(), source, sink) == cell(computed, seen), made
