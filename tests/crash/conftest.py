"""The fixture of the crash tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.crash_run import CrashRun


@pytest.fixture
def crash(tmp_path: Path) -> Iterator[Callable[..., CrashRun]]:
    """``crash(*plan)``: a run in the test's directory. Whatever a failed test leaves running ends with it."""
    runs: list[CrashRun] = []

    def make(*plan: str, **options: Any) -> CrashRun:
        runs.append(CrashRun(tmp_path, *plan, **options))
        return runs[-1]

    yield make
    for run in runs:
        for process in run.processes():
            process.kill()
        run.remove_tmp()
