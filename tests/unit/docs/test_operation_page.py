"""The page on operation has every exit code and every command, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode

PAGE = (Path(__file__).parents[3] / "docs" / "operation.md").read_text()


def test_every_exit_code_is_on_the_page() -> None:
    section = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for number in row.split(",")}
    assert codes == {*map(int, ExitCode), 143}


def test_every_command_is_on_the_page() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^\| `tidegate (\w+)", PAGE, re.MULTILINE)) == commands
