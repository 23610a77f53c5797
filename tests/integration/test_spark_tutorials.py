"""The tutorials on Spark, as a reader starts them. One is quick enough for every run of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import standalone
from tests.unit.docs.tutorials import FOLDER, promised, results

SLOW = ["sessions.py", "late_sensors.py", "enrichment.py"]


def started(*arguments: object, cwd: Path, python: str = sys.executable) -> str:
    """``python``: of the executors."""
    command = [sys.executable, "-m", "tidegate.cli", "run", *map(str, arguments)]
    environment = {**os.environ, "PYSPARK_PYTHON": python}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("program", ["fraud.py", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_program_prints_what_its_page_says(program: str, tmp_path: Path) -> None:
    assert results(started(FOLDER / program, *[tmp_path / "out"][: program in SLOW], cwd=tmp_path)) == promised(program)


@pytest.mark.slow
def test_the_first_cluster_counts_and_continues_with_four_subtasks(tmp_path: Path) -> None:
    # the workers of this cluster have half a gigabyte, and the driver may have a name that its host does not resolve
    small = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    options = [f"-D{key}={value}" for key, value in small.items()]
    program, python = FOLDER / "on_a_cluster.py", standalone.bare_python()
    with standalone.cluster(tmp_path) as cluster:
        options += ["--master", cluster.master]
        started(*options, "-Dtidegate.job-id=first", "-p", "2", program, tmp_path, cwd=tmp_path, python=python)
        written = "".join(part.read_text() for part in (tmp_path / "counts").iterdir())
        assert results(written) == promised("on_a_cluster.py")
        latest = max((tmp_path / "checkpoints" / "first").glob("chk-*"), key=lambda path: int(path.name[4:]))
        started(*options, "-p", "4", "-s", latest, program, tmp_path, cwd=tmp_path, python=python)
        again = "".join(part.read_text() for part in (tmp_path / "counts").iterdir())
        assert again == written, "a finished source is not read again, with any parallelism"
