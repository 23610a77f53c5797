"""``tidegate debug`` in a terminal: the debugger stands at the user's line."""

from __future__ import annotations

import sys
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.unit.snapshots.replay_jobs import BAD
from tests.unit.snapshots.test_replay import fail


@pytest.mark.parametrize("kind", ["record", "timer"])
def test_the_debugger_stands_at_the_line_of_the_user(tmp_path: Path, kind: str) -> None:
    job = fail(tmp_path, kind)
    command = f"{sys.executable} -m tidegate.cli.main debug {job}"
    terminal = pexpect.spawn(command, timeout=60, encoding="utf-8", use_poll=True, dimensions=(50, 200))
    try:
        terminal.expect_exact("(tidegate) ")
        method = "process_element" if kind == "record" else "on_timer"
        raised = "raise ValueError" if kind == "record" else "raise KeyError"
        assert "replay_jobs.py" in terminal.before and f"{method}()" in terminal.before
        assert f"-> {raised}" in terminal.before

        def says(text: str) -> list[str]:
            terminal.sendline(text)
            terminal.expect_exact("(tidegate) ")
            return [line.strip() for line in terminal.before.splitlines()][1:]

        assert str(BAD if kind == "record" else None) in says("p record")
        assert str(BAD % 7) in says("p key")
        assert any(line.startswith("{") and "'total'" in line for line in says("p state"))
        assert "'totals'" in says("p operator")
        if kind == "record":
            assert str(BAD) in says("p broken"), "the user's own variables"
            assert str(BAD) in says("p value + 0")
        terminal.sendline("q")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
    finally:
        terminal.close(force=True)
