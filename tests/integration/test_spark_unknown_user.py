"""Spark for a user without an account, a home directory or a name, as in a container with any uid."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAM = """
from tidegate.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection([1]).map(lambda value: value + 1).print()
env.execute()
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs to become another user")
def test_job_of_an_unknown_user_without_home_runs_on_spark() -> None:
    """The user may read what root may, since the interpreter can be in root's home, but may write nowhere."""
    place = tempfile.mkdtemp()
    os.chmod(place, 0o777)
    Path(place, "job.py").write_text(PROGRAM)
    caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", *caps]
    clean = {key: value for key, value in os.environ.items() if key not in ("HOME", "USER", "TIDEGATE_HOME")}
    command = [*user, sys.executable, "-m", "tidegate.cli", "run", "--master", "local[1,4]", "job.py"]
    done = subprocess.run(
        command, cwd=place, env=clean | {"TMPDIR": place}, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    shutil.rmtree(place)
