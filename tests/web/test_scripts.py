"""The files of the page: their size, what they may not do, and where the vendored ones come from."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.vendor_scripts import MANIFEST, VENDOR, fetch, sha256, vendored
from tests.web.page_server import STATIC

LARGEST = 70_000
_LICENSES = {"MIT", "Apache-2.0"}


def scripts() -> list[Path]:
    return sorted(Path(STATIC).rglob("*.js"))


def entries() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(MANIFEST.read_text())
    return listed


def test_all_scripts_together_have_at_most_70_kb_gzipped() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9, mtime=0)) for path in scripts()}
    assert sum(sizes.values()) <= LARGEST, sizes


@pytest.mark.parametrize(
    "forbidden",
    [
        r"innerHTML",
        r"outerHTML",
        r"insertAdjacentHTML",
        r"document\.write",
        r"\beval\(",
        r"new Function",
        r"https?://(?!www\.w3\.org)",
    ],
)
def test_own_scripts_make_no_markup_from_texts_and_name_no_other_server(forbidden: str) -> None:
    own = [path for path in scripts() if path.parent != VENDOR]
    assert len(own) > 10
    assert [path.name for path in own if re.search(forbidden, path.read_text())] == []


def test_index_has_no_inline_script_or_style() -> None:
    index = (Path(STATIC) / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", index) == []
    for name in re.findall(r'"/assets/([^"]+)"', index):
        assert (Path(STATIC) / name).is_file(), name


def test_every_vendored_file_is_in_the_manifest_with_its_license() -> None:
    listed = {entry["file"]: entry for entry in entries()}
    assert set(listed) == {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    for entry in listed.values():
        assert sha256((VENDOR / entry["file"]).read_bytes()) == entry["sha256"], entry["file"]
        assert entry["license"] in _LICENSES
        assert (VENDOR / entry["license_file"]).stat().st_size > 500


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["file"])
def test_vendored_file_is_the_one_of_npm(entry: dict[str, Any]) -> None:
    package = fetch(entry["package"], entry["version"])
    assert json.loads(package["package.json"])["license"] == entry["license"]
    assert sha256(package[entry["path"]]) == entry["npm_sha256"]
    assert vendored(entry, package[entry["path"]]) == (VENDOR / entry["file"]).read_bytes()
    assert package["LICENSE"] == (VENDOR / entry["license_file"]).read_bytes()
