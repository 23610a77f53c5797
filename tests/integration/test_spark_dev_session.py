"""A development session with Spark, which stays between two runs. tests/unit/cli/test_dev_session.py has all else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TIDEGATE = [sys.executable, "-m", "tidegate.cli", "dev"]
PROGRAM = """\
import os
import sys

import beside
from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
numbers = env.from_collection([1, 2, 3], Types.LONG())
with numbers.key_by(lambda n: n % 2).map(lambda n: beside.times(n), Types.LONG()).execute_and_collect() as results:
    print(sorted(results), sys.argv[1:], os.environ["CITY"], flush=True)
from pyspark import SparkContext
print("spark", SparkContext.getOrCreate().applicationId, os.getpid())
sys.exit(7 if "fail" in sys.argv else 0)
"""
ENDLESS = """\
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment()
source = DataGeneratorSource(lambda index: index, records_per_second=10)
env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).print()
env.execute("endless")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("def times(n):\n    return n * 10\n")
    (tmp_path / "endless.py").write_text(ENDLESS)
    return tmp_path


@pytest.fixture
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("h")
    return {**os.environ, "TIDEGATE_HOME": str(home), "CITY": "Rome", "TIDEGATE_MASTER": "local[2,4]"}


@pytest.fixture
def session(place: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*TIDEGATE, "session"], cwd="/", env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "run programs with tidegate dev run" in process.stdout.readline()
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def run(place: Path, variables: dict[str, str], *arguments: str, code: int = 0) -> list[str]:
    done = subprocess.run(
        [*TIDEGATE, "run", *arguments],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.usefixtures("session")
def test_spark_stays_and_every_edit_counts(place: Path, variables: dict[str, str]) -> None:
    first = run(place, variables, "job.py", "a")
    assert first[0] == "[10, 20, 30] ['a'] Rome"
    again = run(place, {**variables, "CITY": "Oslo"}, "job.py", "fail", code=7)
    assert again == ["[10, 20, 30] ['fail'] Oslo", first[1]], "the same Spark context and process"

    (place / "job.py").write_text(PROGRAM.replace("[1, 2, 3]", "[5]"))
    assert run(place, variables, "job.py") == ["[50] [] Rome", first[1]], "an edited program needs no new Spark"

    (place / "beside.py").write_text("def times(n):\n    return n * 1_000\n")
    edited = run(place, variables, "job.py")
    assert edited[0] == "[5000] [] Rome", "workers have the edited module"
    assert edited[1] != first[1]

    broken = run(place, variables, "-Dparallelism.default=none", "job.py", code=10)
    assert any("'parallelism.default' must be" in line for line in broken)


def test_ctrl_c_ends_the_job_and_not_the_session(
    session: subprocess.Popen[str], place: Path, variables: dict[str, str]
) -> None:
    command = [*TIDEGATE, "run", "endless.py"]
    with subprocess.Popen(command, cwd=place, env=variables, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and client.stdout.readline().endswith("0\n")
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == 130
    assert session.poll() is None
    assert run(place, variables, "job.py")[0] == "[10, 20, 30] [] Rome"
