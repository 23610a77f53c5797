"""YARN in client mode: the driver runs here, its state and output are on HDFS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clusters.yarn import PROGRAM, SMALL_ROUNDS, Yarn, assert_counted_exactly_once, lines_on_hdfs, yarn_cluster
from tests.waiting import eventually


def test_a_run_with_the_default_name_service(yarn: Yarn, home: Path) -> None:
    """``hdfs:///``: the containers have no Hadoop configuration of their own, nor Tidegate, nor the module beside the program."""
    options = yarn.options(execution__checkpointing__dir="hdfs:///jobs/client", spark__driver__host="127.0.0.1")
    words = ["run", "--master", "yarn", "-p", "2", *options, str(PROGRAM), "hdfs:///out/client", "2000", "0"]
    assert yarn.tidegate(home, *words).stdout == "counting to 2000\nall is counted\n"
    assert_counted_exactly_once(lines_on_hdfs(yarn, "/out/client"), 2000)
    *_, job = yarn.listed(home, "hdfs:///jobs/client")
    assert job["state"] == "FINISHED"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_and_a_node_manager_are_killed_and_the_job_resumes_from_a_savepoint(home: Path) -> None:
    """With another parallelism and backend. A cluster of its own, since a node manager of it is lost."""
    records = 24_000
    directory, output = "hdfs:///jobs/killed", "/out/killed"
    with yarn_cluster() as yarn:
        options = yarn.options(execution__checkpointing__dir=directory, spark__driver__host="127.0.0.1")
        options.append(SMALL_ROUNDS)
        program = [str(PROGRAM), f"hdfs://{output}", str(records)]
        run = ["run", "--master", "yarn", "-d"]
        job = yarn.tidegate(home, *run, "-p", "2", *options, *program, "0.5").stdout.strip()

        def progress() -> int:
            details = json.loads(yarn.tidegate(home, "info", job, "--json").stdout)["details"]
            return int(details["totals"]["checkpoints"])

        def goes_on(what: str) -> None:
            before = progress()
            eventually(lambda: progress() > before, f"checkpoints after {what}", timeout=240)

        goes_on("the start")
        yarn.tidegate(home, "savepoint", job, "hdfs:///savepoints/killed")
        assert yarn.kill("_01_000002") > 0
        goes_on("the death of an executor")
        yarn.stop_node(0)
        goes_on("the loss of a node manager")
        stopped = yarn.tidegate(home, "stop", "-p", "hdfs:///savepoints/killed", job).stdout.strip()
        assert len(lines_on_hdfs(yarn, output)) < records, "stopped before the end"
        resumed = [
            *run[:-1],
            "-s",
            stopped,
            "-p",
            "3",
            *options,
            "-Dstate.backend=rocksdb",
            "-Dtidegate.round.max-records=10000",
        ]
        yarn.tidegate(home, *resumed, *program, "0")
        assert_counted_exactly_once(lines_on_hdfs(yarn, output), records)
