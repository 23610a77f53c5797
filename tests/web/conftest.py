"""What the tests of the page share: one browser for all, a server with made data, and axe-core."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from scripts.vendor_scripts import fetch
from tests.web.browser import Visitor, chromium, visiting
from tests.web.page_server import PageServer, served

AXE_VERSION, AXE_SHA256 = "4.14.0", "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """A window of a desktop. The test fails if the page reports an error, also one of the content security policy."""
    with visiting(browser) as window:
        yield window


@pytest.fixture
def server() -> Iterator[PageServer]:
    with served() as shown:
        yield shown


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, from npm the first time."""
    kept = Path(tempfile.gettempdir()) / f"tidegate-axe-core-{AXE_VERSION}.js"
    content = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(content).hexdigest() != AXE_SHA256:
        content = fetch("axe-core", AXE_VERSION)["axe.min.js"]
        assert hashlib.sha256(content).hexdigest() == AXE_SHA256
        kept.write_bytes(content)
    return content.decode()
