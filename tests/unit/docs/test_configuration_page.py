"""docs/configuration.md is generated; this fails when an option changed and the page did not."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "gen_config_docs.py"


def test_the_page_is_current() -> None:
    generator = runpy.run_path(str(SCRIPT))
    assert generator["PAGE"].read_text() == generator["page"](), "run: python scripts/gen_config_docs.py"


def test_every_option_is_on_the_page_once() -> None:
    generator = runpy.run_path(str(SCRIPT))
    page = generator["page"]()
    assert all(page.count(f"| `{key}`") == 1 for key in generator["REGISTRY"])
