"""Chromium of Debian's packages, headless, for tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from tests.servers.server import binary

expect.set_options(timeout=30_000)
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


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


DESKTOP, PHONE = (1280, 800), (390, 844)


class Visitor:
    """A window on the page, as a person uses it: what is there is found by its text or role."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        # A server that is away, or answers with a problem, is reported by the browser too.
        if (
            message.type in ("error", "warning")
            and "Failed to load resource" not in message.text
            and "net::ERR" not in message.text
        ):
            self.errors.append(message.text)

    def open(self, server: str, route: str = "") -> None:
        """Open a route as an address that somebody was sent: with a new page."""
        self.page.goto("about:blank")
        self.page.goto(f"{server.rstrip('/')}/{route}")

    def heading(self) -> str:
        """Wait for the question of the page, which is there when the page is."""
        return self.page.locator("main h1").inner_text()

    def sees(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text)


@contextmanager
def visiting(
    browser: Browser, size: tuple[int, int] = DESKTOP, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Visitor]:
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(30_000)
    try:
        visitor = Visitor(context.new_page())
        yield visitor
        assert not visitor.errors
    finally:
        context.close()
