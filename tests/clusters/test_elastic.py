"""Executors that come and go on a real standalone cluster: dynamic allocation, decommissioning, a lost shuffle service, excluded
hosts, another Python, two jobs with fair pools. The output is read from outside: nothing is lost, nothing is doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from scripts.test_pythons import environment, interpreter
from tests.clusters.standalone import Cluster, bare_python, cluster
from tests.clusters.yarn import assert_counted_exactly_once
from tests.waiting import eventually

PROGRAM = Path(__file__).parent / "programs" / "elastic.py"
PATIENCE_S = 240
pytestmark = pytest.mark.timeout(600)


class Driver:
    """``tidegate run`` in client mode with the program ``elastic.py``. What it prints is complete at its end."""

    def __init__(self, place: Path, master: str, keys: dict[str, Any], python: str, *arguments: object) -> None:
        self.output = place / "out"
        environment = {**os.environ, "PYSPARK_PYTHON": python, "TMPDIR": str(place)}
        environment.pop("PYTHONPATH", None)
        own = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": 1,
            "execution.checkpointing.dir": place / "checkpoints",
            "execution.checkpointing.interval": "500ms",
            "tidegate.round.max-records": 1_000,
        }
        options = [f"-D{key}={value}" for key, value in {**own, **keys}.items()]
        command = [sys.executable, "-m", "tidegate.cli", "run", "--master", master, *options, PROGRAM, self.output]
        self._log = place / "driver.err"
        self._said = self._log.open("w")
        self._process = subprocess.Popen(
            [*map(str, command), *map(str, arguments)],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def lines(self, job: int = 0) -> list[str]:
        """What a job has committed."""
        files = (path for path in sorted((self.output / str(job)).rglob("*")) if path.is_file())
        whole = [path for path in files if not path.name.startswith((".", "_"))]
        return [line for path in whole for line in path.read_text().splitlines()]

    def commits(self, what: str, job: int = 0) -> None:
        """Wait until the job has committed more than it has now."""
        before = len(self.lines(job))
        self.eventually(lambda: len(self.lines(job)) > before, f"output after {what}")

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            assert self._process.poll() is None, f"ended before {what}:\n{self.said()[-5000:]}"
            return condition()

        try:
            eventually(met, what, timeout=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()[-5000:]}") from None

    def finished(self, code: int = 0) -> list[dict[str, int]]:
        """Wait for the end, and return the figures of each job."""
        printed, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == code, self.said()[-5000:]
        return [json.loads(line) for line in printed.splitlines()]

    def said(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._said.close()


@contextmanager
def driver(place: Path, master: str, keys: dict[str, Any], *arguments: object, python: str = "") -> Iterator[Driver]:
    """Run the program with ``arguments`` after its first. Its end is the end of the context at the latest."""
    running = Driver(place, master, keys, python or bare_python(), *arguments)
    try:
        yield running
    finally:
        running.end()


def has_executors(spark: Cluster, count: int) -> bool:
    return len(spark.executors()) == count


@pytest.mark.slow
def test_dynamic_allocation_gives_each_job_the_executors_that_it_can_use(tmp_path: Path) -> None:
    """Jobs of parallelism 2, 1 and 2: the executor that the second does not need ends, and comes back for the third."""
    keys = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": 1,
        "spark.dynamicAllocation.maxExecutors": 2,
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
    }
    with cluster(tmp_path) as spark, driver(tmp_path, spark.master, keys, 6_000, 0.02, 2, 1, 2) as job:
        for number, count in enumerate((2, 1, 2)):
            job.commits("its start", number)
            job.eventually(partial(has_executors, spark, count), f"{count} executors for job {number}")
        figures = job.finished()
    assert [each["attempts"] for each in figures] == [1, 1, 1], "nobody noticed"
    for number in range(3):
        assert_counted_exactly_once(job.lines(number), 6_000)


@pytest.mark.slow
def test_job_continues_without_a_restart_when_a_host_is_decommissioned(tmp_path: Path) -> None:
    keys = {
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
    }
    with (
        cluster(tmp_path, settings={"spark.decommission.enabled": "true"}) as spark,
        driver(tmp_path, spark.master, keys, 20_000, 0.02, 2) as job,
    ):
        job.commits("the start")
        job.eventually(lambda: len(spark.executors()) == 2, "both executors")
        spark.decommission_worker(0)
        job.eventually(lambda: not spark.executors(0), "the executor of the decommissioned host ends")
        job.commits("the host is gone")
        [figures] = job.finished()
    assert figures["attempts"] == 1
    assert_counted_exactly_once(job.lines(), 20_000)


@pytest.mark.slow
def test_job_continues_when_the_external_shuffle_service_is_lost_and_comes_back(tmp_path: Path) -> None:
    with cluster(tmp_path) as spark:
        port = spark.start_shuffle_service()
        keys = {
            "spark.shuffle.service.enabled": "true",
            "spark.shuffle.service.port": port,
            "spark.shuffle.io.retryWait": "1s",  # not 5 s, for each of three tries in each of four attempts of a stage
        }
        with driver(tmp_path, spark.master, keys, 40_000, 0.02, 2) as job:
            job.commits("the start")
            spark.lose_shuffle_service()
            spark.kill_executors(0)
            missed = "Failed to connect to external shuffle server"
            job.eventually(lambda: missed in spark.printed(), "the next executor misses the service")
            spark.start_shuffle_service(port)
            job.commits("the service is there again")
            job.finished()
        assert_counted_exactly_once(job.lines(), 40_000)


@pytest.mark.slow
def test_host_whose_python_is_broken_is_excluded_and_the_job_runs_on_the_other(tmp_path: Path) -> None:
    keys = {"spark.excludeOnFailure.enabled": "true"}
    hosts = [with_python(tmp_path / "good", bare_python()), with_python(tmp_path / "broken", "/bin/false")]
    with (
        cluster(tmp_path, environments=hosts) as spark,
        driver(tmp_path, spark.master, keys, 4_000, 0.01, 2, python="the-python") as job,
    ):
        [figures] = job.finished()
    assert figures["attempts"] == 1
    assert_counted_exactly_once(job.lines(), 4_000)


@pytest.fixture
def other() -> tuple[str, Path]:
    """Another version of Python than that of the tests."""
    version = "3.13" if sys.version_info[:2] != (3, 13) else "3.12"
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} to be had here")
    return version, found


OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def with_python(place: Path, target: object, variables: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The environment of a host on which ``the-python`` is ``target``."""
    place.mkdir()
    library = f"LD_LIBRARY_PATH={variables.get('LD_LIBRARY_PATH', '')}"
    (place / "the-python").write_text(f'#!/bin/sh\nexec env {library} {target} "$@"\n')
    (place / "the-python").chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_executor_with_another_python_is_refused_before_the_job_starts(tmp_path: Path, other: tuple[str, Path]) -> None:
    version, python = other
    hosts = [with_python(tmp_path / "other", python, environment(version))]
    with (
        cluster(tmp_path, 1, environments=hosts) as spark,
        driver(tmp_path, spark.master, {}, 1_000, 0, 2, python="the-python") as job,
    ):
        assert job.finished(code=1) == []
        assert not job.lines()
    said = job.said()
    assert "An executor has another version of Python than the driver\n" in said, said
    assert f"found: Python {version}, and {OWN} in the driver\n" in said
    assert f"cure: install Python {OWN} on all hosts" in said
    assert "Traceback" not in said and "TaskSetManager" not in said


@pytest.mark.slow
def test_executor_that_cannot_run_python_is_named_before_the_job_starts(tmp_path: Path) -> None:
    hosts = [with_python(tmp_path / "broken", "/bin/false")]
    with (
        cluster(tmp_path, 1, environments=hosts) as spark,
        driver(tmp_path, spark.master, {}, 1_000, 0, 2, python="the-python") as job,
    ):
        assert job.finished(code=1) == []
    said = job.said()
    assert "found: An executor cannot run Python\n  where: host 127.0.0.1, Python the-python\n" in said, said
    assert "found: Subprocess exited with status 1\n" in said and "Traceback" not in said


@pytest.mark.slow
def test_executor_that_comes_later_with_another_python_ends_the_job_with_the_same_error(
    tmp_path: Path, other: tuple[str, Path]
) -> None:
    """Its tasks fail, the attempt too, and the next attempt asks all executors."""
    version, python = other
    own = with_python(tmp_path / "own", bare_python())
    with (
        cluster(tmp_path, 1, environments=[own]) as spark,
        driver(tmp_path, spark.master, {}, 1_000_000, 0.02, 2, python="the-python") as job,
    ):
        job.commits("the start")
        spark.start_worker(1, with_python(tmp_path / "other", python, environment(version)))
        assert job.finished(code=1) == []
    assert f"found: Python {version}, and {OWN} in the driver\n" in job.said(), job.said()


@pytest.mark.slow
def test_two_jobs_of_one_application_share_the_cluster_by_fair_pools(tmp_path: Path) -> None:
    keys = {"spark.scheduler.mode": "FAIR"}
    with cluster(tmp_path) as spark, driver(tmp_path, spark.master, keys, 4_000, 0.01, "2+2") as job:
        figures = job.finished()
    assert [each["attempts"] for each in figures] == [1, 1]
    for number in range(2):
        assert_counted_exactly_once(job.lines(number), 4_000)


POOLS = """\
from pyspark import TaskContext
from tidegate.datastream import StreamExecutionEnvironment

for _ in range(2):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(60_000)
    env.from_collection([1]).map(lambda _: TaskContext.get().getLocalProperty("spark.scheduler.pool")).print()
    client = env.execute_async()
    client.get_job_execution_result().result()
    print(client.get_job_id())
"""


@pytest.mark.parametrize("mode", ["FAIR", "FIFO"])
def test_each_job_has_a_fair_pool_named_by_its_id(tmp_path: Path, mode: str) -> None:
    (tmp_path / "job.py").write_text(POOLS)
    keys = [f"-Dspark.scheduler.mode={mode}", f"-Dexecution.checkpointing.dir={tmp_path}/checkpoints"]
    command = [sys.executable, "-m", "tidegate.cli", "run", "--master", "local[1]", *keys]
    done = subprocess.run(
        [*command, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    first, one, second, two = done.stdout.split()
    assert one != two
    assert [first, second] == ([one, two] if mode == "FAIR" else ["None", "None"])
