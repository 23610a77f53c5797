"""Ctrl-C and SIGTERM end the driver in order: nothing is deleted, the lease is given up, and the same command continues.

The signals are sent as a terminal or a supervisor sends them: to the whole process group, JVM included, or to the driver alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.crash_run import CrashRun

Crash = Callable[..., CrashRun]

INTERRUPTED, TERMINATED = -signal.SIGINT, 128 + signal.SIGTERM
# Points at which the driver or a task waits until the signal has been sent: in a round, and in steps 7 and 8.
PAUSES = {"mid-round": "T1.before-state@14=pause:1500", "mid-checkpoint": "C6.published@3=pause:1500"}


def interrupt(run: CrashRun, number: int, *, group: bool) -> subprocess.Popen[bytes]:
    driver = run.start()
    run.watch(driver, until=lambda: bool(run.fired()) or driver.poll() is not None)
    if group:
        os.killpg(driver.pid, number)
    else:
        driver.send_signal(number)
    return driver


def kept(run: CrashRun) -> list[str]:
    job = run.directory / "checkpoints" / "crash"
    return [path.parent.name for path in job.glob("chk-*/_metadata")]


@pytest.mark.parametrize("moment", PAUSES)
@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_interrupted_and_started_again(crash: Crash, moment: str, number: int, group: bool) -> None:
    run = crash(PAUSES[moment])
    code = run.wait(interrupt(run, number, group=group))
    assert code == (INTERRUPTED if number == signal.SIGINT else TERMINATED), run.last_log()
    assert "was interrupted; nothing is lost and nothing was deleted" in run.last_log()
    assert "cure: start the same program again: it continues from there" in run.last_log()
    assert len(kept(run)) == 1
    live = max((run.directory / "checkpoints" / "crash" / "lease").glob("*.live.json")).read_text()
    assert '"status": "suspended"' in live
    assert '"released": true' in live
    assert run.wait(run.start()) == 0, run.last_log()
    run.check([code, 0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("point", ["C1.id-taken@4", "C3.acks-in@5", "C6.before-commit@4", "C7.recorded@2"])
def test_interrupted_at(crash: Crash, point: str, number: int) -> None:
    """SIGTERM goes to the whole group here, so that the JVM ends beside the driver: the job may fail first, and continues too."""
    run = crash(f"{point}=pause:1500")
    run.wait(interrupt(run, number, group=True))
    assert run.exit_codes[0] != 0
    assert run.wait(run.start()) == 0, run.last_log()
    run.check()


def test_interrupted_while_spark_starts(crash: Crash) -> None:
    run = crash("C9.claimed@1=pause:1000")
    code = run.wait(interrupt(run, signal.SIGINT, group=True))
    assert code == INTERRUPTED, run.last_log()
    assert "no checkpoint was complete yet, so no output was committed with a checkpoint" in run.last_log()
    assert run.wait(run.start()) == 0, run.last_log()
    run.check([code, 0])


def test_a_second_interrupt_ends_at_once(crash: Crash) -> None:
    """Storage does not answer: who asks twice does not wait for it."""
    run = crash("C6.published@3=pause:100000")
    driver = interrupt(run, signal.SIGINT, group=True)
    run.watch(driver, until=lambda: "a second interrupt ends it at once" in run.last_log())
    os.killpg(driver.pid, signal.SIGINT)
    assert run.wait(driver) == INTERRUPTED
    assert run.wait(run.start()) == 0, run.last_log()
    run.check()


def test_the_command_line_says_it_too(crash: Crash) -> None:
    run = crash(PAUSES["mid-round"])
    run.command = [str(Path(run.command[0]).parent / "tidegate"), "run"]
    code = run.wait(interrupt(run, signal.SIGINT, group=True))
    assert code == 128 + signal.SIGINT, run.last_log()
    assert "was interrupted; nothing is lost and nothing was deleted" in run.last_log()
    assert "KeyboardInterrupt" not in run.last_log()  # no traceback of the driver; dying workers may show theirs
    assert run.wait(run.start()) == 0, run.last_log()
    run.check([code, 0])
