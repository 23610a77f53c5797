"""The machine dies with the driver, Spark and all local state on it: the job continues elsewhere from its retained checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.crash.crash_run import KILLED, CrashRun
from tests.waiting import eventually
from tidegate.base.files import Files
from tidegate.checkpoint.lease_records import LiveRecord, live_path, read_record

Crash = Callable[..., CrashRun]
TIMEOUT_MS = 2_000


def test_another_machine_continues_when_the_lease_has_run_out(crash: Crash) -> None:
    """Whether the first one is dead cannot be seen from there: its heartbeat has to be silent for long enough."""
    keys = {"tidegate.checkpoint.lease-timeout": f"{TIMEOUT_MS} ms"}
    run = crash("C6.published@3=self", keys=keys)
    assert run.wait(run.start()) == KILLED
    run.lose_machine()
    eventually(lambda: _silent_ms(run) > TIMEOUT_MS)
    assert run.wait(run.start()) == 0, run.last_log()
    run.check([KILLED, 0])


def _silent_ms(run: CrashRun) -> float:
    live = read_record(Files(str(run.directory / "checkpoints" / "crash")), live_path(1), LiveRecord)
    assert live is not None
    return time.time() * 1000 - live.heartbeat_ms
