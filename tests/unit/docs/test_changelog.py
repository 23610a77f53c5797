"""Fragments become a section of the changelog, and wrong fragments are named."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def changelog() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "changelog.py"))


@pytest.fixture
def repo(tmp_path: Path, changelog: dict[str, Any]) -> Path:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("how to")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n{changelog['MARK']}\n## 0.1.0 (2026-11-01)\n\n### Added\n\n- All.\n"
    )
    return tmp_path


def test_the_fragments_of_the_repository_are_right(changelog: dict[str, Any]) -> None:
    assert changelog["section"](changelog["fragments"](ROOT))
    assert changelog["MARK"] in (ROOT / "CHANGELOG.md").read_text()


def test_a_release_moves_fragments_to_the_top_in_the_order_of_kinds(repo: Path, changelog: dict[str, Any]) -> None:
    (repo / "changes" / "b.fixed.md").write_text("A window fires\nonce.\n")
    (repo / "changes" / "a.added.md").write_text("A sink.")
    (repo / "changes" / "c.removed.md").write_text("A key.")
    changelog["release"](repo, "0.2.0", "2027-01-31")
    text = (repo / "CHANGELOG.md").read_text()
    new = "## 0.2.0 (2027-01-31)\n\n### Removed\n\n- A key.\n\n### Added\n\n- A sink.\n\n### Fixed\n\n- A window fires once.\n"
    assert text == f"# Changelog\n\n{changelog['MARK']}\n{new}\n## 0.1.0 (2026-11-01)\n\n### Added\n\n- All.\n"
    assert [path.name for path in (repo / "changes").iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.md", "A.", "NAME.KIND.md"),
        ("x.better.md", "A.", "KIND one of security"),
        ("x.fixed.md", "- A list.", "plain sentences"),
        ("x.fixed.md", "no full stop", "full stop"),
    ],
)
def test_a_wrong_fragment_is_named(name: str, text: str, said: str, repo: Path, changelog: dict[str, Any]) -> None:
    (repo / "changes" / name).write_text(text)
    with pytest.raises(Exception, match=said) as refused:
        changelog["release"](repo, "0.2.0", "2027-01-31")
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("version", "date", "said"),
    [
        ("0.2", "2027-01-31", "for example"),
        ("0.2.0", "soon", "for example"),
        ("0.1.0", "2027-01-31", "a section of 0.1.0"),
    ],
)
def test_a_wrong_release_changes_nothing(
    version: str, date: str, said: str, repo: Path, changelog: dict[str, Any]
) -> None:
    (repo / "changes" / "a.added.md").write_text("A sink.")
    before = (repo / "CHANGELOG.md").read_text()
    with pytest.raises(Exception, match=said):
        changelog["release"](repo, version, date)
    assert (repo / "CHANGELOG.md").read_text() == before and (repo / "changes" / "a.added.md").exists()


def test_nothing_to_release(repo: Path, changelog: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="no fragment"):
        changelog["release"](repo, "0.2.0", "2027-01-31")
