"""The page of real jobs on Spark, through the real server: while they run, fail and restart, and after their driver was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.incidents.started import NAMES, ROOT, Incident
from tests.web.browser import Visitor, visiting
from tests.web.test_page import PAGES, QUESTIONS
from tidegate.control import registry
from tidegate.control.registry import DriverLife
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web.programs import Programs
from tidegate.control.web.restarts import Restarts
from tidegate.control.web.server import PageServer

FIRST_MS = 120_000.0
INCIDENT_MS = 240_000.0
FOUND: dict[str, tuple[str, ...]] = {
    "hot-key": ("customer 4711", "subtask", "'charge'"),
    "slow-function": ("'look up'", "user code"),
    "slow-storage": ("step 7 (complete)",),
    "stuck-watermark": ("Subtask 2/2", "orders"),
    "lagging-partition": ("Subtask 2/2", "orders"),
    "growing-state": ("'remember'", "'seen'"),
    "restart-loop": ("'prices'", "the price service closed the connection"),
    "commit-retried": ("Step 8 (commit)", "orders-db", "The database refuses connections"),
}
"""Texts of the finding: it names the guilty subtask, key or step."""
MARKED = {
    "hot-key": "customer 4711",
    "slow-function": "look up",
    "slow-storage": "7 Complete",
    "stuck-watermark": "2/2",
    "lagging-partition": "2/2",
    "growing-state": "seen",
    "restart-loop": "the price service closed the connection",
    "commit-retried": "8 Commit",
}
"""A text of what is marked in the end: the subtask, the key, the step or the exception."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """The page of all jobs, which takes programs. What it has started is ended."""
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path_factory.mktemp("h") / "home"))
    programs = Programs()
    server = PageServer(RegistryJobs(), server="installation", programs=programs, restarts=Restarts(programs))
    try:
        yield server
    finally:
        server.close()
        for record in registry.records():
            if record.life() is DriverLife.LIVE:
                os.kill(record.owner.pid, signal.SIGKILL)


@pytest.fixture
def person(browser: Browser, pages: PageServer) -> Iterator[Visitor]:
    with visiting(browser) as visitor:
        visitor.page.goto(pages.login_address())
        yield visitor


@pytest.fixture
def started(pages: PageServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Incident]:
    """A driver of its own, registered where the server looks."""
    incident = Incident(request.param, tmp_path)
    try:
        yield incident
    finally:
        incident.end()


def look_at_every_page(person: Visitor) -> None:
    for name in PAGES:
        person.page.locator(".pages").get_by_role("link", name=re.compile(f"^{name}", re.IGNORECASE)).click()
        expect(person.page.locator("main h1")).to_have_text(QUESTIONS[name])


@pytest.mark.parametrize("started", ["growing-state"], indirect=True)
def test_running_job_is_shown_live_then_stopped_and_shown_from_its_history(started: Incident, person: Visitor) -> None:
    page = person.page
    page.get_by_role("link", name="growing-state").first.click(timeout=FIRST_MS)
    page.locator(".pages").get_by_role("link", name="Checkpoints").click()
    expect(page.locator(".opened")).to_contain_text("By step", timeout=FIRST_MS)
    look_at_every_page(person)

    page.get_by_role("link", name="State", exact=True).click()
    page.locator("main table a", has_text="remember").first.click(timeout=FIRST_MS)
    expect(page.get_by_role("region", name="Entries").locator("tbody tr").first).to_be_visible()

    page.get_by_role("link", name="Graph").click()
    page.locator(".node", has_text="remember").click()
    expect(page.locator(".side")).to_contain_text("Subtasks")

    page.get_by_role("link", name="Actions").click()
    for title, result in (("Take a checkpoint", r"\d+"), ("Stop", "savepoint-")):
        form = page.get_by_role("form", name=title, exact=True)
        if title == "Stop":
            form.get_by_label("Directory of the savepoint").fill(str(started.directory / "savepoints"))
        form.get_by_role("button", name="What will happen?").click()
        form.get_by_role("button", name=title, exact=True).click()
        expect(form.locator(".command")).to_contain_text(re.compile(result), timeout=FIRST_MS)
    expect(page.locator(".jobhead .pill")).to_have_text("finished", timeout=FIRST_MS)
    look_at_every_page(person)


PROGRAM = """
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment()
source = DataGeneratorSource(lambda index: (index % 5, 1), records_per_second=200)
pairs = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
totals = pairs.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).name("totals").uid("totals")
totals.add_sink(lambda value: None).name("out").uid("out")
env.execute("clicked")
"""


@pytest.mark.slow
def test_programs_are_submitted_and_every_action_is_done_by_clicks(person: Visitor, tmp_path: Path) -> None:
    page = person.page
    (tmp_path / "job.py").write_text(PROGRAM)
    keys = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "tidegate.round.target-time": "300 ms",
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{tmp_path}/savepoints",
        "tidegate.state.local-dir": f"{tmp_path}/local",
    }

    def run(job_id: str, **fields: str) -> None:
        page.get_by_role("link", name="Submit").click()
        page.locator("summary", has_text="job.py").click()
        given = "\n".join(f"{key}: {value}" for key, value in {**keys, "tidegate.job-id": job_id}.items())
        for label, text in {"Configuration": given, **fields}.items():
            page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Run").click()
        page.locator("main [role=status]").get_by_role("link", name=job_id).click(timeout=FIRST_MS)
        page.get_by_role("link", name="Actions").click()

    def act(title: str, result: str, fields: dict[str, str] | None = None) -> str:
        form = page.get_by_role("form", name=title, exact=True)
        for label, text in (fields or {}).items():
            form.get_by_label(label).fill(text)
        form.get_by_role("button", name="What will happen?").click()
        form.get_by_role("button", name=title, exact=True).click()
        expect(form.locator(".command code")).to_have_text(re.compile(result), timeout=FIRST_MS)
        shown = form.locator(".command code").inner_text()
        form.get_by_role("button", name="Back").click()
        return shown

    page.get_by_role("link", name="Submit").click()
    page.get_by_label("Program").set_input_files(str(tmp_path / "job.py"))
    page.get_by_role("button", name="Upload").click()
    person.sees("job.py is here now.")
    run("clicked", Parallelism="1")
    act("Take a checkpoint", r"^\d+$")
    savepoint = act("Take a savepoint", "savepoints/savepoint-")
    assert act("Rescale", "^clicked$", {"Parallelism": "2"}) == "clicked"
    page.locator(".pages").get_by_role("link", name="Graph").click()
    expect(page.locator(".node", has_text="totals")).to_contain_text("2×", timeout=FIRST_MS)
    page.get_by_role("link", name="Actions").click()
    act("Cancel", "^CANCELED$")
    expect(page.locator(".jobhead .pill")).to_have_text("canceled")

    run("resumed", **{"Parallelism": "2", "Resume from savepoint": savepoint})
    drained = act("Drain", "savepoints/savepoint-")
    expect(page.locator(".jobhead .pill")).to_have_text("finished")
    page.locator(".snapshots li", has_text=drained).get_by_role("button", name="Dispose").click()
    page.get_by_role("button", name="Delete it for good").click()
    person.sees(f"{drained} is gone.")
    exists = {path: (Path(path.removeprefix("file://")) / "_metadata").exists() for path in (savepoint, drained)}
    assert exists == {savepoint: True, drained: False}


@pytest.mark.slow
@pytest.mark.parametrize("started", ["restart-loop"], indirect=True)
def test_every_page_during_failures_and_restarts(started: Incident, person: Visitor) -> None:
    person.page.get_by_role("link", name="restart-loop").first.click(timeout=FIRST_MS)
    person.page.locator(".pages").get_by_role("link", name="Exceptions").click()
    expect(person.page.locator("article").first).to_contain_text(
        "the price service closed the connection", timeout=FIRST_MS
    )
    for _ in range(3):
        look_at_every_page(person)
    expect(person.page.locator("article").first).to_be_hidden()
    person.page.locator(".pages").get_by_role("link", name="Exceptions").click()
    expect(person.page.locator("article pre").first).to_be_visible()


@pytest.mark.slow
def test_markup_in_names_keys_states_and_exceptions_stays_text(tmp_path: Path, person: Visitor) -> None:
    page = person.page
    with open(tmp_path / "hostile.log", "wb") as log:
        command = [sys.executable, "-m", "tests.web.hostile_job", str(tmp_path)]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        page.get_by_role("link", name="<img src=x").first.click(timeout=FIRST_MS)
        page.locator(".pages").get_by_role("link", name="Exceptions").click()
        expect(page.locator("article").first).to_contain_text("<script>window.hacked=1</script>", timeout=FIRST_MS)
        look_at_every_page(person)
        page.locator(".pages").get_by_role("link", name="State").click()
        page.locator("main table a", has_text="<img").first.click(timeout=FIRST_MS)
        expect(page.get_by_role("region", name="Entries")).to_contain_text("<img src=x onerror=", timeout=FIRST_MS)
        assert page.evaluate("window.hacked") is None
        assert page.locator("#page img:not([src='/assets/icon.svg']), #page script").count() == 0
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.slow
@pytest.mark.parametrize("started", ["healthy"], indirect=True)
def test_every_page_after_the_driver_was_killed(started: Incident, person: Visitor) -> None:
    page = person.page
    page.get_by_role("link", name="healthy").first.click(timeout=FIRST_MS)
    page.locator(".pages").get_by_role("link", name="Checkpoints").click()
    expect(page.locator(".opened")).to_contain_text("By step", timeout=FIRST_MS)
    started.process.send_signal(signal.SIGKILL)
    started.process.wait()
    expect(page.locator(".jobhead .pill")).to_have_text("died", timeout=FIRST_MS)
    expect(page.locator(".silence")).to_contain_text("The driver died")
    look_at_every_page(person)
    page.locator(".pages").get_by_role("link", name="Checkpoints").click()
    expect(page.locator(".opened")).to_contain_text("By step")
    page.locator(".pages").get_by_role("link", name="Graph").click()
    expect(page.locator(".node", has_text="totals")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("started", NAMES, indirect=True)
def test_incident_is_reached_from_the_first_page_in_two_clicks(started: Incident, person: Visitor) -> None:
    """The first page names what is most urgent, and each finding of a job is a link on top of it. The sentence names the guilty."""
    page = person.page
    link = page.locator(f"a.finding[href*='finding={started.name}']")
    clicks = 0
    job = page.get_by_role("link", name=started.name).first
    job.wait_for(timeout=FIRST_MS)
    try:
        link.first.wait_for(timeout=INCIDENT_MS / 2)
    except Exception:  # something else is more urgent, so the job is opened first
        job.click()
        clicks += 1
        link.first.wait_for(timeout=INCIDENT_MS / 2)
    sentence = link.first.inner_text()
    for text in FOUND[started.name]:
        assert text in sentence, sentence
    link.first.click()
    clicks += 1
    assert clicks <= 2
    marked = page.locator("main [aria-current=true]:is(tr, li, article), .side h2")
    expect(marked.filter(has_text=MARKED[started.name]).first).to_be_visible()
