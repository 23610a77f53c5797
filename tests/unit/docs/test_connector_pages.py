"""Every connector has a page with its guarantee, its settings, what it needs outside, and what happens in each failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
CONNECTORS = ["delta", "files", "iceberg", "kafka", "mariadb", "postgresql", "redis", "socket", "spark"]


@pytest.mark.parametrize("name", CONNECTORS)
def test_a_connectors_page_has_all_four_parts(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    for part in ("Guarantee", "Settings", "What it needs", "What happens when"):
        assert any(heading.startswith(part) for heading in headings), f"docs/{name}.md: no '## {part} ...'"
    failures = page[page.index("## What happens when") :]
    assert failures.count("\n| ") > 4, f"docs/{name}.md: a row for each failure"


def test_every_connectors_page_is_found_from_the_list_of_sources_and_sinks() -> None:
    index = (DOCS / "sources-and-sinks.md").read_text()
    assert [name for name in CONNECTORS if f"({name}.md" not in index] == []
