"""A wheel, installed into an empty environment far from the repository, runs the first program of the README."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import tidegate
from tests.integration.snippets import blocks, keeps, promised_outputs

ROOT = Path(__file__).parents[2]
NEWER = "0.1.1"
UV = str(Path(sys.executable).with_name("uv"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


def run(*command: object, cwd: Path, **more: str) -> str:
    code, printed, errors = ran(*command, cwd=cwd, **more)
    assert code == 0, f"{command}\n{printed[-2000:]}\n{errors[-4000:]}"
    return printed


def ran(*command: object, cwd: Path, **more: str) -> tuple[int, str, str]:
    """Run it, and return its exit code, what it prints and what it reports."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")} | more
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=1_500, check=False
    )
    return done.returncode, done.stdout, done.stderr


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


class Walk:
    """A person with a terminal and docs/install.md. Every command is in the page; the time of each step is printed at the end."""

    def __init__(self, tools: Path, home: Path) -> None:
        self.page = (ROOT / "docs" / "install.md").read_text()
        self.environment = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "TIDEGATE_HOME": str(home)}
        self.steps: list[tuple[str, float]] = []

    def does(self, documented: str, *instead: tuple[str, object], cwd: Path, code: int = 0) -> str:
        """Run a command of the page. ``instead``: what stands for a placeholder of the page."""
        assert documented in self.page, f"docs/install.md has no {documented!r}"
        command = documented.split()
        for placeholder, value in instead:
            command = [word.replace(placeholder, str(value)) for word in command]
        started = time.monotonic()
        try:
            found, printed, errors = ran(*command, cwd=cwd, **self.environment)
        finally:
            self.steps.append((documented, time.monotonic() - started))
        assert found == code, f"{command}\n{printed[-2000:]}\n{errors[-4000:]}"
        return printed

    def sees(self, place: Path, wanted: set[str]) -> None:
        """Wait until these lines are in the files below the directory, each of them once."""
        started = time.monotonic()
        while True:
            found = self.lines(place)
            if wanted <= set(found):
                break
            assert time.monotonic() - started < 120, f"{place} has {found}"
            time.sleep(0.2)
        assert len(found) == len(set(found)), found
        self.steps.append((f"{len(wanted)} more lines in {place.name}", time.monotonic() - started))

    def lines(self, place: Path) -> list[str]:
        return sorted(line for part in place.rglob("part-*") for line in part.read_text().splitlines())

    def job(self, cwd: Path) -> str:
        """The id of the one job that runs."""
        assert "tidegate list" in self.page
        (job,) = json.loads(run("tidegate", "list", "--json", cwd=cwd, **self.environment))
        return str(job["job_id"])

    def change(self, file: Path, before: str, after: str) -> None:
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def newer_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sources as the next version."""
    place = tmp_path_factory.mktemp("newer")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / name)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for path in (place / "pyproject.toml", place / "src" / "tidegate" / "__init__.py"):
        assert f'"{tidegate.__version__}"' in path.read_text()
        path.write_text(path.read_text().replace(f'"{tidegate.__version__}"', f'"{NEWER}"'))
    run(sys.executable, "-m", "build", "--wheel", "--installer", "uv", "--outdir", place, place, cwd=place)
    (built,) = place.glob("*.whl")
    return built


def test_a_stranger_installs_tests_runs_changes_and_upgrades_a_project(
    wheel: Path, newer_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/install.md, in an environment that has never seen the repository. The times are printed."""
    tools = tmp_path / "empty" / "bin"
    walk = Walk(tools, tmp_path / "home")
    started = time.monotonic()
    run(UV, "--quiet", "venv", "--seed", "--python", sys.executable, "empty", cwd=tmp_path)
    run(UV, "--quiet", "pip", "install", "--python", tools / "python", wheel, cwd=tmp_path)
    walk.steps.append(("venv and pip install (by uv)", time.monotonic() - started))

    examined = json.loads(run("tidegate", "doctor", "--json", cwd=tmp_path, **walk.environment))
    assert examined["problems"] == 0
    missing = [finding["check"] for finding in examined["findings"] if finding["found"] == "not installed"]
    assert "extra kafka" in missing and "extra formats" in missing, "the wheel brings no extra"
    walk.does("tidegate doctor", cwd=tmp_path)

    walk.does("tidegate init shop", cwd=tmp_path)
    shop = tmp_path / "shop"
    walk.does("pip install -r requirements.txt", cwd=shop)
    assert "3 passed" in walk.does("make test", cwd=shop)
    assert "bob,75" in walk.does("make run", cwd=shop)

    # in the background: the job waits for more files
    walk.does("make clean", cwd=shop)
    walk.does("make start", cwd=shop)
    try:
        sample = {"ada,30", "bob,5", "ada,42", "eve,8", "bob,75", "ada,43"}
        walk.sees(shop / "out" / "totals", sample)
        first = walk.job(shop)
        kept = walk.does("tidegate savepoint JOB savepoints", ("JOB", first), cwd=shop).split()[-1]
        more(shop, "eve,1000")
        walk.sees(shop / "out" / "totals", sample | {"eve,1008"})
        assert "eve ordered for 1000, more than twice of all before" in walk.lines(shop / "out" / "large")
        last = walk.does("tidegate stop -p savepoints JOB", ("JOB", first), cwd=shop).split()[-1]
        assert Path(kept).is_dir() and Path(last).is_dir() and kept != last

        # another threshold is another program: its test says so, and state and output of the first job stay
        walk.change(shop / "job.py", "amount > 2 * before", "amount > 20 * before")
        assert "1 failed, 2 passed" in walk.does("make test", cwd=shop, code=2)
        walk.change(shop / "tests" / "test_job.py", "bob,70", "bob,700")
        walk.change(shop / "tests" / "test_job.py", "bob,75", "bob,705")
        walk.change(shop / "tests" / "test_job.py", "ordered for 70", "ordered for 700")
        assert "3 passed" in walk.does("make test", cwd=shop)
        walk.does("make start FROM=savepoints/savepoint-...", ("savepoints/savepoint-...", last), cwd=shop)
        more(shop, "bob,1000")
        walk.sees(shop / "out" / "totals", sample | {"eve,1008", "bob,1075"})
        second = walk.job(shop)

        # a newer Tidegate restores the savepoint of the older one
        last = walk.does("tidegate stop -p savepoints JOB", ("JOB", second), cwd=shop).split()[-1]
        walk.does(
            "pip install --upgrade tidegate-0.1.1-py3-none-any.whl",
            ("tidegate-0.1.1-py3-none-any.whl", newer_wheel),
            cwd=shop,
        )
        assert NEWER in run("tidegate", "--version", cwd=shop, **walk.environment)
        walk.does("make start FROM=savepoints/savepoint-...", ("savepoints/savepoint-...", last), cwd=shop)
        more(shop, "ada,7")
        walk.sees(shop / "out" / "totals", sample | {"eve,1008", "bob,1075", "ada,50"})
        large = walk.lines(shop / "out" / "large")
        assert large == [
            "bob ordered for 70, more than twice of all before",
            "eve ordered for 1000, more than twice of all before",
        ]
    finally:
        for job in json.loads(run("tidegate", "list", "--json", cwd=shop, **walk.environment)):
            run("tidegate", "cancel", job["job_id"], cwd=shop, **walk.environment)
    with capsys.disabled():
        print("\n" + "\n".join(f"{seconds:7.1f} s  {step}" for step, seconds in walk.steps))
        print(f"{sum(seconds for _, seconds in walk.steps):7.1f} s  in all")
    assert len(walk.steps) > 15


def more(shop: Path, line: str) -> None:
    """A file must be complete when the job finds it."""
    (shop / "new.csv").write_text(f"{line}\n")
    (shop / "new.csv").rename(shop / "data" / f"{line.replace(',', '-')}.csv")
