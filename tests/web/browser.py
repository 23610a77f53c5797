"""Chromium of Debian's packages, headless, for tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.servers.server import binary

_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Playwright makes a fresh profile, and headless needs no display."""
    path = binary("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()
