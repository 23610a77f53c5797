"""What docs/releases.md and pyproject.toml promise is what the scripts test."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import tidegate
from tidegate.spark.pyspark_internals import TESTED

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "releases.md").read_text()


def test_the_tested_versions_of_spark_are_those_that_can_be_installed() -> None:
    versions = runpy.run_path(str(ROOT / "scripts" / "test_sparks.py"))["VERSIONS"]
    allowed = next(text for text in PROJECT["dependencies"] if text.startswith("pyspark"))
    major, minor = map(int, versions[-1].split("."))
    assert allowed == f"pyspark>={versions[0]},<{major}.{minor + 1}"
    assert versions == TESTED
    assert f"| Spark | {versions[0]} to {versions[-1]} | `make test-sparks` |" in PAGE


def test_the_tested_versions_of_python_are_those_that_can_be_installed() -> None:
    versions = runpy.run_path(str(ROOT / "scripts" / "test_pythons.py"))["VERSIONS"]
    assert PROJECT["requires-python"] == f">={versions[0]},<3.{int(versions[-1].split('.')[1]) + 1}"
    classified = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert tuple(classified) == versions
    assert f"| Python | {versions[0]} to {versions[-1]} | `make test-pythons` |" in PAGE


def test_every_extra_has_a_line_on_the_page_of_installing() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    shown = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert shown == set(PROJECT["optional-dependencies"])


def test_all_has_every_extra_of_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (listed,) = extras["all"]
    assert set(listed.removeprefix("tidegate[").removesuffix("]").split(",")) == set(extras) - {"all", "dev", "docs"}


def test_the_version_is_written_once_and_the_same() -> None:
    assert PROJECT["version"] == tidegate.__version__
    assert f"tidegate-{tidegate.__version__}-py3-none-any.whl" in (ROOT / "docs" / "install.md").read_text()
