"""Two commands at once, typed on terminals, while the driver is held where it matters: each has its answer, the job its end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from tests.unit.control.drivers import Driver
from tests.waiting import eventually
from tidegate.cli.outcome import ExitCode

HELD = """
import os, runpy, sys, time
from tidegate.common import faults

point, hold, reached = os.environ["HELD_AT"], os.environ["HELD_BY"], os.environ["HELD_BY"] + ".reached"


def hook(name, where):
    if name == point and os.path.exists(hold):
        open(reached, "w").close()
        while os.path.exists(hold):
            time.sleep(0.01)


faults.install(hook)
sys.argv = sys.argv[1:]
runpy.run_path("job.py", run_name="__main__")
"""
Start = Callable[..., Driver]


class Hold:
    """The driver stops at the point while the file is there."""

    def __init__(self, file: Path) -> None:
        self._file, self._reached = file, Path(f"{file}.reached")

    def on(self) -> None:
        self._reached.unlink(missing_ok=True)
        self._file.touch()

    def reached(self) -> None:
        eventually(self._reached.exists, "the driver is where it is held")

    def off(self) -> None:
        self._file.unlink()


@pytest.fixture
def held(driver: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Driver, Hold]]:
    """``held(point)``: a driver whose job 'held' can be held there."""

    def start(point: str) -> tuple[Driver, Hold]:
        (tmp_path / "held.py").write_text(HELD)
        monkeypatch.setenv("HELD_AT", point)
        monkeypatch.setenv("HELD_BY", str(tmp_path / "hold"))
        where = {"execution.checkpointing.savepoint-dir": f"{tmp_path}/sp"}
        return driver("held", "held.py", **where).running(), Hold(tmp_path / "hold")

    return start


def typed(*words: str) -> pexpect.spawn[str]:
    """A command on a terminal of its own; the driver has it when its progress is shown."""
    command = pexpect.spawn(
        sys.executable,
        ["-m", "tidegate.cli", *words],
        encoding="utf-8",
        use_poll=True,
        timeout=90,
        dimensions=(24, 200),
    )
    command.expect(rf"{words[0]} of job 'counting' \(held\): \d+ s")
    return command


def ended(command: pexpect.spawn[str]) -> tuple[int | None, str]:
    """Its exit code, and the last line it has printed."""
    command.expect(pexpect.EOF)
    command.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (command.before or "").replace("\r", "\n"))
    return command.exitstatus, [line for line in text.splitlines() if line.strip()][-1]


def test_a_savepoint_and_a_stop_during_a_savepoint_and_nobody_waits_for_the_stop(
    held: Callable[[str], tuple[Driver, Hold]], tmp_path: Path
) -> None:
    running, hold = held("C11.copied")
    hold.on()
    first = typed("savepoint", "held")
    hold.reached()
    second = typed("savepoint", "held")
    hold.off()
    (code, one), (other_code, other) = ended(first), ended(second)
    assert (code, other_code) == (0, 0) and one != other
    assert {path.name for path in (tmp_path / "sp").iterdir()} == {Path(one).name, Path(other).name}

    hold.on()
    third = typed("savepoint", "held")
    hold.reached()
    stop = typed("stop", "held")
    stop.sendintr()
    code, told = ended(stop)
    assert code == ExitCode.INTERRUPTED
    assert re.search(r"stop of job 'counting' \(held\) continues in the background \(operation \S+\)$", told)
    assert running.process.poll() is None, "Ctrl-C ends the waiting, not what was begun"
    hold.off()
    code, three = ended(third)
    assert code == 0
    assert running.process.wait() == 0
    assert running.record().state == "FINISHED"
    [last] = {str(path) for path in (tmp_path / "sp").iterdir()} - {one, other, three}
    assert os.path.exists(f"{last}/_metadata")
    assert last in [operation.result for operation in running.record().operations]


def test_a_cancel_while_the_output_of_a_stop_is_committed(
    held: Callable[[str], tuple[Driver, Hold]], tmp_path: Path
) -> None:
    """What was decided finishes: the savepoint is there, and then the job is cancelled."""
    running, hold = held("C10.decided")
    hold.on()
    stop = typed("stop", "held")
    hold.reached()
    cancel = typed("cancel", "held")
    hold.off()
    code, path = ended(stop)
    assert code == 0 and [str(made) for made in (tmp_path / "sp").iterdir()] == [path]
    assert ended(cancel) == (0, "the job is CANCELED")
    assert running.process.wait() != 0
    assert running.record().state == "CANCELED"


@pytest.mark.parametrize("point", ["C2.cut", "T1.before-state"])
def test_stop_and_savepoint_beaten_by_a_cancel_say_that_the_job_was_cancelled(
    held: Callable[[str], tuple[Driver, Hold]], tmp_path: Path, point: str
) -> None:
    """Held before the job has taken the commands, and in the round before the one that would carry the savepoint."""
    running, hold = held(point)
    hold.on()
    hold.reached()
    savepoint, stop = typed("savepoint", "held"), typed("stop", "held")
    cancel = typed("cancel", "held")
    hold.off()
    for beaten in (savepoint, stop):
        code, _ = ended(beaten)
        assert code == ExitCode.ENDED
        assert "JobOverError: The job was cancelled\r\n" in (beaten.before or "")
    assert ended(cancel) == (0, "the job is CANCELED")
    assert running.process.wait() != 0
    assert list((tmp_path / "sp").glob("*")) == []
