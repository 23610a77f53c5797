"""Flink's own client, from PyPI's ``apache-flink``, operates a job on real Spark; and its Java classes read every answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.compat.pyflink_place import pyflink_python
from tests.unit.control.flink.shown_jobs import LIVES, every_get, shown_jobs
from tests.waiting import eventually
from tidegate.base.hashing import flink_job_id
from tidegate.control import registry
from tidegate.control.registry import DriverLife, JobRecord, read_token

pytestmark = [pytest.mark.pyflink, pytest.mark.timeout(900)]
TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
PROGRAM = """
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
source = DataGeneratorSource(lambda index: (index % 5, 1), records_per_second=200)
pairs = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
totals = pairs.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).uid("totals")
totals.add_sink(lambda value: None).uid("out")
env.execute("counts of mine")
"""
JOB = "counts-of.mine"
HEX = flink_job_id(JOB)
Flink = Callable[..., subprocess.CompletedProcess[str]]


def flink_home() -> Path:
    (found,) = pyflink_python().parents[1].glob("lib/python3*/site-packages/pyflink")
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    (tmp_path / "job.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for record in registry.records():
        if record.life() is DriverLife.LIVE:
            subprocess.run(["kill", "-9", str(record.owner.pid)], check=False)


def started(place: Path, *more: str) -> JobRecord:
    keys = {
        "spark.master": "local[2]",
        "tidegate.job-id": JOB,
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "tidegate.state.local-dir": f"{place}/local",
    }
    options = [f"-D{key}={value}" for key, value in keys.items()]
    done = subprocess.run(
        [TIDEGATE, "run", "-d", *options, *more, "job.py"], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return eventually(
        lambda: next((r for r in registry.records()[::-1] if r.endpoint and r.state == "RUNNING"), None), "it runs"
    )


def client(place: Path, record: JobRecord, token: str | None = None) -> Flink:
    """Return Flink's script, which names the driver and its token as Flink's documentation says."""
    home, assumed = flink_home(), token or read_token(str(record.driver))
    environment = {
        **os.environ,
        "FLINK_HOME": str(home),
        "FLINK_LOG_DIR": str(place),
        "FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {assumed}",  # the client takes no space after the colon
    }

    def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(home / "bin" / "flink"), command, "-m", str(record.endpoint), *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment, check=False)

    return run


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_flink_lists_saves_stops_and_cancels_a_job(place: Path) -> None:
    record = started(place)
    flink = client(place, record)
    listed = good(flink("list"))
    assert f"{HEX} : counts of mine (RUNNING)" in listed, listed

    assert re.search(
        r"Checkpoint \d+ for job|Checkpoint completed. Checkpoint ID: \d+", taken := good(flink("checkpoint", HEX))
    ), taken

    saved = re.search(r"Savepoint completed\. Path: (\S+)", good(flink("savepoint", HEX, f"{place}/savepoints")))
    assert saved is not None and (Path(saved[1].removeprefix("file:")) / "_metadata").is_file()

    refused = flink("savepoint", HEX, f"{place}/checkpoints/{JOB}")
    assert refused.returncode != 0
    assert "inside the job's own directory" in refused.stdout + refused.stderr

    no_token = client(place, record, "wrong")("list")
    assert no_token.returncode != 0 and "needs the token" in no_token.stdout + no_token.stderr

    unknown = flink("cancel", "0" * 32)
    assert unknown.returncode != 0 and "shows no job" in unknown.stdout + unknown.stderr

    stopped = good(flink("stop", "--savepointPath", f"{place}/savepoints", HEX))
    last = re.search(r"Savepoint completed\. Path: (\S+)", stopped)
    assert last is not None and (Path(last[1].removeprefix("file:")) / "_metadata").is_file() and last[1] != saved[1]
    eventually(lambda: registry.records()[-1].state == "FINISHED", "the job has finished")

    again = started(place, "-s", last[1].removeprefix("file:"), "-Dtidegate.start-anew=true")
    flink = client(place, again)
    disposed = flink("savepoint", "-d", saved[1])
    assert "disposed" in good(disposed), disposed.stdout
    assert not (Path(saved[1].removeprefix("file:")) / "_metadata").exists()
    assert "Cancelled job" in good(flink("cancel", HEX))
    eventually(lambda: registry.records()[-1].state == "CANCELED", "the job is cancelled")


def test_classes_of_flinks_client_read_every_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has a class for each path. It cannot read an answer in which a field is missing that its class needs."""
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    answers: list[tuple[str, object]] = []
    with shown_jobs(tmp_path) as shown:
        for job in (f"{life}-job" for life in LIVES):
            asked = [(template, *shown.ask("GET", path)) for template, path in every_get(shown, job)]
            answers += [(template, answer) for template, status, answer in asked if status == 200]
        inside = {"target-directory": f"{tmp_path}/running/checkpoints/running-job"}
        for path in ("savepoints", "stop"):
            body = inside if path == "savepoints" else {"targetDirectory": inside["target-directory"]}
            shown.after(f"/jobs/running-job/{path}", body, "/jobs/running-job/savepoints")
            begun = shown.ask("POST", f"/jobs/running-job/{path}", body)[1]["request-id"]
            address = f"/jobs/running-job/savepoints/{begun}"
            eventually(partial(shown.result, address), "it has failed")
            answers.append(("/jobs/{jobid}/savepoints/{triggerid}", shown.get(address)))
    lines = [
        json.dumps({"method": "GET", "path": re.sub(r"\{(\w+)\}", r":\1", template), "answer": answer})
        for template, answer in answers
    ]
    jars = sorted((flink_home() / "lib").glob("*.jar"))
    (dist,) = (jar for jar in jars if jar.name.startswith("flink-dist"))
    read = subprocess.run(
        ["java", "-cp", os.pathsep.join(map(str, jars)), str(Path(__file__).with_name("ReadAnswers.java")), str(dist)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    results = read.stdout.splitlines()
    assert read.returncode == 0 and len(results) == len(answers), read.stderr
    assert [line for line in results if not line.startswith("READ ")] == []
    kinds = Counter(line.split()[2] for line in results)
    assert len(kinds) > 40
    failures = [line for line in results if "inside the job's own directory" in line]
    assert len(failures) == 2 and sum("no good: (1, 40)" in line for line in results) == 1
