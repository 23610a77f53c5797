"""A project of ``tidegate init``: its own test passes, and its job runs, as the README of the project says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_test_of_a_new_project_passes_and_its_job_runs_once(tmp_path: Path) -> None:
    tools = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)

    def run(*command: str, cwd: Path) -> str:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run("tidegate", "init", "shop", cwd=tmp_path)
    shop = tmp_path / "shop"
    assert "3 passed" in run("make", "test", cwd=shop)
    totals = ["ada,30", "ada,42", "ada,43", "bob,5", "bob,75", "eve,8"]
    alert = "bob ordered for 70, more than twice of all before"
    for _ in range(2):  # a second run of the finished job adds nothing
        printed = run("make", "run", cwd=shop).splitlines()
        assert sorted(line for line in printed if "," in line and "cat" not in line and "-D" not in line) == sorted(
            [*totals, alert]
        )
    run("make", "explain", cwd=shop)
