"""Operating a job on real Spark from the command line: started in the background, looked at, saved, stopped; then, on a real
terminal, started again from its savepoint and cancelled from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tidegate.cli.outcome import ExitCode
from tidegate.control import registry
from tidegate.control.registry import DriverLife

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
PROGRAM = """
import sys
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from tidegate.common import Encoder

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


def main():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    source = DataGeneratorSource(lambda index: (index % 5, 1), records_per_second=200)
    pairs = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", PAIR).uid("numbers")
    counts = pairs.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).uid("counts")
    lines = counts.map(lambda pair: f"{pair[0]} {pair[1]}", output_type=Types.STRING()).uid("lines")
    sink = FileSink.for_row_format(sys.argv[1], Encoder.simple_string_encoder())
    sink = sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    lines.sink_to(sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build()).uid("files")
    env.execute("counts")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    (tmp_path / "job.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for record in registry.records():
        if record.life() is DriverLife.LIVE:
            subprocess.run(["kill", "-9", str(record.owner.pid)], check=False)


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TIDEGATE, *arguments], capture_output=True, text=True, timeout=250, check=False)


def parsed(*arguments: str) -> Any:
    done = tidegate(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def options(place: Path) -> list[str]:
    keys = {
        "spark.master": "local[2,4]",
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{place}/savepoints",
        "tidegate.state.local-dir": f"{place}/local",
    }
    return [f"-D{key}={value}" for key, value in keys.items()]


def committed(place: Path) -> list[str]:
    parts = [path for path in (place / "out").iterdir() if not path.name.startswith((".", "_"))]
    return [line for path in parts for line in path.read_text().splitlines()]


def test_operating_a_job(place: Path) -> None:
    started = tidegate("run", "-d", "-c", "main", *options(place), "job.py", f"{place}/out")
    assert started.returncode == 0, started.stderr
    job = started.stdout.strip()
    assert re.fullmatch(r"[0-9a-f]{32}", job)
    assert [each["job_id"] for each in parsed("list", "--json")] == [job]
    checkpoint = int(parsed("checkpoint", "--json", job[:8])["result"])
    details = parsed("info", "--json", job)["details"]
    assert details["totals"]["rounds"] > 0 and details["guarantee"] == "exactly-once"
    saved = tidegate("savepoint", job).stdout.strip()
    assert (Path(saved) / "_metadata").is_file()
    assert checkpoint in [each["checkpoint_id"] for each in parsed("checkpoints", "--json", job)["checkpoints"]]

    stopped = tidegate("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    last = stopped.stdout.strip()
    assert Path(last).parent == place / "savepoints" and last != saved
    assert tidegate("savepoint", job).returncode == ExitCode.ENDED
    before = committed(place)
    assert sorted(before) == sorted({*before}), "every count of every key comes once"

    again = pexpect.spawn(
        TIDEGATE,
        ["run", *options(place), "-s", last, "-c", "main", "job.py", f"{place}/out"],
        encoding="utf-8",
        use_poll=True,
        timeout=200,
    )
    again.setwinsize(40, 200)
    again.expect(r"job 'counts' \(([0-9a-f]{32})\) continues from [^;]*savepoint-[^;]*; exactly-once;")
    resumed = again.match.group(1)
    again.expect(r"RUNNING \d+ s · \d+ rounds?, .* records?, ")
    cancelled = tidegate("cancel", "-s", resumed)
    assert cancelled.returncode == 0, cancelled.stderr
    again.expect("job 'counts' was cancelled: ")
    again.expect(pexpect.EOF)
    again.close()
    assert again.exitstatus == ExitCode.CANCELLED
    after = committed(place)
    assert len(after) > len(before) and sorted(after) == sorted({*after}), "nothing doubled over the savepoint"
    states = {each["job_id"]: each["state"] for each in parsed("list", "-a", "--json")}
    assert (states[job], states[resumed]) == ("FINISHED", "CANCELED")
