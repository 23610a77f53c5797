"""The versions of the site in Chromium: the selector in the header, and the warning on the pages of an older version."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

import tidegate
from scripts import build_site
from tests.web.browser import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
OLDER = "0.0.9"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of two versions. The older one has the pages of this one, under another name."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "scripts.build_site", "--site", str(site)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    shutil.copytree(site / tidegate.__version__, site / OLDER)
    build_site.list_versions(site)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_selector_lists_the_versions_and_leads_from_one_to_the_other(visitor: Visitor, address: str) -> None:
    page, here = visitor.page, tidegate.__version__
    visitor.open(address)
    page.wait_for_url(f"{address}/{here}/index.html")  # the front page leads to the newest
    selector = page.locator(".md-version")
    expect(selector.locator(".md-version__current")).to_contain_text(here)
    expect(page.locator("[data-md-component=outdated]")).to_be_hidden()

    page.goto(f"{address}/{here}/types.html")
    selector.locator(
        ".md-version__current"
    ).focus()  # under a mouse the list opens above the button, which then takes no click
    links = selector.locator(".md-version__link")
    expect(links).to_have_text([here, OLDER])
    links.nth(1).click()
    page.wait_for_url(f"{address}/{OLDER}/**")
    expect(selector.locator(".md-version__current")).to_contain_text(OLDER)
    warning = page.locator("[data-md-component=outdated]")
    expect(warning).to_contain_text("You are reading the pages of an older version.")
    warning.get_by_role("link").click()
    page.wait_for_url(f"{address}/{here}/index.html")
    assert visitor.errors == []


def test_the_selector_is_on_pages_in_folders_and_the_search_stays_in_its_version(
    visitor: Visitor, address: str
) -> None:
    page = visitor.page
    page.goto(f"{address}/{OLDER}/tutorials/fraud.html")
    expect(page.locator(".md-version__current")).to_contain_text(OLDER)
    page.locator(".md-search__input").first.fill("KafkaSource")
    found = page.locator(".md-search-result__link").first
    expect(found).to_be_visible(timeout=60_000)
    assert f"{address}/{OLDER}/" in str(found.get_attribute("href")) or "../" in str(found.get_attribute("href"))
