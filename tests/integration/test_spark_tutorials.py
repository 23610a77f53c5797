"""The tutorials on Spark, as a reader starts them. One is quick enough for every run of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import standalone
from tests.unit.docs.tutorials import FOLDER, promised, results

SLOW = ["sessions.py", "late_sensors.py", "enrichment.py"]


def tidegate(*arguments: object, cwd: Path, python: str = sys.executable) -> str:
    """``python``: of the executors."""
    command = [sys.executable, "-m", "tidegate.cli", *map(str, arguments)]
    environment = {**os.environ, "PYSPARK_PYTHON": python}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("program", ["fraud.py", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_program_prints_what_its_page_says(program: str, tmp_path: Path) -> None:
    assert results(tidegate("run", FOLDER / program, *[tmp_path / "out"][: program in SLOW], cwd=tmp_path)) == promised(
        program
    )


@pytest.mark.slow
def test_the_first_cluster_counts_and_continues_with_four_subtasks(tmp_path: Path) -> None:
    # the workers of this cluster have half a gigabyte, and the driver may have a name that its host does not resolve
    small = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    program, python = FOLDER / "on_a_cluster.py", standalone.bare_python()
    with standalone.cluster(tmp_path) as cluster:
        options = [*(f"-D{key}={value}" for key, value in small.items()), "--master", cluster.master]
        tidegate("run", *options, "-p", "2", program, tmp_path / "short", cwd=tmp_path, python=python)
        assert results(written(tmp_path / "short")) == promised("on_a_cluster.py")

        long = [program, tmp_path / "long", 20_000_000]
        job = tidegate("run", "-d", "--json", *options, "-p", "2", *long, cwd=tmp_path, python=python)
        stopped = tidegate("stop", "-p", tmp_path / "savepoints", json.loads(job)["job_id"], cwd=tmp_path)
        savepoint = stopped.split()[-1]
        assert written(tmp_path / "long") == "", "the job was stopped in the middle"
        tidegate("run", *options, "-p", "4", "-s", savepoint, *long, cwd=tmp_path, python=python)
        assert results(written(tmp_path / "long")) == [f"{digit} 2000000" for digit in range(10)]


def written(directory: Path) -> str:
    return "".join(part.read_text() for part in (directory / "counts").glob("part-*"))
