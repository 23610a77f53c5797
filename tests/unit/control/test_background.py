"""``run -d``, ``--supervise`` and ``-c``: real processes, on the simulated engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.control.drivers import PROGRAM
from tests.waiting import eventually
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.checkpoint.owner import this_process
from tidegate.cli.background import Supervisor
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.control import registry
from tidegate.control.registry import DriverLife, JobRecord

TIDEGATE = [sys.executable, "-m", "tidegate.cli"]
SIMULATED = "-Dexecution.target=simulated"
"""Else Spark would be started ahead of the program."""


@pytest.fixture(autouse=True)
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the program. What a test has started is ended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(PROGRAM)
    yield tmp_path
    for record in registry.records():
        if record.life() is DriverLife.LIVE and record.owner.pid != os.getpid():
            os.kill(record.owner.pid, signal.SIGKILL)


def run(*options: str, keys: dict[str, str] | None = None, file: str = "job.py") -> subprocess.CompletedProcess[str]:
    arguments = [f"{key}={value}" for key, value in (keys or {}).items()]
    command = [*TIDEGATE, "run", SIMULATED, *options, file, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def kept(tmp_path: Path) -> dict[str, str]:
    return {"execution.checkpointing.dir": f"{tmp_path}/ck"}


def test_in_the_background_it_prints_the_id_when_the_job_runs(place: Path) -> None:
    done = run("-d", keys=kept(place))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    [record] = registry.records()
    assert (record.job_id, record.state, record.life()) == (job_id, "RUNNING", DriverLife.LIVE)
    assert f"is RUNNING in process {record.owner.pid}, its output goes to " in done.stderr
    assert os.getsid(record.owner.pid) == record.owner.pid  # the end of the shell is not its end
    cancelled = CliRunner().invoke(app, ["cancel", job_id[:8]])
    assert cancelled.stdout == "the job is CANCELED\n", cancelled.stderr


def test_in_the_background_a_job_that_ends_at_once_is_told_too(place: Path) -> None:
    done = run("-d", "--json", keys={"count": "5"})
    assert json.loads(done.stdout)["state"] in ("RUNNING", "FINISHED"), done.stderr


def test_in_the_background_the_one_readable_error_and_the_exit_code_come_back(place: Path) -> None:
    done = run("-d", "-s", f"{place}/nowhere")
    assert done.returncode == ExitCode.BAD_SNAPSHOT
    assert done.stderr.startswith("RestoreError: The path to restore from must be a checkpoint or a savepoint.\n")
    assert "Traceback" not in done.stderr
    (place / "bad.py").write_text("import nothing_of_this_name\n")
    failed = run("-d", file="bad.py")
    assert failed.returncode == ExitCode.FAILED
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in failed.stderr
    assert registry.records() == []


def test_outcomes_as_data(place: Path) -> None:
    done = run("--json", keys={"count": "5", "tidegate.job-id": "five", **kept(place)})
    assert done.returncode == 0, done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    assert (job["job_id"], job["name"], job["state"], job["records"]) == ("five", "counting", "FINISHED", 5)
    for how in ("--json", "--json -d"):
        failed = run(*how.split(), keys={"execution.checkpointing.interval": "soon"})
        told = json.loads(failed.stderr.splitlines()[-1])
        assert (told["error"], told["exit_code"]) == ("ConfigurationError", failed.returncode)
        assert "found: 'soon'" in told["message"]


def test_a_home_that_cannot_be_written(place: Path, home: Path) -> None:
    home.write_text("a file")
    done = run("-d")
    assert done.returncode == ExitCode.BAD_PROGRAM
    assert "TIDEGATE_HOME is not writable" in done.stderr
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == ExitCode.BAD_PROGRAM
    assert listed.stderr.startswith("ConfigurationError: TIDEGATE_HOME is not a directory\n")
    home.unlink()


def test_verbose_adds_the_traceback(place: Path) -> None:
    (place / "bad.py").write_text(
        "from tidegate.base.errors import ProgramError\nraise ProgramError('no', found='x')\n"
    )
    assert run(file="bad.py").stderr == "ProgramError: no\n  found: x\n"
    shown = run("-v", file="bad.py")
    assert shown.returncode == ExitCode.BAD_PROGRAM
    assert shown.stderr.startswith("Traceback (most recent call last):\n") and "cli/script.py" in shown.stderr


# -- supervised ------------------------------------------------------------------------------------------------------------


def latest(previous: JobRecord | None = None) -> JobRecord | None:
    """The newest run that takes commands, if it is another than the previous."""
    found = [record for record in registry.records() if record.endpoint and record.state == "RUNNING"]
    return found[-1] if found and (previous is None or found[-1].run != previous.run) else None


def test_a_driver_that_died_continues_from_its_latest_checkpoint(place: Path) -> None:
    command = [*TIDEGATE, "run", SIMULATED, "--supervise", "job.py", f"execution.checkpointing.dir={place}/ck"]
    supervisor = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    first = eventually(latest, "the job runs")
    assert CliRunner().invoke(app, ["checkpoint", first.job_id]).exit_code == 0
    os.kill(first.owner.pid, signal.SIGKILL)
    second = eventually(lambda: latest(first), "the job runs again")
    assert second.job_id == first.job_id and second.launch == first.launch
    shown = CliRunner().invoke(app, ["info", "--json", first.job_id]).stdout
    assert json.loads(shown)["details"]["attempts"][0]["checkpoint"].endswith("/chk-1")
    assert CliRunner().invoke(app, ["cancel", first.job_id]).exit_code == 0
    told = supervisor.communicate(timeout=120)[1]
    assert supervisor.returncode == ExitCode.CANCELLED  # and not a third time
    assert f"the driver (process {first.owner.pid}) died of SIGKILL; it is started again in 1 s (1 of 10)" in told
    assert read_history(Files(f"{place}/ck/{first.job_id}"))[0].checkpoint_id == 1
    assert [record.life() for record in registry.records()] == [DriverLife.DIED, DriverLife.ENDED]


def test_it_ends_in_order_when_it_is_told_to(place: Path) -> None:
    command = [*TIDEGATE, "run", SIMULATED, "--supervise", "job.py", f"execution.checkpointing.dir={place}/ck"]
    supervisor = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    eventually(latest, "the job runs")
    supervisor.terminate()
    assert supervisor.wait(timeout=120) == 128 + signal.SIGTERM
    assert [record.state for record in registry.records()] == ["SUSPENDED"]


SCRIPTS = {
    "ends": ("import sys; sys.exit(7)", 7, 1, ""),
    "dies, and its configuration is wrong then": (
        """
import os, signal
if os.path.getsize('starts') == 1:
    os.kill(os.getpid(), signal.SIGKILL)
from tidegate.base.errors import ConfigurationError
raise ConfigurationError('a key is missing')
""",
        10,
        2,
        "a key is missing",
    ),
    "is told to end": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, 1, "it was told to stop"),
    "dies again and again": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        137,
        4,
        "3 restarts in a row did not help",
    ),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_when_it_is_started_again(place: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    text, code, starts, reason = SCRIPTS[case]
    (place / "bad.py").write_text(f"with open('starts', 'a') as starts:\n    starts.write('x')\n{text}\n")
    pauses: list[float] = []
    assert Supervisor([SIMULATED, "bad.py"], 3, pauses.append).run() == code
    assert len((place / "starts").read_text()) == starts
    assert pauses == [1.0, 2.0, 4.0][: starts - 1]
    assert reason in capfd.readouterr().err


def test_a_job_without_checkpoints_is_not_begun_anew(place: Path) -> None:
    (place / "dies.py").write_text(
        PROGRAM.replace('"execution.checkpointing.interval": "1 h"', "").replace('": 10, ', '": 10')
    )
    supervisor = subprocess.Popen(
        [*TIDEGATE, "run", SIMULATED, "--supervise", "dies.py"], stderr=subprocess.PIPE, text=True
    )
    first = eventually(latest, "the job runs")
    os.kill(first.owner.pid, signal.SIGKILL)
    told = supervisor.communicate(timeout=120)[1]
    assert supervisor.returncode == 137
    assert "it is not started again: its job has no checkpoints to continue from" in told


# -- a function of the file ------------------------------------------------------------------------------------------------


def test_an_entry_function(place: Path) -> None:
    body = "".join(f"    {line}\n" for line in PROGRAM.splitlines() if line)
    (place / "two.py").write_text(
        f"def other():\n    print('not this')\n\ndef main():\n{body}\nif __name__ == '__main__':\n    other()\n"
    )
    done = run("-c", "main", keys={"count": "5"}, file="two.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert registry.records()[-1].program == str(place / "two.py")
    wrong = run("-c", "mian", file="two.py")
    assert wrong.returncode == ExitCode.BAD_PROGRAM
    assert "found: no function 'mian'; there are: main, other" in wrong.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    assert "_TIDEGATE_COMPLETE" in CliRunner().invoke(app, ["completion", shell]).stdout


def test_completion_knows_commands_and_jobs(place: Path, home: Path) -> None:
    def complete(line: str) -> list[str]:
        words = {"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([*TIDEGATE], capture_output=True, text=True, env={**os.environ, **words}, check=False)
        return done.stdout.split()

    registry.write(
        JobRecord(
            run="1-a", job_id="abc-def", name="n", program="", owner=this_process(), started_ms=1, state="RUNNING"
        )
    )
    assert sorted(complete("tidegate che")) == ["checkpoint", "checkpoints"]
    assert complete("tidegate info ab") == ["abc-def"]
    assert complete("tidegate cancel x") == []
