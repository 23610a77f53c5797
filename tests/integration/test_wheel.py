"""A wheel, installed into an empty environment far from the repository, runs the first program of the README."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.snippets import blocks, keeps, promised_outputs

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


def run(*command: object, cwd: Path, **more: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")} | more
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=1_500, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--installer", "uv", "--outdir", place, ROOT, cwd=place)
    (built,) = place.glob("*.whl")
    return built


def test_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert metadata["Name"] == "tidegate" and metadata["Requires-Python"] == "<3.15,>=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown" and "# Tidegate" in metadata.get_payload()
    assert "Programming Language :: Python :: 3.14" in metadata.get_all("Classifier", [])
    assert any("https://spark.apache.org/" in entry for entry in metadata.get_all("Project-URL", []))
    assert {
        "tidegate/py.typed",
        "tidegate/pyflink_names.json",
        "tidegate/spark/log4j2.properties",
        "tidegate/cli/project/job.py.txt",
    } <= set(names)
    assert not [name for name in names if not name.startswith(("tidegate/", "tidegate-"))]


def test_the_first_program_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    run(UV, "--quiet", "venv", "--python", sys.executable, "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    run(UV, "--quiet", "pip", "install", "--python", python, wheel, cwd=tmp_path)
    program = next(text for language, text in blocks(ROOT / "README.md") if language == "python")
    (tmp_path / "first.py").write_text(program)
    for command in ([python], [python.with_name("tidegate"), "run"]):
        printed = run(*command, "first.py", cwd=tmp_path).splitlines()
        promised = promised_outputs(ROOT / "README.md")[0]
        assert promised is not None and keeps(promised, printed), printed


def test_a_stranger_installs_examines_makes_tests_runs_and_changes_a_project(wheel: Path, tmp_path: Path) -> None:
    """The commands of docs/install.md, in an environment that has never seen the repository."""
    run(UV, "--quiet", "venv", "--python", sys.executable, "empty", cwd=tmp_path)
    tools = tmp_path / "empty" / "bin"
    run(UV, "--quiet", "pip", "install", "--python", tools / "python", wheel, "pytest", cwd=tmp_path)
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}

    examined = json.loads(run("tidegate", "doctor", "--json", cwd=tmp_path, **path))
    assert examined["problems"] == 0
    missing = [finding["check"] for finding in examined["findings"] if finding["found"] == "not installed"]
    assert "extra kafka" in missing and "extra formats" in missing, "the wheel brings no extra"

    run("tidegate", "init", "shop", cwd=tmp_path, **path)
    shop = tmp_path / "shop"
    assert "2 passed" in run("make", "test", f"PYTHON={tools / 'python'}", cwd=shop, **path)
    assert "bob,75" in run("make", "run", cwd=shop, **path)

    # another threshold is another program: its test says so, and state and output of the earlier run stay
    (shop / "job.py").write_text((shop / "job.py").read_text().replace("amount > 2 * before", "amount > 20 * before"))
    with pytest.raises(AssertionError, match="1 failed, 1 passed"):
        run("make", "test", f"PYTHON={tools / 'python'}", cwd=shop, **path)
    (shop / "data" / "more.csv").write_text("eve,1000\n")
    run("make", "clean", cwd=shop, **path)
    again = run("make", "run", cwd=shop, **path).splitlines()
    assert "eve,1008" in again and "eve ordered for 1000, more than twice of all before" in again
    assert not [line for line in again if line.startswith("bob ordered")]
