"""The page of real jobs on Spark, through the real server: while they run, fail and restart, and after their driver was killed."""

from __future__ import annotations

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
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web.server import PageServer

FIRST_MS = 120_000.0
INCIDENT_MS = 240_000.0
GUILTY: dict[str, tuple[str, ...]] = {
    "hot-key": ("customer 4711",),
    "slow-function": ("look up",),
    "slow-storage": ("7 Complete",),
    "stuck-watermark": ("2/2",),
    "lagging-partition": ("2/2",),
    "growing-state": ("seen",),
    "restart-loop": ("the price service closed the connection",),
    "commit-retried": ("8 Commit",),
}
"""A text of what is marked in the end: the subtask, the key, the step or the exception."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path_factory.mktemp("h") / "home"))
    server = PageServer(RegistryJobs(), server="installation")
    try:
        yield server
    finally:
        server.close()


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
    """The first page names what is most urgent, and each finding of a job is a link on top of it."""
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
    link.first.click()
    clicks += 1
    assert clicks <= 2
    marked = page.locator("main [aria-current=true]:is(tr, li, article), .side h2")
    expect(marked.first).to_be_visible()
    for text in GUILTY[started.name]:
        expect(marked.filter(has_text=text).first).to_be_visible()
