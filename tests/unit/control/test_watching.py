"""``tidegate logs`` and ``tidegate wait``: jobs in other processes, on the simulated engine."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.control.drivers import PROGRAM, Driver
from tests.waiting import eventually
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.control import registry
from tidegate.control.registry import DriverLife, JobRecord

Start = Callable[..., Driver]
TIDEGATE = [sys.executable, "-m", "tidegate.cli"]
TALKING = f'print("before the job", flush=True)\n{PROGRAM}\nprint("after the job")\n'


@pytest.fixture(autouse=True)
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talking.py").write_text(TALKING)
    yield tmp_path
    for record in registry.records():
        if record.life() is DriverLife.LIVE and record.owner.pid != os.getpid():
            os.kill(record.owner.pid, signal.SIGKILL)


def tidegate(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def in_the_background(*options: str, **keys: str) -> str:
    given = [f"{key}={value}" for key, value in keys.items()]
    command = [*TIDEGATE, "run", "-d", *options, "-Dexecution.target=simulated", "talking.py", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def newest() -> JobRecord:
    return registry.records()[-1]


def test_the_log_of_a_job_while_it_runs_and_when_it_has_ended(place: Path) -> None:
    job = in_the_background()
    assert tidegate("logs", job) == (0, "before the job\n", "")
    following = subprocess.Popen([*TIDEGATE, "logs", "-f", job], stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None and following.stdout.readline() == "before the job\n"
    log = json.loads(tidegate("info", job, "--json")[1])["log"]
    assert f"  log         {log}\n" in tidegate("info", job)[1]
    assert tidegate("stop", job, "-p", f"{place}/savepoints")[0] == 0
    assert following.communicate(timeout=120)[0] == "after the job\n"  # it ends with the driver
    assert following.returncode == 0
    assert tidegate("logs", job) == tidegate("logs", "-f", job) == (0, "before the job\nafter the job\n", "")
    assert tidegate("logs", "-n", "1", job) == (0, "after the job\n", "")


def test_following_ends_with_a_signal_at_once_and_the_job_continues(place: Path) -> None:
    job = in_the_background()
    for number, code in ((signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, None)):
        following = subprocess.Popen([*TIDEGATE, "logs", "-f", job], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert following.stdout is not None and following.stdout.readline() == b"before the job\n"
        following.send_signal(number)
        assert following.wait(60) in ((code,) if code is not None else (-number, 128 + number))
    assert newest().life() is DriverLife.LIVE


def test_a_job_in_the_foreground_has_no_log_file(driver: Start) -> None:
    driver("attached").running()
    code, _, text = tidegate("logs", "attached")
    assert code == ExitCode.FAILED
    assert text.startswith(
        "NoLogError: The driver of the job has no log file: only a driver in the background has one\n  where: job attached"
    )
    assert "it was started in the foreground" in text and "cure: start it with tidegate run -d" in text


@pytest.mark.parametrize("command", ["logs", "wait"])
def test_an_unknown_job(home: Path, command: str) -> None:
    code, _, text = tidegate(command, "nobody")
    assert code == ExitCode.UNKNOWN_JOB and "A job is named by its id" in text


def test_waiting_ends_with_the_job_and_says_how_it_ended(driver: Start, place: Path) -> None:
    driver("counted", count="500").running()
    assert tidegate("wait", "counted") == (0, "job 'counting' (counted) is FINISHED\n", "")
    assert json.loads(tidegate("wait", "counted", "--json")[1])["state"] == "FINISHED"

    cancelled = driver("cancelled").running()
    code, text, _ = tidegate("wait", "cancelled", "--timeout", "0.1")
    assert (code, text) == (ExitCode.TIMED_OUT, "job 'counting' (cancelled) is RUNNING\n")
    assert tidegate("cancel", "cancelled")[0] == 0
    assert tidegate("wait", "cancelled")[0] == ExitCode.CANCELLED
    cancelled.process.wait()

    suspended = driver("suspended").running()
    suspended.process.terminate()
    assert tidegate("wait", "suspended") == (ExitCode.SUSPENDED, "job 'counting' (suspended) is SUSPENDED\n", "")

    died = driver("died").running()
    died.process.kill()
    died.process.wait()
    assert tidegate("wait", "died") == (ExitCode.DIED, "job 'counting' (died) is DIED\n", "")


def test_waiting_for_a_job_that_fails_gives_its_error(home: Path, place: Path) -> None:
    (place / "talking.py").write_text(TALKING.replace("lambda value: None", "lambda value: 1 // 0"))
    command = [sys.executable, "talking.py", "tidegate.job-id=failing", "restart-strategy.type=none"]
    command.append(f"execution.checkpointing.dir={place}/ck")
    subprocess.run(command, capture_output=True, check=False)
    code, text, error = tidegate("wait", "failing")
    assert (code, text) == (ExitCode.FAILED, "job 'counting' (failing) is FAILED\n")
    assert error.startswith("UserCodeError: ") and "ZeroDivisionError" in error


def test_a_supervised_driver_that_died_is_not_the_end(place: Path) -> None:
    directory = {"execution.checkpointing.dir": f"{place}/ck"}
    job = in_the_background("--supervise", **directory)
    waiting = subprocess.Popen([*TIDEGATE, "wait", job], stdout=subprocess.PIPE, text=True)
    first = newest()
    os.kill(first.owner.pid, signal.SIGKILL)
    eventually(lambda: newest().run != first.run and newest().state == "RUNNING", "the job runs again")
    assert waiting.poll() is None
    eventually(lambda: tidegate("cancel", job)[0] == 0, "it takes commands")
    assert waiting.communicate(timeout=120)[0] == f"job 'counting' ({job}) is CANCELED\n"
    assert waiting.returncode == ExitCode.CANCELLED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_ends_with_a_signal_at_once_and_the_job_continues(driver: Start, number: signal.Signals) -> None:
    driver("endless").running()
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"} | {"CI": ""}
    waiting = subprocess.Popen([*TIDEGATE, "wait", "endless"], stderr=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while b"waiting for" not in shown:
        shown += os.read(ours, 1000)
    waiting.send_signal(number)
    expected = (ExitCode.INTERRUPTED,) if number is signal.SIGINT else (-number, 128 + number)
    assert waiting.wait(60) in expected
    os.close(ours)
    assert newest().life() is DriverLife.LIVE
