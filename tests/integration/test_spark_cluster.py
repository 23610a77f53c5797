"""On a real cluster, whose executors know nothing of the driver's directories: Tidegate, the program's modules, its files, archives
and packages reach them, and what functions log stands in the executors' logs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.standalone import SITE, Cluster, bare_python, cluster

PROGRAM = """\
import logging
import os

import neighbour
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

class Look(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        with open(runtime_context.get_distributed_cache().get_file("words")) as words:
            self.word = words.read().strip()

    def process_element(self, value, ctx):
        import added
        import needed
        import tidegate
        with open("env/data.txt") as data:
            archived = data.read().strip()
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        logging.getLogger("job").info("seen %s", value)
        zipped = ".zip" in tidegate.__file__
        yield f"{neighbour.doubled(value)} {count} {self.word} {added.value} {needed.value} {archived} {zipped}"

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.add_python_file("added.py")
env.add_python_archive("archive.zip", "env")
env.set_python_requirements("requirements.txt", "packages")
env.register_cached_file("words.txt", "words")
os.chdir("/")
numbers = env.from_collection(list(range(6)), Types.LONG())
for line in sorted(numbers.key_by(lambda x: x % 2, Types.LONG()).process(Look(), Types.STRING()).execute_and_collect("seen")):
    print(line)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The directory of the program, with everything it names."""
    place = tmp_path / "program"
    (place / "packages").mkdir(parents=True)
    (place / "job.py").write_text(PROGRAM)
    (place / "neighbour.py").write_text("from pyflink.common import Row\ndef doubled(x):\n    return Row(x * 2)[0]\n")
    (place / "added.py").write_text("value = 'added'\n")
    (place / "words.txt").write_text("tide\n")
    (place / "requirements.txt").write_text("needed==1.0\n")
    with zipfile.ZipFile(place / "archive.zip", "w") as zipped:
        zipped.writestr("data.txt", "archived\n")
    with zipfile.ZipFile(place / "packages" / "needed-1.0-py3-none-any.whl", "w") as zipped:
        zipped.writestr("needed.py", "value = 'needed'\n")
        zipped.writestr("needed-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: needed\nVersion: 1.0\n")
        zipped.writestr("needed-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr("needed-1.0.dist-info/RECORD", "")
    return place


def run(program: Path, tmp_path: Path, python: str, *options: str) -> list[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": python, "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink", *options, "job.py"]
    done = subprocess.run(
        command, cwd=program, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("\tat "))
    return [*done.stdout.splitlines(), *(line for line in done.stderr.splitlines() if " INFO job " in line)]


def expected(zipped: bool) -> list[str]:
    return sorted(f"{x * 2} {x // 2 + 1} tide added needed archived {zipped}" for x in range(6))


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as started:
        yield started


STATE = """\
import sys

from pyspark.sql import SparkSession

from tidegate.common import Types
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state_reader import SavepointReader
from tidegate.state_writer import SavepointWriter

if __name__ == "__main__":
    master, directory = sys.argv[1:]
    builder = SparkSession.builder.master(master).config("spark.executor.memory", "512m").config("spark.ui.enabled", False)
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    count = ValueStateDescriptor("count", Types.LONG())
    rows = spark.createDataFrame([(f"k{n}", n) for n in range(1000)], "key string, value long").repartition(4)
    written = SavepointWriter.new().with_keyed_state("counts", count, rows, key_type=Types.STRING()).write(f"{directory}/one")
    frame = SavepointReader(written).dataframe(spark, "counts", "count")
    doubled = frame.selectExpr("key", "value * 2 as value").where("value < 1000")
    changed = SavepointWriter.from_existing(written).with_keyed_state("counts", "count", doubled).write(f"{directory}/two")
    again = SavepointReader(changed).dataframe(spark, "counts", "count")
    print(frame.count(), *again.selectExpr("count(*)", "sum(value)", "max(value)").first())
    spark.stop()
"""


def test_state_as_dataframes_where_executors_have_no_tidegate(standalone: Cluster, tmp_path: Path) -> None:
    """Read and written by tasks of a cluster."""
    (tmp_path / "state.py").write_text(STATE)
    environment = {**os.environ, "PYSPARK_PYTHON": bare_python(), "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "state.py", standalone.master, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.split() == ["1000", "500", str(2 * sum(range(500))), "998"]


def test_a_cluster_has_what_the_program_has(standalone: Cluster, program: Path, tmp_path: Path) -> None:
    keys = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
    }
    options = [f"-D{key}={value}" for key, value in keys.items()]
    printed = run(program, tmp_path, bare_python(), "--master", standalone.master, *options)
    assert printed == expected(zipped=True)
    logged = [line for line in standalone.printed().splitlines() if "] seen " in line]
    assert sorted(line.rpartition(" ")[2] for line in logged) == [str(x) for x in range(6)]
    assert all(" INFO job [seen: " in line and "/2)] seen " in line for line in logged), logged


def test_executors_that_lack_what_tidegate_depends_on_are_named_before_the_job_starts(tmp_path: Path) -> None:
    site = tmp_path / "only-pyspark"
    site.mkdir()
    for package in ("pyspark", "py4j"):
        (site / package).symlink_to(SITE / package)
    (tmp_path / "job.py").write_text(
        "from tidegate.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).print()\n"
        "env.execute()\n"
    )
    environment = {**os.environ, "PYSPARK_PYTHON": bare_python(), "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    local = ["-Dspark.driver.host=127.0.0.1", "-Dspark.driver.bindAddress=127.0.0.1", "-Dspark.executor.memory=512m"]
    with cluster(tmp_path, workers=1, site=site) as bare:
        command = [sys.executable, "-m", "tidegate.cli", "run", *local, "--master", bare.master, "job.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
        )
    assert done.returncode == 1, done.stderr
    assert "found: An executor lacks packages that Tidegate depends on\n" in done.stderr
    assert f"host {os.uname().nodename}, Python {bare_python()}" in done.stderr
    assert re.search(r"found: no (cloudpickle, )?lmdb, msgspec, numpy, (pyyaml, )?xxhash\n", done.stderr), done.stderr
    assert "Traceback" not in done.stderr and "TaskSetManager" not in done.stderr


def test_a_local_master_too(program: Path, tmp_path: Path) -> None:
    printed = run(program, tmp_path, sys.executable, "--master", "local[2,4]")
    assert printed[:6] == expected(zipped=False)
    assert sorted(line.rpartition("seen ")[2] for line in printed[6:]) == [str(x) for x in range(6)]


MARKED = """\
import os
from tidegate.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection([1]).map(lambda _: os.environ.get("MARK")).print()
env.execute()
"""


@pytest.mark.parametrize("key", ["python.executable", "spark.pyspark.python"])
def test_the_key_for_the_python_of_workers_wins_over_the_variable(tmp_path: Path, key: str) -> None:
    (tmp_path / "job.py").write_text(MARKED)
    (tmp_path / "python").write_text(f'#!/bin/sh\nMARK=yes exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "tidegate.cli",
        "run",
        "--master",
        "local[1]",
        f"-D{key}={tmp_path}/python",
        "job.py",
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["yes"]
