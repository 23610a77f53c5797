"""Executors of a real cluster die in the middle of rounds, one after the other: Spark runs their tasks elsewhere, the job continues
from its state files without a restart, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.clusters.standalone import Cluster, bare_python, cluster

RECORDS, KEYS, KILLS, MOST_LOG_LINES = 40_000, 50, 3, 400
PROGRAM = f"""\
import json, sys, time
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        if value % 10 == 0:
            time.sleep(0.004)  # rounds take long enough to be hit
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{{value}} {{count}}"

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(500)
numbers = env.from_source(NumberSequenceSource(1, {RECORDS}), WatermarkStrategy.no_watermarks(), "numbers")
counts = numbers.key_by(lambda n: n % {KEYS}, Types.LONG()).process(Count(), Types.STRING())
sink = FileSink.for_row_format(sys.argv[1], Encoder.simple_string_encoder())
counts.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build())
job = env._start("kills")
job.result()
view = job.view()
print(json.dumps({{"attempts": len(view.attempts), "rounds": view.totals.rounds, "rebuilds": view.totals.rebuilds}}))
"""


def committed(output: Path) -> list[str]:
    files = [file for file in output.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
    return [line for file in files for line in file.read_text().splitlines()]


def executors(started: Cluster) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("CoarseGrainedExecutorBackend" in word for word in words) and str(started.work) in _cwd(process):
            found.append(process)
    return found


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


def kill_when_more_is_out(job: subprocess.Popen[str], output: Path, started: Cluster) -> None:
    """After the next checkpoint, in whatever round runs then."""
    before, deadline = len(committed(output)), time.monotonic() + 120
    while len(committed(output)) <= before:
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    alive = executors(started)
    assert alive, "the job runs, so it has executors"
    os.kill(max(alive, key=lambda process: process.create_time()).pid, signal.SIGKILL)


def test_executors_killed_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    output = tmp_path / "out"
    keys = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "tidegate.round.max-records": "2000",
    }
    environment = {**os.environ, "PYSPARK_PYTHON": bare_python(), "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    with cluster(tmp_path) as started:
        options = [f"-D{key}={value}" for key, value in keys.items()]
        run = [sys.executable, "-m", "tidegate.cli.main", "run", "--master", started.master]
        command = [*run, *options, "job.py", str(output)]
        job = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            for _ in range(KILLS):
                kill_when_more_is_out(job, output, started)
            printed, logged = job.communicate(timeout=240)
        finally:
            job.kill()
    assert job.returncode == 0, logged[-5000:]
    told = json.loads(printed)
    assert told["attempts"] == 1, logged[-5000:]
    lines = [tuple(map(int, line.split())) for line in committed(output)]
    assert Counter(number for number, _ in lines) == Counter(range(1, RECORDS + 1))
    counted = [(number % KEYS, count) for number, count in lines]
    assert sorted(counted) == [(key, count) for key in range(KEYS) for count in range(1, RECORDS // KEYS + 1)]
    assert told["rebuilds"] < told["rounds"], "workers of one host share its local state"
    assert len(logged.splitlines()) < MOST_LOG_LINES, logged[:5000]
