"""Random programs on real Spark give what their models say (tests/compat/random_programs)."""

from __future__ import annotations

import os
import subprocess
import sys


def test_random_programs_in_one_spark_job() -> None:
    environment = {**os.environ, "DIFFERENTIAL_API": "tidegate"}
    command = [sys.executable, "-m", "tests.compat.random_programs.run", "5000", "5007", "--together", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert "programs 5000 to 5007 on tidegate: 0 differ from the model" in done.stdout
