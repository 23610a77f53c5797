"""The sinks of docs/own-sinks.md pass the suites of that page, as a user's pytest runs them, and are short."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "own-sinks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

_namespace: dict[str, Any] = {"__name__": "__main__"}  # classes of a program are pickled by value
for _block in BLOCKS:
    exec(compile(_block, str(PAGE), "exec"), _namespace)


class _QuickDatabase:
    """``sqlite3`` without waiting for the disk: here no machine crashes."""

    @staticmethod
    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*arguments, **named)
        connection.execute("PRAGMA synchronous = OFF")
        return connection


_namespace["sqlite3"] = _QuickDatabase
for _name in [name for name in _namespace if name.startswith("Test")]:
    globals()[_name] = _namespace[_name]
    _namespace[_name].seeds = 3


def test_every_base_has_an_example_with_its_suite() -> None:
    found = {name for name in _namespace if name.startswith("Test")}
    suites = {
        "TestLedger",
        "TestNumbers",
        "TestListedNumbers",
        "TestJournal",
        "TestConfirmations",
        "TestLatest",
        "TestLines",
    }
    assert found == suites


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_has_less_than_forty_lines(number: int) -> None:
    assert len([line for line in BLOCKS[number].splitlines() if line.strip()]) < 40
