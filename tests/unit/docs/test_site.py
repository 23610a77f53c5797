"""``make site``: strict, without dead links or anchors, without anything from another host, with the whole API and all versions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tidegate
from scripts import api_reference, build_site

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(600)


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        loads = tag in ("script", "img", "iframe", "source") or (tag == "link" and found.get("rel") != "canonical")
        if loads and (address := found.get("src") or found.get("href")):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all versions."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "scripts.build_site", "--site", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "WARNING" not in done.stderr, done.stderr[-6000:]
    return out


@pytest.fixture(scope="module")
def site(place: Path) -> Path:
    return place / tidegate.__version__


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown for any address
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            wanted = unquote(parts.fragment)
            known = pages[target].ids if target in pages else set()
            if not target.exists() or (wanted and target in pages and wanted not in known and wanted != "__codelineno"):
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    assert not dead, "\n".join(dead)
    assert sum(len(page.links) for page in pages.values()) > 5_000


def test_a_browser_loads_nothing_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    foreign = {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}
    assert foreign == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert "@import" not in styles and "url(http" not in styles and "url(//" not in styles


def test_every_public_name_has_an_anchor_and_no_private_name_has_one(site: Path, pages: dict[Path, Page]) -> None:
    for module, name in api_reference.home_of().values():
        ids = pages[(site / "api" / f"{module}.html").resolve()].ids
        assert f"{module}.{name}" in ids, f"{module}.{name} is not on its page"
    anchors = {anchor for path, page in pages.items() if path.parent.name == "api" for anchor in page.ids}
    assert "tidegate.datastream.connectors.kafka.KafkaSourceBuilder.set_topics" in anchors
    assert not {anchor for anchor in anchors if anchor.startswith("tidegate.") and "._" in anchor}
    assert not {anchor for anchor in anchors if anchor.startswith(("tidegate.operators", "tidegate.connectors"))}


def test_the_search_finds_connectors_formats_and_tutorials(site: Path) -> None:
    documents = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = {document["title"] for document in documents}
    assert {"KafkaSource", "PostgreSqlSink", "CsvReaderFormat", "Fraud detection with timers"} <= titles


def test_every_page_names_the_version_and_is_in_the_sidebar(site: Path, pages: dict[Path, Page]) -> None:
    front = (site / "index.html").resolve()
    linked = {
        (front.parent / urlsplit(link).path).resolve() for link in pages[front].links if not urlsplit(link).netloc
    }
    for path in pages:
        if path.name != "404.html":
            assert f"Tidegate {tidegate.__version__}: this site describes this version" in path.read_text()
            assert path in linked, f"{path.relative_to(site.resolve())} is not in the sidebar"


def test_a_version_is_built_beside_others_and_the_front_page_leads_to_the_newest(place: Path, tmp_path: Path) -> None:
    here = tidegate.__version__
    assert {path.name for path in place.iterdir()} == {here, "versions.json", "index.html"}
    wanted = [{"version": here, "title": here, "aliases": ["latest"]}]
    assert json.loads((place / "versions.json").read_text()) == wanted
    assert f'href="{here}/index.html"' in (place / "index.html").read_text()

    for name in ("0.0.9", "0.10.0", "0.9.1", "1.0.0rc1", "notes", "0.5"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name)
    (tmp_path / "0.5" / "index.html").unlink()  # a build that has failed
    build_site.list_versions(tmp_path)
    found = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in found] == ["1.0.0rc1", "0.10.0", "0.9.1", "0.0.9"]
    assert [entry["aliases"] for entry in found] == [["latest"], [], [], []]
    assert "url=1.0.0rc1/index.html" in (tmp_path / "index.html").read_text()


def test_a_page_names_its_list_of_versions_and_the_way_to_the_newest(site: Path) -> None:
    """What the script of the theme reads: tests/web/test_site_versions.py shows the selector in a browser."""
    for name in ("index.html", "tutorials/fraud.html"):
        text = (site / name).read_text()
        (settings,) = re.findall(r'<script id="__config" type="application/json">(.*?)</script>', text)
        up = "../" * name.count("/")
        assert json.loads(settings)["version"] == {"provider": "mike", "default": "latest"}
        assert json.loads(settings)["base"] == (up[:-1] or ".")
        assert f'<a href="{up or "./"}../index.html"><strong>Read those of the newest version' in text.replace(
            "././", "./"
        )
