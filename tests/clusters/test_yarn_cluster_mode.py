"""Drivers in containers of YARN, as an operator uses them: from another host, over the death of a driver, to the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.yarn import PROGRAM, SMALL_ROUNDS, Yarn, assert_counted_exactly_once, lines_on_hdfs
from tests.waiting import eventually
from tidegate.cli.outcome import ExitCode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECORDS, PAUSE_S = 24_000, "0.5"
"""Two subtasks need ten minutes, and almost no time without the pauses."""
PATIENCE_S = 300


def test_the_walk_of_an_operator(yarn: Yarn, home: Path) -> None:
    """Submit, list, savepoint, kill -9 of the driver's container, second attempt, stop, resume: nothing lost or doubled."""
    directory, output, savepoints = "hdfs:///jobs/walk", "/out/walk", "hdfs:///savepoints/walk"
    options = [*yarn.options(execution__checkpointing__dir=directory), SMALL_ROUNDS]
    program = [str(PROGRAM), f"hdfs://{output}", str(RECORDS)]
    submitted = yarn.tidegate(home, "run-application", "-t", "yarn-application", "-p", "2", *options, *program, PAUSE_S)
    assert "run as: tidegate run -d --master yarn --deploy-mode cluster " in submitted.stderr
    job = submitted.stdout.strip()
    [listed] = yarn.listed(home, directory)
    assert (listed["job_id"], listed["state"], listed["name"]) == (job, "RUNNING", "counts")
    application = listed["application"]
    assert yarn.processes("_01_000002"), "the job runs on executors"
    assert job[:8] in yarn.tidegate(home, "list", elsewhere=True).stdout
    made = yarn.tidegate(home, "savepoint", job[:6], savepoints, elsewhere=True).stdout.strip()
    assert made.startswith(f"{savepoints}/savepoint-"), made

    def seen() -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(yarn.tidegate(home, "info", job, "--json", elsewhere=True).stdout)
        return shown

    before = seen()
    assert before["details"]["totals"]["checkpoints"] > 0
    assert yarn.kill("_01_000001") >= 2, "the JVM and the driver in it"
    eventually(
        lambda: (now := seen())["run"] != before["run"] and now["state"] == "RUNNING" and now["details"],
        "YARN's second attempt runs the job",
        timeout=PATIENCE_S,
    )
    assert seen()["application"] == application
    assert yarn.processes("_02_000001")
    logs = yarn.tidegate(home, "logs", application, elsewhere=True).stdout
    assert logs.count(f"counting to {RECORDS}\n") == 2, logs
    stopped = yarn.tidegate(home, "stop", job, "-p", savepoints, elsewhere=True).stdout.strip()
    waited = yarn.tidegate(home, "wait", f"{directory}/{job}", elsewhere=True)
    assert "is FINISHED" in waited.stdout
    written = len(lines_on_hdfs(yarn, output))
    assert 0 < written < RECORDS, "stopped before the end"
    resumed = yarn.tidegate(
        home,
        *("run", "--master", "yarn", "--deploy-mode", "cluster", "-s", stopped, "-p", "3"),
        *(*options, "-Dstate.backend=rocksdb", "-Dtidegate.round.max-records=10000", *program, "0"),
    )
    assert "all is counted\n" in resumed.stdout
    assert_counted_exactly_once(lines_on_hdfs(yarn, output), RECORDS)
    states = {each["job_id"]: each["state"] for each in yarn.listed(home, directory)}
    assert set(states.values()) == {"FINISHED"} and len(states) == 2
    eventually(lambda: not yarn.processes(""), "all containers end")


def test_commands_after_the_end_of_a_job_and_a_log_that_is_followed(yarn: Yarn, home: Path) -> None:
    """From another host with TIDEGATE_HOME on shared storage: logs -f, cancel, wait, checkpoints, checkpoints --dispose."""
    directory = "hdfs:///jobs/commands"
    kept = "-Dexecution.checkpointing.externalized-checkpoint-retention=RETAIN_ON_CANCELLATION"
    run = [
        "run",
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "-d",
        *yarn.options(execution__checkpointing__dir=directory),
        SMALL_ROUNDS,
    ]
    job = yarn.tidegate(home, *run, kept, str(PROGRAM), "hdfs:///out/commands", str(RECORDS), PAUSE_S).stdout.strip()
    place = f"{directory}/{job}"
    with yarn.following(home, "logs", job, "-f") as log:
        assert log.stdout is not None and log.stdout.readline() == f"counting to {RECORDS}\n"

        def completed() -> list[int]:
            listed = json.loads(yarn.tidegate(home, "checkpoints", place, "--json", elsewhere=True).stdout)
            return [each["checkpoint_id"] for each in listed["checkpoints"] if each["status"] == "completed"]

        eventually(completed, "a checkpoint", timeout=PATIENCE_S)
        refused = yarn.tidegate(home, "checkpoints", place, "--id", str(completed()[-1]), "--dispose", code=8).stderr
        assert job in refused, refused
        yarn.tidegate(home, "cancel", job, elsewhere=True)
        assert log.wait(PATIENCE_S) == 0, "a followed log ends with its job"
    waited = yarn.tidegate(home, "wait", place, elsewhere=True, code=ExitCode.CANCELLED)
    assert "is CANCELED" in waited.stdout + waited.stderr
    number = str(completed()[-1])
    assert yarn.client().list_status(f"/jobs/commands/{job}/chk-{number}"), "kept"
    yarn.tidegate(home, "checkpoints", place, "--id", number, "--dispose", elsewhere=True)
    assert not [s.path for s in yarn.client().list_status(f"/jobs/commands/{job}") if "/chk-" in s.path]


def test_packages_that_the_container_lacks_are_named(yarn: Yarn, home: Path) -> None:
    options = yarn.options(
        execution__checkpointing__dir="hdfs:///jobs/lacks",
        spark__yarn__appMasterEnv__PYTHONPATH="",
        spark__executorEnv__PYTHONPATH="",
    )
    words = [
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "-d",
        *options,
        str(PROGRAM),
        "hdfs:///out/lacks",
        "10",
        "0",
    ]
    told = yarn.tidegate(home, "run", *words, code=10).stderr
    assert "The driver's container lacks packages that Tidegate depends on\n" in told
    assert "hdfs-native" in told and "lmdb" in told and "environment.tar.gz#environment" in told


def test_an_error_of_the_program_ends_the_application_and_is_shown(yarn: Yarn, home: Path, tmp_path: Path) -> None:
    """Once: YARN's second attempt does not run a program again that has ended by itself."""
    program = tmp_path / "broken.py"
    program.write_text("print('it begins')\nraise KeyError('no such thing')\n")
    options = yarn.options(execution__checkpointing__dir="hdfs:///jobs/broken")
    words = ["run", "--master", "yarn", "--deploy-mode", "cluster", *options, str(program)]
    done = yarn.tidegate(home, *words, code=1)
    assert "KeyError: 'no such thing'" in done.stderr
    assert done.stdout.count("it begins") == 1, done.stdout


def test_what_cannot_be_submitted_is_refused_before_anything_starts(yarn: Yarn, home: Path) -> None:
    cluster = ["run", "--master", "yarn", "--deploy-mode", "cluster"]
    for words, said in (
        ([*cluster, str(PROGRAM)], "A driver on a cluster is operated through the directory of its checkpoints"),
        ([*cluster, "nothing.py"], "There is no program at this path"),
        (
            ["run", "--master", "spark://h:7077", "--deploy-mode", "cluster", str(PROGRAM)],
            "submits drivers to YARN only",
        ),
        (["run", "--master", "yarn", "--deploy-mode", "there", str(PROGRAM)], "--deploy-mode is client or cluster"),
        (
            [*cluster, "-Dexecution.checkpointing.dir=hdfs:///j", "-Dspark.archives=none.tar.gz#e", str(PROGRAM)],
            "'spark.archives' names a file that does not exist",
        ),
        (
            [*cluster, "-Dexecution.checkpointing.dir=hdfs:///j", "-Dpython.executable=./e/bin/python", str(PROGRAM)],
            "'python.executable' lies in an archive that is not brought to the cluster",
        ),
    ):
        assert said in yarn.tidegate(home, *words, code=10).stderr
    assert not yarn.processes("")
