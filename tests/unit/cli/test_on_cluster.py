"""The driver in a container: whether a later attempt of the cluster runs the job again, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint import owner
from tidegate.checkpoint.owner import Owner, is_alive, this_process
from tidegate.cli import cluster
from tidegate.cli.on_cluster import LaunchError, OneEach, _end_of_earlier, _properties, _run, container, error_path
from tidegate.common.options import JOB_ID, RESTART_COVERS_START
from tidegate.control.place import JobPlace
from tidegate.control.printed import Printed
from tidegate.control.registry import JobRecord
from tidegate.spark.submission import Job

APPLICATION = "application_1700000000000_0003"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("container_1700000000000_0003_02_000001", (APPLICATION, 2)),
        ("container_e17_1700000000000_0003_01_000001", (APPLICATION, 1)),
        ("", ("", 1)),
    ],
)
def test_name_of_a_container_tells_the_attempt(name: str, found: tuple[str, int]) -> None:
    assert container(name) == found


@pytest.fixture
def place(tmp_path: Path) -> JobPlace:
    return JobPlace(str(tmp_path / "jobs" / "j"))


def earlier(place: JobPlace, **changes: object) -> LaunchError | None:
    made = JobRecord(
        run="00001700000000-aa",
        job_id="j",
        name="n",
        program="",
        owner=Owner("far", 1),
        started_ms=1,
        state="RUNNING",
        application=APPLICATION,
        checkpoint_interval_ms=1000,
    )
    place.write(msgspec.structs.replace(made, **changes))
    return _end_of_earlier({"launch": "l", "place": place.address}, place.files, APPLICATION, 2)


@pytest.mark.parametrize(("state", "code"), [("FINISHED", 0), ("CANCELED", 0), ("FAILED", 1)])
def test_job_that_has_ended_is_not_run_again(place: JobPlace, state: str, code: int) -> None:
    found = earlier(place, state=state, ended_ms=2)
    assert found is not None and found.code == code and state in found.text


def test_job_without_checkpoints_is_not_run_again(place: JobPlace) -> None:
    found = earlier(place, checkpoint_interval_ms=None)
    assert found is not None and found.code == 1 and "no checkpoints to continue from" in found.text


@pytest.mark.parametrize(
    "changes", [{}, {"state": "SUSPENDED", "ended_ms": 2}, {"application": "application_1_1", "state": "FAILED"}]
)
def test_job_whose_driver_died_or_was_told_to_end_is_run_again(place: JobPlace, changes: dict[str, object]) -> None:
    assert earlier(place, **changes) is None


def test_program_that_failed_before_its_job_is_not_run_again(place: JobPlace) -> None:
    place.files.replace(error_path("l"), msgspec.json.encode(LaunchError("KeyError: x", 1)))
    assert earlier(place) == LaunchError("KeyError: x", 1)


def test_driver_of_the_attempt_before_counts_as_dead(place: JobPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_dead", set())
    before = msgspec.structs.replace(this_process(), pid=1)
    place.files.replace(f"control/attempt-{APPLICATION}-1.json", msgspec.json.encode(before))
    assert earlier(place) is None
    assert is_alive(before) is False
    assert is_alive(this_process()) is True


def test_later_attempt_waits_for_systems_that_do_not_answer_and_the_first_does_not() -> None:
    job = {"properties": {"parallelism.default": "2"}}
    assert _properties(job, 1) == job["properties"]
    assert _properties(job, 2) == {**job["properties"], RESTART_COVERS_START.key: True}
    own = {RESTART_COVERS_START.key: "false"}
    assert _properties({"properties": own}, 2) == own


def test_attempt_that_cannot_look_at_earlier_ones_leaves_the_job_to_the_next_attempt(
    place: JobPlace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"launch": "l", "place": place.address, "script": "program/none.py"}

    def fails(files: Files, path: str, *rest: Any) -> Any:
        raise StorageError("The storage is away")

    with monkeypatch.context() as patched:
        for name in ("read_if_exists", "replace"):
            patched.setattr(Files, name, fails)
        assert _run(job, "p", place.files, APPLICATION, 2) == 1
        with pytest.raises(StorageError):
            _run(job, "p", place.files, APPLICATION, 1)
    assert "cannot find out how the job ended before" in capsys.readouterr().err
    assert not place.files.exists(error_path("l")), "it would end the job"


def followed(place: JobPlace, monkeypatch: pytest.MonkeyPatch, failures: list[int]) -> None:
    """Follow a job that has finished, on storage that does not answer the first reads."""
    reads = Files.read_if_exists

    def read(files: Files, path: str) -> bytes | None:
        if failures:
            failures.pop()
            raise StorageError("The storage is away")
        return reads(files, path)

    place.write(
        JobRecord(
            run="00001700000000-aa",
            job_id="j",
            name="n",
            program="",
            owner=this_process(),
            started_ms=1,
            ended_ms=2,
            state="FINISHED",
            launch="l",
        )
    )
    monkeypatch.setattr(Files, "read_if_exists", read)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    job = Job("p.py", [], {JOB_ID.key: "j"}, "l", place.address, "t", "m:f")
    submission: Any = SimpleNamespace(ended=lambda: 0, application=APPLICATION, why=lambda: "")
    cluster._follow(job, place, submission, detached=False, json=False)


def test_command_follows_its_driver_while_storage_is_away_for_a_moment(
    place: JobPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        followed(place, monkeypatch, [1, 1])
    assert ended.value.code == 0


def test_command_ends_with_storage_that_stays_away(place: JobPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE_S", -1.0)
    with pytest.raises(StorageError, match="is away"):
        followed(place, monkeypatch, [1])


class Executes:
    def __init__(self) -> None:
        self.names: list[str] = []

    def execute_async(self, program: Any) -> Any:
        self.names.append(program.name)
        return program


def test_second_job_with_the_fixed_id_is_refused() -> None:
    """It would find the first one finished, and do nothing."""
    executes = Executes()
    jobs = OneEach(executes)

    def program(name: str, job_id: str) -> Any:
        return SimpleNamespace(name=name, configuration={JOB_ID.key: job_id})

    jobs.execute_async(program("one", "a"))
    jobs.execute_async(program("two", "b"))
    with pytest.raises(ConfigurationError, match="starts one job"):
        jobs.execute_async(program("three", "a"))
    assert executes.names == ["one", "two"]


PRINTS = """
import os, sys
from tidegate.base.files import Files
from tidegate.control import printed
printed._PART, printed._MOST_PARTS = 1000, 3
files = Files(sys.argv[1])
printing = printed.Printing(files, "l", int(sys.argv[2]))
for n in range(int(sys.argv[3])):
    print(f"line {n}")
os.system("echo of a child >&2")
printing.close()
print("after")
"""


def test_what_a_driver_prints_is_stored_in_parts_and_read_in_order(tmp_path: Path) -> None:
    def prints(attempt: int, lines: int) -> str:
        command = [sys.executable, "-c", PRINTS, str(tmp_path / "j"), str(attempt), str(lines)]
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=buffered)
        assert done.stdout == "after\n"
        return done.stderr

    reader = Printed(Files(str(tmp_path / "j")), "l")
    first = prints(1, 200)
    assert first.endswith("line 199\nof a child\n")
    read = b"".join(reader.rest()).decode()
    assert first.endswith(read) and len(read) > 0
    assert b"".join(reader.rest()) == b"" and reader.is_complete
    second = prints(2, 2000)
    rest = b"".join(reader.rest()).decode()
    assert second.endswith(rest) and 2000 <= len(rest) <= 4000, "the oldest parts are deleted"
    Files(str(tmp_path / "j")).replace("control/log-l/0003-00000000", b"third")
    assert b"".join(reader.rest()) == b"third" and not reader.is_complete, "the latest attempt may print more"


LAUNCHER = """
import os, runpy, sys, threading, time
module = runpy.run_path(sys.argv[1])
threading.Thread(target=module["_end_with"], args=(os.getppid(),), daemon=True).start()
print("runs", flush=True)
time.sleep(600)
"""


def test_driver_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Spark's JVM: a driver that lived on would report a failed job."""
    from tidegate.spark import driver_main

    start = f"p = subprocess.Popen([sys.executable, '-c', {LAUNCHER!r}, {driver_main.__file__!r}])"
    parent = f"import subprocess, sys; {start}; print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        told = {started.stdout.readline().strip(), started.stdout.readline().strip()}
        [pid] = told - {"runs"}
        started.kill()
    eventually(lambda: not _lives(int(pid)), "the driver ends")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
