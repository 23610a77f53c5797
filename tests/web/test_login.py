"""The login of the real server, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.web.browser import visiting
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.web.server import PageServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    server = PageServer(RegistryJobs(), server="installation")
    try:
        yield server
    finally:
        server.close()


def test_person_logs_in_by_a_code_and_out_by_a_button(server: PageServer, browser: Browser) -> None:
    with visiting(browser) as person:
        address = server.login_address()
        person.page.goto(address)
        expect(person.page.locator(".live")).to_have_text("live")
        person.page.get_by_role("button", name="Log out").click()
        person.sees("You are not logged in any more.")
        person.page.goto(address)
        person.sees("This code or password is not valid, has expired, or was used before.")
        person.page.get_by_label("Code").fill(server.logins.new_code())
        person.page.get_by_role("button", name="Log in").click()
        expect(person.page.locator(".live")).to_have_text("live")
