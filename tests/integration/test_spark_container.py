"""What a container of a cluster gets, run as a container runs it: the archive, and a Python with packages only."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

from tests.clusters.standalone import SITE, bare_python
from tidegate.base.files import Files
from tidegate.control.place import job_at
from tidegate.control.printed import Printed
from tidegate.spark import driver_main
from tidegate.spark.submission import Job, make_archive

PROGRAM = """\
from beside import plus
from tidegate.datastream import StreamExecutionEnvironment
for number in range(2):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.from_collection([1]).map(plus).print()
    env.execute("told")
"""


def test_the_archive_runs_and_a_second_job_with_its_id_is_refused(tmp_path: Path) -> None:
    program, container = tmp_path / "program", tmp_path / "container"
    program.mkdir()
    (program / "job.py").write_text(PROGRAM)
    (program / "beside.py").write_text("def plus(value):\n    return value + 1\n")
    place = f"{tmp_path}/jobs/told"
    keys = {
        "tidegate.job-id": "told",
        "execution.checkpointing.dir": f"{tmp_path}/jobs",
        "execution.checkpointing.interval": "1s",
    }
    run = "tidegate.cli.on_cluster:run"
    job = Job(str(program / "job.py"), [], keys, launch="l1", place=place, token="t" * 43, run=run)
    archive = make_archive(job, keys)
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(container / driver_main.PLACE)
    archive.unlink()
    kept = {key: os.environ[key] for key in ("PATH", "JAVA_HOME") if key in os.environ}
    environment = {
        **kept,
        "PYTHONPATH": str(SITE),
        "PYSPARK_PYTHON": bare_python(),
        "TIDEGATE_MASTER": "local[1,4]",
        "LOCAL_DIRS": str(tmp_path / "local"),
        "CONTAINER_ID": "container_1700000000000_0001_01_000001",
    }
    command = [bare_python(), driver_main.__file__]
    done = subprocess.run(command, cwd=container, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    assert "A program in a container of a cluster starts one job" in done.stderr
    record = job_at(place)
    assert (record.state, record.application, record.launch) == ("FINISHED", "application_1700000000000_0001", "l1")
    printed = b"".join(Printed(Files(place), "l1").rest()).decode()
    assert "2" in printed.splitlines() and "starts one job" in printed
    assert not any("t" * 43 in path.read_text(errors="replace") for path in Path(place).rglob("*") if path.is_file())
