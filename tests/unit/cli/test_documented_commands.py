"""Every ``tidegate`` command that the pages show is one: its name, its options, its number of arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from tidegate.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("", "bash", "sh", "console", "text")
_COMMAND = re.compile(r"^(?:\$ )?(?:\S+=\S+ )*(?:\S*/)?tidegate (.*)$")


def commands(page: Path) -> list[str]:
    """What stands behind ``tidegate`` in blocks of commands; a line that ends with a backslash continues."""
    blocks = [text for language, text in _BLOCK.findall(page.read_text()) if language in _SHELL]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [found[1] for line in lines if (found := _COMMAND.match(line))]


SHOWN = [(page.name, command) for page in PAGES for command in commands(page)]


def check(words: list[str]) -> None:
    """Parse as the command line would, and run nothing."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="tidegate")
    while hasattr(command, "get_command") and words:
        default = getattr(command, "default", None)
        if default is not None and words[0] not in command.commands:
            words = [default, *words]
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    command.make_context(command.name, list(words), parent=context.parent)


@pytest.mark.parametrize(("page", "shown"), SHOWN, ids=lambda value: str(value)[:60])
def test_what_is_shown_can_be_typed(page: str, shown: str) -> None:
    text = re.split(r"\s+(?:#|\||>|2>|&&|&$)", shown)[0]
    check(shlex.split(text))


def test_pages_show_commands() -> None:
    assert {page for page, _ in SHOWN} >= {"clusters.md", "compatibility.md", "kafka.md"}


@pytest.mark.parametrize("wrong", ["rum job.py", "run --no-such-option job.py", "dev kafka begin"])
def test_what_cannot_be_typed_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o (such )?(command|option)"):
        check(shlex.split(wrong))
