"""What is wrong with a source, and what a job leaves in the directory for temporary files: looked at from outside the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = """
import sys
from tidegate.common import WatermarkStrategy
from tidegate.base.errors import ConfigurationError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.enable_checkpointing(100)
source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), sys.argv[1] + "/missing").build()
env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").print()
try:
    env.execute()
except ConfigurationError as error:
    print(error)
from pyspark import SparkContext
print("context:", SparkContext._active_spark_context, SparkContext._gateway)
"""

CHECKPOINTED = """
from tidegate.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.enable_checkpointing(100)
env.from_collection([1, 2, 3]).print()
env.execute()
"""


def run(program: str, home: Path) -> str:
    temporary = home / "tmp"
    temporary.mkdir()
    (home / "job.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(home / "job.py"), str(home)],
        env={**os.environ, "TMPDIR": str(temporary), "TIDEGATE_MASTER": "local[1,4]"},
        capture_output=True,
        text=True,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    left = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if "hsperf" not in str(path)]
    assert left == [], "left in the directory for temporary files"
    return done.stdout


def test_a_missing_path_is_refused_before_spark_starts(tmp_path: Path) -> None:
    text = run(MISSING, tmp_path)
    assert "A path of a file source does not exist" in text
    assert f"no file or directory {tmp_path}/missing" in text
    assert "create it before the job starts, or correct the path" in text
    assert "context: None None" in text


@pytest.mark.parametrize("interval", [True, False])
def test_a_finished_job_leaves_no_temporary_files(tmp_path: Path, interval: bool) -> None:
    program = CHECKPOINTED if interval else CHECKPOINTED.replace("env.enable_checkpointing(100)\n", "")
    assert sorted(run(program, tmp_path).split()) == ["1", "2", "3"]
