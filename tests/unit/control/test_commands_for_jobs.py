"""What an operator does to running jobs, from another process: drivers on the simulated engine, the real command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tests.unit.control.drivers import Driver
from tests.waiting import eventually
from tidegate.checkpoint.history import HistoryEntry
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.control.client import DriverClient
from tidegate.control.endpoint import description
from tidegate.control.jobs import JobSummary

Start = Callable[..., Driver]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def tidegate(*arguments: str) -> Done:
    """In this process: a new one takes longer to start than to answer."""
    done = CliRunner().invoke(app, list(arguments))
    return Done(done.exit_code, done.stdout, done.stderr)


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
    assert tidegate("list").stdout == "no running jobs; tidegate list -a also shows ended jobs\n"
    assert [job["state"] for job in parsed("list", "-a")] == ["CANCELED"]
    again = tidegate("cancel", "count-one")
    assert again.returncode == ExitCode.ENDED
    assert again.stderr == (
        "JobOverError: The job has ended, so it takes no commands\n  where: job count-one ('counting')\n  found: it is CANCELED\n"
    )


def test_the_command_line_and_the_endpoint_call_the_same_thing_the_same(driver: Start) -> None:
    one = driver("words").running()
    assert tidegate("checkpoint", "words").returncode == 0
    client = DriverClient(one.record())
    listed = parsed("checkpoints", "words")
    answered = json.loads(client._exchange("GET", "/checkpoints", b"")[1])
    assert answered.keys() == listed.keys() | {"latest"}
    assert answered["directory"] == listed["directory"]
    assert [entry.keys() for entry in answered["checkpoints"]] == [entry.keys() for entry in listed["checkpoints"]]
    assert answered["checkpoints"][0]["kept"] == listed["checkpoints"][0]["kept"]
    (latest,) = answered["latest"]
    own = {"attempt", "passed_ms", "entry", "copied", "subtasks", "address"}  # what only a driver knows
    assert latest.keys() - own <= set(HistoryEntry.__struct_fields__)
    assert latest["status"] == listed["checkpoints"][0]["status"] == "completed"

    (job,) = parsed("list")
    assert set(JobSummary.__struct_fields__) <= job.keys()
    details = parsed("info", "words")["details"]
    assert {name: job[name] for name in details.keys() & job.keys() if name != "state"} == {
        name: details[name] for name in details.keys() & job.keys() if name != "state"
    }
    assert {
        "started_ms",
        "ended_ms",
        "directory",
        "is_temporary",
        "checkpoint_interval_ms",
    } <= details.keys() & job.keys()
    schemas = description()["components"]["schemas"]
    assert schemas["Checkpoints"]["properties"].keys() == answered.keys()
    assert listed["checkpoints"][0].keys() <= schemas["ListedCheckpoint"]["properties"].keys()
    assert latest.keys() == schemas["CheckpointView"]["properties"].keys()


def test_savepoints_and_continuing_from_them(driver: Start, tmp_path: Path) -> None:
    one = driver("saved").running()
    none = tidegate("savepoint", "saved")
    assert none.returncode == ExitCode.NO_TARGET, none.stderr
    assert "NoTargetError: The savepoint has no target directory\n" in none.stderr
    inside = tidegate("savepoint", "saved", f"{one.directory}/checkpoints/saved/sp")
    assert inside.returncode == ExitCode.REFUSED
    assert "inside the job's own directory" in inside.stderr
    climbs = tidegate("savepoint", "saved", "s3://bucket/../x")
    assert climbs.returncode == ExitCode.REFUSED and "found: it has .. in it" in climbs.stderr

    first = tidegate("savepoint", "saved", f"{tmp_path}/sp").stdout.strip()
    assert (Path(first) / "_metadata").is_file()
    second = parsed("stop", "--drain", "-p", f"{tmp_path}/sp", "saved")["result"]
    assert one.process.wait() == 0
    assert [job["state"] for job in parsed("list", "-a")] == ["FINISHED"]
    made = [line for line in tidegate("info", "saved").stdout.splitlines() if line.startswith("  savepoint ")]
    assert made == [f"  savepoint   {first}", f"  savepoint   {second}"]
    stopped = tidegate("stop", "saved", "-p", f"{tmp_path}/sp")
    assert stopped.returncode == ExitCode.ENDED and "found: it is FINISHED" in stopped.stderr

    again = driver("again", "-m", "tidegate.cli", "run", "-Dexecution.target=simulated", "-s", second).running()
    in_use = tidegate("savepoint", "--dispose", second)
    assert in_use.returncode == ExitCode.SNAPSHOT_IN_USE
    assert "SnapshotInUseError: A job still needs this savepoint.\n" in in_use.stderr
    assert (Path(second) / "_metadata").is_file()
    assert tidegate("checkpoint", "again").returncode == 0
    assert tidegate("savepoint", "--dispose", second).stdout == f"disposed of {second}\n"
    assert not Path(second).exists()
    gone = tidegate("savepoint", "--dispose", second)
    assert gone.returncode == ExitCode.BAD_SNAPSHOT and "no such file or directory" in gone.stderr
    [kept] = Path(f"{again.directory}/checkpoints/again").glob("chk-*")
    ours = tidegate("savepoint", "--dispose", str(kept))
    assert ours.returncode == ExitCode.DIRECTORY_IN_USE and "is used by one driver at a time" in ours.stderr

    third = tidegate("cancel", "-s", f"{tmp_path}/sp", "again").stdout.strip()
    assert again.process.wait() == ExitCode.CANCELLED
    assert sorted(str(path) for path in (tmp_path / "sp").iterdir()) == sorted([first, third])


def test_retained_checkpoints_of_a_cancelled_job_are_disposed_of(driver: Start) -> None:
    retain = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    one = driver("left", **retain, **{"execution.checkpointing.num-retained": "2"}).running()
    assert tidegate("checkpoint", "left").returncode == tidegate("checkpoint", "left").returncode == 0
    live = tidegate("savepoint", "--dispose", f"{one.directory}/checkpoints/left/chk-1")
    assert live.returncode == ExitCode.DIRECTORY_IN_USE
    assert tidegate("cancel", "left").returncode == 0
    one.process.wait()
    directory = Path(f"{one.directory}/checkpoints/left")
    kept = [checkpoint["kept"] for checkpoint in parsed("checkpoints", "left")["checkpoints"] if checkpoint["kept"]]
    assert len(kept) == 2 and list(directory.glob("shared/*"))
    latest = tidegate("savepoint", "--dispose", kept[1])
    assert latest.returncode == ExitCode.SNAPSHOT_IN_USE and "dispose of the older checkpoints first" in latest.stderr
    assert tidegate("savepoint", "--dispose", kept[0]).stdout == f"disposed of {kept[0]}\n"
    assert tidegate("state", kept[1]).returncode == 0  # its files are there
    assert parsed("savepoint", "--dispose", kept[1]) == {"disposed": kept[1]}
    assert list(directory.glob("shared/*")) == list(directory.glob("chk-*")) == []
    assert [checkpoint["kept"] for checkpoint in parsed("checkpoints", "left")["checkpoints"]] == [None, None]


def test_a_source_that_cannot_stop_and_two_commands_at_once(driver: Start, tmp_path: Path) -> None:
    where = {"execution.checkpointing.savepoint-dir": f"{tmp_path}/sp"}
    driver("fixed", stoppable="no", **where).running()
    refused = tidegate("stop", "fixed")
    assert refused.returncode == ExitCode.REFUSED
    assert "RefusedError: The job cannot stop: some of its sources cannot stop.\n" in refused.stderr
    assert "cure: cancel the job; add a savepoint to keep its state" in refused.stderr
    line = [sys.executable, "-m", "tidegate.cli", "savepoint", "fixed"]
    several = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {each.communicate()[0].strip() for each in several}
    assert len(paths) == 3 and all((Path(path) / "_metadata").is_file() for path in paths)
    last = parsed("cancel", "fixed", "-s")
    assert (Path(last["result"]) / "_metadata").is_file()


@pytest.mark.parametrize(
    ("place", "found"), [("empty", "it is empty"), ("parent", "chk-1"), ("jobs", "a directory of jobs")]
)
def test_bad_places_to_start_from_change_nothing(driver: Start, tmp_path: Path, place: str, found: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "parent" / "chk-1").mkdir(parents=True)
    (tmp_path / "jobs" / "some" / "lease").mkdir(parents=True)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    done = driver("fresh", "-m", "tidegate.cli", "run", "-Dexecution.target=simulated", "-s", f"{tmp_path}/{place}")
    assert done.process.wait() == ExitCode.BAD_SNAPSHOT
    text = (tmp_path / "fresh.log").read_text()
    assert "RestoreError: The path to restore from must be a checkpoint or a savepoint.\n" in text and found in text
    assert parsed("list", "-a") == []
    assert set(before) <= {str(path) for path in tmp_path.rglob("*")}


def test_a_driver_that_died_is_shown_as_such_and_its_checkpoints_are_there(driver: Start) -> None:
    one = driver("dies").running()
    assert tidegate("checkpoint", "dies").returncode == 0
    one.process.send_signal(signal.SIGKILL)
    one.process.wait()
    assert [(job["state"], job["life"]) for job in parsed("list", "-a")] == [("DIED", "died")]
    assert tidegate("list", "-a").stdout.splitlines()[1].split()[:2] == ["dies", "DIED"]
    assert tidegate("info", "dies").stdout.startswith("job 'counting' (dies): DIED\n")
    assert (
        "  died        its driver ended without a report; to continue, start the program"
        in tidegate("info", "dies").stdout
    )
    for refused in (tidegate("cancel", "dies"), tidegate("checkpoint", "dies")):
        assert refused.returncode == ExitCode.DIED
        assert "ended without a report (state RUNNING)" in refused.stderr
    for place in ("dies", f"{one.directory}/checkpoints/dies", f"{one.directory}/checkpoints/dies/chk-1"):
        assert [c["checkpoint_id"] for c in parsed("checkpoints", place)["checkpoints"]] == [1]


def test_unknown_jobs_and_places(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in (["info"], ["cancel"], ["checkpoint"], ["checkpoints"]):
        done = tidegate(*command, "nobody")
        assert done.returncode == ExitCode.UNKNOWN_JOB, done.stderr
        assert done.stderr.startswith("UnknownJobError: There is no job with this id\n")
    nothing = tidegate("checkpoints", f"{tmp_path}/empty")
    assert nothing.returncode == ExitCode.BAD_SNAPSHOT
    assert "found: no such directory, or it is empty" in nothing.stderr
    as_json = tidegate("cancel", "nobody", "--json")
    assert json.loads(as_json.stderr)["exit_code"] == ExitCode.UNKNOWN_JOB
    assert "Traceback" in tidegate("cancel", "nobody", "-v").stderr
    assert not home.exists()  # looking makes nothing


@pytest.mark.parametrize("command", [["state"], ["savepoint", "--dispose"], ["checkpoints"]])
def test_a_file_in_place_of_a_directory_is_said_to_be_one(home: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").touch()
    done = tidegate(*command, f"{tmp_path}/file")
    assert (done.returncode, "found: a file\n" in done.stderr) == (ExitCode.BAD_SNAPSHOT, True), done.stderr


def test_odd_arguments_are_answered_in_words(home: Path, tmp_path: Path) -> None:
    assert "There is no program at this path" in tidegate("run", str(tmp_path)).stderr
    assert f"{tmp_path} is a directory" in tidegate("explain", str(tmp_path)).stderr
    several = tidegate("cancel", "one", "two")
    assert several.returncode == ExitCode.USAGE and "cancel takes one job" in several.stderr


def test_two_live_jobs_with_one_directory(driver: Start) -> None:
    driver("taken").running()
    second = driver("taken", "-m", "tidegate.cli", "run", "-Dexecution.target=simulated")
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
