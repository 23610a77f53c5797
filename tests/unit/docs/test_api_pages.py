"""docs/api is generated from docstrings; every public thing has one."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "gen_api_docs.py"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_pages_are_current(generator: dict[str, Any]) -> None:
    written = {path.name: path.read_text() for path in generator["FOLDER"].glob("*.md")}
    assert written == generator["pages"](), "run: python scripts/gen_api_docs.py"


def test_every_public_thing_has_a_docstring(generator: dict[str, Any]) -> None:
    assert generator["undocumented"]() == [], "state the contract: when it is called, how often, what is not guaranteed"


class Base:
    """Of others."""

    def inherited(self) -> None:
        """Here."""


class Bare(Base):
    def inherited(self) -> None: ...

    def own(self) -> None: ...

    class Inner:
        pass

    def _hidden(self) -> None: ...


def test_a_missing_docstring_is_seen_where_it_is_and_an_inherited_one_counts(generator: dict[str, Any]) -> None:
    assert list(generator["_bare"]("Bare", Bare)) == ["Bare", "Bare.own", "Bare.Inner"]


def test_nothing_of_the_machine_is_on_a_page(generator: dict[str, Any]) -> None:
    text = "".join(generator["pages"]().values())
    assert " at 0x" not in text and str(Path.home()) + "/" not in text
