"""What an operator does to running jobs, from another process: drivers on the simulated engine, the real command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivers import Driver

from tidegate.cli.outcome import ExitCode
from waiting import eventually

Start = Callable[..., Driver]


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate.cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def parsed(*arguments: str) -> Any:
    done = tidegate(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_life_of_a_job_as_its_operator_sees_it(driver: Start) -> None:
    one = driver("count-one").running()
    listed = tidegate("list")
    assert listed.stdout.splitlines()[0].split() == ["JOB", "STATE", "STARTED", "FOR", "NAME"]
    assert listed.stdout.splitlines()[1].startswith("count-one  RUNNING  ")
    assert [job["state"] for job in parsed("list")] == ["RUNNING"]

    shown = tidegate("info", "count-o")
    assert "job 'counting' (count-one): RUNNING" in shown.stdout
    assert "totals" in shown.stdout
    details = parsed("info", "count-o")["details"]
    assert [operator["uid"] for operator in details["operators"]] == ["numbers", "totals", "out"]

    assert tidegate("checkpoint", "count-one").stdout == "checkpoint 1 is complete\n"
    assert parsed("checkpoint", "count-one")["result"] == "2"
    history = parsed("checkpoints", "count-one")["checkpoints"]
    assert [(c["checkpoint_id"], c["status"]) for c in history] == [(1, "completed"), (2, "completed")]
    assert history[1]["kept"].endswith("count-one/chk-2")

    cancelled = tidegate("cancel", "count-one")
    assert (cancelled.returncode, cancelled.stdout) == (0, "the job is CANCELED\n"), cancelled.stderr
    one.process.wait()
    assert tidegate("list").stdout == "no running jobs; tidegate list -a shows those that have ended\n"
    assert [job["state"] for job in parsed("list", "-a")] == ["CANCELED"]
    again = tidegate("cancel", "count-one")
    assert again.returncode == ExitCode.ENDED
    assert again.stderr == (
        "JobOverError: A job takes commands until it has ended\n  where: job count-one ('counting')\n  found: it is CANCELED\n"
    )


def test_a_driver_that_died_is_shown_as_such_and_its_checkpoints_are_there(driver: Start) -> None:
    one = driver("dies").running()
    assert tidegate("checkpoint", "dies").returncode == 0
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    assert [(job["state"], job["life"]) for job in parsed("list", "-a")] == [("DIED", "died")]
    assert tidegate("list", "-a").stdout.splitlines()[1].split()[:2] == ["dies", "DIED"]
    assert tidegate("info", "dies").stdout.startswith("job 'counting' (dies): DIED\n")
    for refused in (tidegate("cancel", "dies"), tidegate("checkpoint", "dies")):
        assert refused.returncode == ExitCode.DIED
        assert "is gone, and has not said why (state RUNNING)" in refused.stderr
    for place in ("dies", f"{one.directory}/checkpoints/dies", f"{one.directory}/checkpoints/dies/chk-1"):
        assert [c["checkpoint_id"] for c in parsed("checkpoints", place)["checkpoints"]] == [1]


def test_unknown_jobs_and_places(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in (["info"], ["cancel"], ["checkpoint"], ["checkpoints"]):
        done = tidegate(*command, "nobody")
        assert done.returncode == ExitCode.UNKNOWN_JOB, done.stderr
        assert done.stderr.startswith("UnknownJobError: A job is named by its id, or the beginning of it\n")
    nothing = tidegate("checkpoints", f"{tmp_path}/empty")
    assert nothing.returncode == ExitCode.BAD_SNAPSHOT
    assert "found: no such directory, or it is empty" in nothing.stderr
    as_json = tidegate("cancel", "nobody", "--json")
    assert json.loads(as_json.stderr)["exit_code"] == ExitCode.UNKNOWN_JOB
    assert "Traceback" in tidegate("cancel", "nobody", "-v").stderr
    assert not home.exists()  # looking makes nothing


def test_two_live_jobs_with_one_directory(driver: Start) -> None:
    driver("taken").running()
    second = driver("taken", "-m", "tidegate.cli", "run")
    assert second.process.wait() == ExitCode.DIRECTORY_IN_USE
    text = (second.directory / "taken.log").read_text()
    assert "LeaseError: A job's directory is used by one driver at a time.\n" in text
    assert "cure: stop that driver (kill " in text
    assert [job["state"] for job in parsed("list", "-a")] == ["RUNNING"]


def test_a_paused_driver_is_not_waited_for_for_ever(driver: Start) -> None:
    one = driver("paused").running()
    one.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: parsed("list")[0]["life"] == "unknown", "the driver is stopped")
        assert "RUNNING ?" in tidegate("list").stdout
    finally:
        one.process.send_signal(signal.SIGCONT)
