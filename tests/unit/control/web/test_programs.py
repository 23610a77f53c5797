"""Uploaded programs, and jobs that run with another parallelism: real drivers in the background, on the simulated engine."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.control.drivers import PROGRAM
from tests.unit.control.web.browser import Browser
from tests.waiting import eventually
from tidegate.base.errors import CommandFailedError
from tidegate.cli.background import driver_command
from tidegate.control import registry
from tidegate.control.registry import DriverLife
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web import programs as uploads
from tidegate.control.web.programs import Programs
from tidegate.control.web.restarts import Restarts, _started
from tidegate.control.web.server import PageServer

SIMULATED = {"execution.target": "simulated"}
SCALING = PROGRAM.replace(".set_parallelism(1)", "")


@pytest.fixture
def browser(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """The page of a server that takes programs. What it has started is ended."""
    root = str(Path(__file__).parents[4])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    programs = Programs()
    server = PageServer(RegistryJobs(), server="installation", programs=programs, restarts=Restarts(programs))
    yield Browser(server).log_in()
    server.close()
    for record in registry.records():
        if record.life() is DriverLife.LIVE and record.owner.pid != os.getpid():
            os.kill(record.owner.pid, signal.SIGKILL)


def zipped(files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                info = zipfile.ZipInfo(name)
                change(info)
                archive.writestr(info, content)
        return file.getvalue()


def deflated(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_DEFLATED


def damaged(archive: bytes) -> bytes:
    """Overwrite some compressed bytes behind the header of the first file."""
    return archive[:40] + b"\xff" * 6 + archive[46:]


def linked(info: zipfile.ZipInfo) -> None:
    info.external_attr = 0o120777 << 16


def upload(browser: Browser, name: str, content: bytes) -> tuple[int, Any]:
    return browser.ask("POST", f"/tidegate/page/programs?name={name}", content)


def done(browser: Browser, operation: dict[str, Any], job: str = "-") -> dict[str, Any]:
    while operation["status"] == "running":
        operation = browser.page(f"/jobs/{job}/operations/{operation['id']}?wait=25")
    return operation


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("job.txt", b"", "name of a program"),
        ("..%2Fjob.py", b"", "name of a program"),
        ("%2Fetc%2Fcron.py", b"", "name of a program"),
        ("a%00.py", b"", "name of a program"),
        (".job.py", b"", "name of a program"),
        ("", b"", "name of a program"),
        ("job.py", b"def (:\n", "no Python"),
        ("job.py", b"\x00\x01", "no Python"),
        ("job.py", b"(" * 5000, "no Python"),
        ("job.zip", b"no zip", "cannot be unpacked"),
        ("job.zip", zipped({"../../evil.py": b""}), "../../evil.py"),
        ("job.zip", zipped({"/etc/evil.py": b""}), "/etc/evil.py"),
        ("job.zip", zipped({"a\\..\\evil.py": b""}), "evil.py"),
        ("job.zip", zipped({"link.py": b"/etc/passwd"}, linked), "a link"),
        ("job.zip", zipped({"readme.txt": b""}), "no .py file"),
        ("job.zip", zipped({"job.py": b"", "bad.py": b"def"}), "no Python"),
        ("job.zip", damaged(zipped({"job.py": b"print(1)\n" * 100}, deflated)), "cannot be unpacked"),
        ("job.zip", zipped({"a": b"", "a/job.py": b""}), "both as a file and as a directory"),
        ("job.zip", zipped({"a" * 300 + ".py": b""}), "too long"),
    ],
)
def test_upload_that_is_no_program_is_refused_and_nothing_is_stored(
    browser: Browser, home: Path, name: str, content: bytes, found: str
) -> None:
    status, problem = upload(browser, name, content)
    assert status in (400, 409) and found in problem["message"], problem
    assert browser.page("/programs") == []
    assert not list((home / "programs").iterdir())


def test_upload_that_is_too_large_is_refused(browser: Browser, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, problem = upload(browser, "job.py", b"#" * (uploads.LARGEST_PROGRAM + 1))
    assert (status, problem["code"]) == (413, "bad-request") and "67,108,864 bytes" in problem["message"]
    monkeypatch.setattr(uploads, "_LARGEST_UNPACKED", 1000)
    status, problem = upload(browser, "job.zip", zipped({"job.py": b"#" * 2000}))
    assert status == 409 and "unpacks to more" in problem["message"]
    monkeypatch.setattr(uploads, "MOST_PROGRAMS", 0)
    status, problem = upload(browser, "job.py", b"pass")
    assert status == 409 and "Too many" in problem["message"]
    assert browser.page("/programs") == []


def test_program_is_uploaded_run_shown_and_deleted(browser: Browser, tmp_path: Path) -> None:
    status, program = upload(browser, "job.py", PROGRAM.encode())
    assert (status, program["entries"]) == (201, ["job.py"])
    run = f"/tidegate/page/programs/{program['id']}/run"
    status, operation = browser.ask(
        "POST",
        run,
        {
            "arguments": ["tidegate.job-id=mine", f"execution.checkpointing.dir={tmp_path}/ck"],
            "configuration": SIMULATED,
        },
    )
    assert status == 202
    ended = done(browser, operation)
    assert ended["result"] == "mine", ended["problem"]
    assert browser.page("/jobs/mine")["card"]["state"] == "RUNNING"
    assert browser.page("/jobs/mine/log")["from"] == 0
    assert next(browser.events("/jobs/mine/log/events"))[0] == "lines"
    assert browser.done("mine", "/cancel")["status"] == "succeeded"
    assert browser.ask("DELETE", f"/tidegate/page/programs/{program['id']}")[0] == 200
    assert browser.ask("POST", run, {})[0] == 404


def test_program_that_does_not_start_gives_its_error(browser: Browser) -> None:
    _, program = upload(browser, "bad.zip", zipped({"lib/x.py": b"", "main.py": b"import nothing_of_this_name\n"}))
    assert program["entries"][0] == "main.py"
    run = f"/tidegate/page/programs/{program['id']}/run"
    _, operation = browser.ask("POST", run, {"configuration": SIMULATED})
    ended = done(browser, operation)
    assert ended["status"] == "failed" and "nothing_of_this_name" in ended["problem"]["message"]
    for bad in (
        {"entry": "no.py"},
        {"parallelism": 0},
        {"configuration": {"a=b": "c"}},
        {"configuration": {"a": "b\nc"}},
        {"unknown": 1},
    ):
        status, problem = browser.ask("POST", run, bad)
        assert status in (400, 409), problem


def test_start_imports_nothing_from_the_working_directory(home: Path, tmp_path: Path) -> None:
    """Others may write to the directory that a job was started in, for example /tmp."""
    (tmp_path / "typer.py").write_text("open('met', 'w').close()")
    for start in (lambda: _started(["--", "missing.py"], str(tmp_path)), lambda: _ran(driver_command(["--", "no.py"]))):
        with contextlib.chdir(tmp_path), pytest.raises(CommandFailedError, match="no program at this path"):
            start()
    assert not (tmp_path / "met").exists()


def _ran(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    raise CommandFailedError(done.stderr)


def scaling(browser: Browser, directory: Path) -> None:
    """Start the job 'scaling' in the background, with parallelism 1."""
    (directory / "job.py").write_text(SCALING)
    keys = {"tidegate.job-id": "scaling", "execution.checkpointing.dir": f"{directory}/ck"}
    options = ["-d", "-Dexecution.target=simulated", "-p", "1", "job.py", *(f"{k}={v}" for k, v in keys.items())]
    started = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", "run", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    eventually(lambda: browser.page("/jobs/scaling")["details"]["totals"]["records"], "records")


def test_rescale_stops_with_a_savepoint_and_continues_with_another_parallelism(
    browser: Browser, tmp_path: Path
) -> None:
    scaling(browser, tmp_path)
    target = f"{tmp_path}/sp"
    will = browser.page(f"/jobs/scaling/will?action=rescale&parallelism=3&target={target}")
    assert will["allowed"] and any("parallelism 3 (now 1)" in sentence for sentence in will["sentences"])
    for bad in (0, 1000):
        will = browser.page(f"/jobs/scaling/will?action=rescale&parallelism={bad}&target={target}")
        assert not will["allowed"] and "parallelism" in will["problem"]
        status, _ = browser.ask("POST", "/tidegate/page/jobs/scaling/rescale", {"parallelism": bad, "target": target})
        assert status == 409 and browser.page("/jobs/scaling")["card"]["state"] == "RUNNING"
    ended = browser.done("scaling", "/rescale", {"parallelism": 3, "target": target})
    assert (ended["status"], ended["result"]) == ("succeeded", "scaling"), ended
    page = eventually(lambda: (p := browser.page("/jobs/scaling"))["card"]["state"] == "RUNNING" and p)
    assert {o["parallelism"] for o in page["details"]["operators"]} == {3}
    assert page["details"]["attempts"][0]["checkpoint"].startswith(target)
    assert ended["id"] in [o["id"] for o in browser.page("/jobs/scaling/operations")]


def test_two_people_who_rescale_a_job_at_once_rescale_it_once(browser: Browser, tmp_path: Path) -> None:
    """Each has a server of his own, so only the driver knows both. The program starts again when one of them was refused."""
    scaling(browser, tmp_path)
    refused = threading.Event()

    def run(options: list[str], directory: str) -> str:
        assert refused.wait(60)
        return _started(options, directory)

    def rescale(parallelism: int) -> tuple[str, str]:
        programs = Programs()
        server = PageServer(RegistryJobs(), server="installation", programs=programs, restarts=Restarts(programs, run))
        try:
            person = Browser(server).log_in()
            both_are_here.wait(60)
            asked = {"parallelism": parallelism, "target": f"{tmp_path}/sp"}
            status, answer = person.ask("POST", "/tidegate/page/jobs/scaling/rescale", asked)
            if status == 202:
                answer = done(person, answer, "scaling")
                if answer["status"] == "succeeded":
                    return "rescaled", answer["result"]
                answer = answer["problem"]
            refused.set()
            return "refused", answer["message"]
        finally:
            server.close()

    both_are_here = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip((2, 3), pool.map(rescale, (2, 3)), strict=True))
    winner, loser = sorted(answers, key=lambda parallelism: answers[parallelism], reverse=True)
    assert answers[winner] == ("rescaled", "scaling")
    assert answers[loser][0] == "refused", answers
    assert re.search("already ending with the savepoint|has ended", answers[loser][1]), answers
    page = eventually(lambda: (p := browser.page("/jobs/scaling"))["card"]["state"] == "RUNNING" and p)
    assert {o["parallelism"] for o in page["details"]["operators"]} == {winner}
    assert len([record for record in registry.records() if record.job_id == "scaling"]) == 2
    assert len(list((tmp_path / "sp").iterdir())) == 1


def test_job_that_nobody_knows_how_to_start_is_not_stopped_for_a_rescale(
    browser: Browser, driver: Callable[..., Any], tmp_path: Path
) -> None:
    driver("one").running()
    asked = {"parallelism": 2, "target": f"{tmp_path}/sp"}
    status, problem = browser.ask("POST", "/tidegate/page/jobs/one/rescale", asked)
    assert status == 409 and "tidegate run -d" in problem["message"]
    assert browser.page("/jobs/one")["card"]["state"] == "RUNNING"
