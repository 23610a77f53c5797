"""The driver is killed while records are in flight, and the program started again: the output is that of a run without."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.crash_run import KILLED, CrashRun
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history

SLOW = {"execution.checkpointing.unaligned.enabled": True, "tidegate.round.max-records": 1_200}


def test_killed_with_records_in_flight(crash: Callable[..., CrashRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with records in flight is complete, then one is stored and not acknowledged, then one is subsumed."""
    monkeypatch.setenv("CRASH_JOB_SLOW_MS", "2")
    plan = ["C6.completed@2=self", "T2.after-segment@40=driver", "C7.subsumed@6=self"]
    run = crash(*plan, keys=SLOW).run()
    run.check([KILLED, KILLED, KILLED, 0])
    entries = read_history(Files(str(run.directory / "checkpoints" / "crash")))
    assert sum(entry.in_flight_records > 0 for entry in entries) >= 3
