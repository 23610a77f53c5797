"""Each rewrite can be taken out of the list: programs give the same, and nothing else has to change."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operators.test_batch_programs import PROGRAMS, check
from tidegate.operators.loop import rewrites
from tidegate.operators.loop.rewrites.rewrite import Rewrite

OPERATORS = Path(rewrites.__file__).parents[1]


@pytest.mark.parametrize(
    "left", [[], *([rewrite] for rewrite in rewrites.REWRITES)], ids=lambda left: str([r.name for r in left])
)
@pytest.mark.parametrize("name", ["pairs", "filters", "two keys", "timers"])
def test_programs_give_the_same_without_a_rewrite(name: str, left: list[Rewrite], monkeypatch: Any) -> None:
    expected = check(PROGRAMS[name])
    monkeypatch.setattr(rewrites, "REWRITES", left)
    assert check(PROGRAMS[name]) == expected


OWN = {"columns.py": {"arithmetic.py"}, "inline.py": {"meaning.py", "callees.py"}}
"""The files of the two rewrites."""


def imported(path: Path) -> set[str]:
    found = set()
    for part in ast.walk(ast.parse(path.read_text())):
        if isinstance(part, ast.ImportFrom) and part.module is not None:
            found |= {part.module, *(f"{part.module}.{alias.name}" for alias in part.names)}
    return found


@pytest.mark.parametrize("file", OWN)
def test_nobody_knows_a_rewrite_but_the_list(file: str) -> None:
    mine = {file, *OWN[file]}
    names = {f"tidegate.operators.loop.rewrites.{name.removesuffix('.py')}" for name in mine}
    others = [
        path for path in OPERATORS.parent.rglob("*.py") if path.parent.name != "rewrites" or path.name not in mine
    ]
    knowing = {path.name for path in others if imported(path) & names}
    assert knowing == {"__init__.py"}
