"""``tidegate init``: what it makes, and what it refuses. tests/integration/test_spark_projects.py runs a project."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.init import FILES
from tidegate.cli.main import app
from tidegate.cli.outcome import ExitCode
from tidegate.common.global_configuration import read_yaml


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["init", *arguments])
    return done.exit_code, done.output


def test_a_project_has_a_job_a_test_a_configuration_and_a_makefile(tmp_path: Path) -> None:
    code, printed = init("shop-1")
    assert code == 0 and "next: cd shop-1 && pip install -r requirements.txt && make test" in printed
    made = {str(path.relative_to(tmp_path / "shop-1")) for path in (tmp_path / "shop-1").rglob("*") if path.is_file()}
    assert made == set(FILES)
    texts = {file: (tmp_path / "shop-1" / file).read_text() for file in FILES}
    assert not [file for file, text in texts.items() if "@NAME@" in text]
    assert 'environment.execute("shop-1")' in texts["job.py"]
    compile(texts["job.py"], "job.py", "exec")
    assert read_yaml(tmp_path / "shop-1" / "conf" / "config.yaml")["tidegate.require-guarantee"] == "exactly-once"


def test_an_empty_directory_is_used_and_json_lists_the_files(tmp_path: Path) -> None:
    (tmp_path / "deep" / "shop").mkdir(parents=True)
    code, printed = init("deep/shop", "--json")
    assert code == 0 and json.loads(printed) == {"directory": "deep/shop", "files": list(FILES)}


def test_a_directory_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("mine")
    code, printed = init("shop")
    assert code == ExitCode.BAD_PROGRAM
    assert "The directory of a new project is not empty\n  where: shop\n  found: mine.txt\n  cure: choose" in printed
    assert os.listdir(tmp_path / "shop") == ["mine.txt"]


def test_a_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("")
    code, printed = init("shop")
    assert code == ExitCode.BAD_PROGRAM and "The path of a new project is a file" in printed


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, printed = init("file/shop")
    assert code == ExitCode.BAD_PROGRAM and "The project cannot be written" in printed


@pytest.mark.parametrize("name", ["a b", "1st", "sh;op", "x" + chr(0x2028)])
def test_a_name_that_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    code, printed = init(name)
    assert code == ExitCode.BAD_PROGRAM and "letters, digits, '-' and '_'" in printed
    assert os.listdir(tmp_path) == []
