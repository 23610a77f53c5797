"""Every tutorial shows the program that the tests run, and the program prints what its page says; here without Spark."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.simulation.executor import TARGET
from tests.unit.docs.tutorials import FOLDER, PAGE_OF, PAGES, ROOT, promised, results
from tidegate.cli.script import run_script
from tidegate.common.global_configuration import set_dynamic_properties


def test_every_page_shows_its_program_as_it_is() -> None:
    copied = runpy.run_path(str(ROOT / "scripts" / "copy_programs.py"))
    for page, text in copied["pages"]().items():
        assert page.read_text() == text, "run: python scripts/copy_programs.py"
    shown = {path: page.name for page in PAGES.glob("*.md") for path in copied["programs"](page)}
    assert shown == {FOLDER / program: page for program, page in PAGE_OF.items()}
    assert set(shown) == set(FOLDER.glob("*.py"))


@pytest.mark.parametrize("program", ["fraud.py", "sessions.py", "late_sensors.py", "enrichment.py"])
def test_the_program_prints_what_its_page_says(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _simulate(tmp_path)
    run_script(str(FOLDER / program), [str(tmp_path / "out")], pyflink=False)
    assert results(capsys.readouterr().out) == promised(program)


def test_the_program_for_a_cluster_writes_what_its_page_says(tmp_path: Path) -> None:
    _simulate(tmp_path)
    run_script(str(FOLDER / "on_a_cluster.py"), [str(tmp_path)], pyflink=False)
    written = "".join(part.read_text() for part in (tmp_path / "counts").iterdir())
    assert results(written) == promised("on_a_cluster.py")


def _simulate(directory: Path) -> None:
    set_dynamic_properties(
        {
            "execution.target": TARGET,
            "execution.checkpointing.dir": f"{directory}/checkpoints",
            "tidegate.state.local-dir": str(directory),
            "restart-strategy.type": "none",
        }
    )
