"""The examples run and give what they promise, and so do the programs in README.md and docs/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.snippets import END, blocks, keeps, promised_outputs

ROOT = Path(__file__).parents[2]
QUIET = {"keyed_totals.py", "word_count.py"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(*arguments: object, cwd: Path) -> str:
    """What a program prints. Nothing else may be seen where there is no terminal: no banner of Spark's, no worker's last words."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stderr == "" or arguments[0].name not in QUIET, done.stderr  # type: ignore[attr-defined]
    return done.stdout


def test_keyed_totals_is_the_program_of_the_readme_and_prints_what_it_says(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "keyed_totals.py").read_text()
    shown = next(text for language, text in blocks(ROOT / "README.md") if language == "python")
    assert program.endswith(shown)
    printed = run(ROOT / "examples" / "keyed_totals.py", cwd=tmp_path).splitlines()
    promised = promised_outputs(ROOT / "README.md")[0]
    assert promised is not None and keeps(promised, printed), printed


def test_word_count_counts_the_words_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("tide in, tide out\n")
    (tmp_path / "in" / "b.txt").write_text("Tide!\n")
    run(ROOT / "examples" / "word_count.py", tmp_path / "in", tmp_path / "out", cwd=tmp_path)
    lines = [line for part in (tmp_path / "out").iterdir() for line in part.read_text().splitlines()]
    assert sorted(lines) == ["in 1", "out 1", "tide 3"]


def test_two_phase_commit_has_every_order_once_although_the_job_failed(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "two_phase_commit.py", cwd=tmp_path)
    assert "6000 rows, 6000 different orders of 6000" in printed
    assert "0 rows left behind" in printed


def test_programs_of_the_pages_run_and_print_what_the_pages_say(tmp_path: Path) -> None:
    pages = [page for page in PAGES if any(language == "python" for language, _ in blocks(page))]
    parts = run(Path(__file__).with_name("snippets.py"), *pages, cwd=tmp_path).split(f"{END}\n")[:-1]
    promises = [(page, promised) for page in pages for promised in promised_outputs(page)]
    for (page, promised), printed in zip(promises, parts, strict=True):
        assert promised is None or keeps(promised, printed.splitlines()), (
            f"{page} promises {promised}, printed:\n{printed}"
        )


@pytest.mark.parametrize(
    ("promised", "printed", "kept"),
    [
        ("a b", "b a", True),
        ("a b", "a b c", False),
        ("a b", "a", False),
        ("... z", "a b z", True),
        ("... z", "z", True),
        ("... z", "a z b", False),
        ("a ... z", "a b z", True),
        ("a ... z", "b z", False),
    ],
)
def test_how_a_promise_is_compared(promised: str, printed: str, kept: bool) -> None:
    assert keeps(promised.split(), printed.split()) is kept


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
