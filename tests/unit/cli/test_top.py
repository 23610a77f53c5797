"""``tidegate top`` with a real driver: its jobs, one of them opened, hostile names without markup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from tests.unit.control.conftest import driver as driver
from tests.unit.control.conftest import home as home
from tests.unit.control.drivers import Driver
from tidegate.checkpoint.owner import this_process
from tidegate.cli.top import JobScreen, TopApp
from tidegate.control import registry
from tidegate.control.registry import JobRecord
from tidegate.control.registry_jobs import RegistryJobs


def cells(app: TopApp, table: str) -> list[list[str]]:
    found: DataTable[Any] = app.screen.query_one(table, DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


async def until(condition: Callable[[], bool], pilot: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await pilot.pause(0.05)


def test_top_lists_jobs_and_opens_one(driver: Callable[..., Driver], home: Path) -> None:
    driver("one", **{"execution.checkpointing.interval": "100 ms"}).running()
    hostile = "[red]\x1b[31m evil [/]"
    failed = JobRecord(
        run="00000000000001-a",
        job_id="b",
        name=hostile,
        program="p.py",
        owner=this_process(),
        started_ms=1,
        ended_ms=2,
        state="FAILED",
        error="ValueError: bad",
    )
    registry.write(failed)

    async def use() -> None:
        app = TopApp(RegistryJobs(), 0.2)
        async with app.run_test(size=(160, 50)) as pilot:
            await until(lambda: bool(app.screen.query("#jobs")) and len(cells(app, "#jobs")) == 2, pilot)
            rows = cells(app, "#jobs")
            assert [row[0] for row in rows] == ["b", "one"], "what failed comes first"
            assert "\x1b" not in rows[0][-1] and "[red]" in rows[0][-1]
            assert "1 need attention" in str(app.screen.query_one("#attention", Static).render())
            await pilot.press("down", "enter")
            await until(lambda: isinstance(app.screen, JobScreen) and bool(cells(app, "#checkpoints")), pilot)
            assert "'numbers'" in cells(app, "#operators")[0][1]
            assert "completed" in {row[1] for row in cells(app, "#checkpoints")}
            await pilot.press("escape")
            assert not isinstance(app.screen, JobScreen)
            await pilot.press("q")

    asyncio.run(use())


def test_top_without_its_library_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from typer.testing import CliRunner

    from tidegate.cli.main import app

    monkeypatch.setitem(sys.modules, "textual", None)
    done = CliRunner().invoke(app, ["top"])
    assert done.exit_code == 10 and "tidegate[top]" in done.stderr
