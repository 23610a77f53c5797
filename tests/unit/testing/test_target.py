"""``execution.target: test``: whole programs in this process, from sources to committed files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ConfigurationError, JobFailedError
from tidegate.cli.outcome import ExitCode
from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.common.time import Time
from tidegate.connectors.frames.sources import DataFrameSource
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing import MiniCluster


class Total(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value)
        yield ctx.get_current_key(), self.total.value()


def lines_in(directory: Path) -> list[str]:
    return sorted(line for path in directory.rglob("part-*") for line in path.read_text().splitlines())


def test_windows_and_checkpoints_to_committed_files(mini_cluster: MiniCluster, tmp_path: Path) -> None:
    keys = {"execution.checkpointing.interval": 10, "tidegate.round.max-records": 7}
    env = mini_cluster.environment(parallelism=3, **keys)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    numbers = env.from_source(NumberSequenceSource(1, 100), times, "numbers")
    windows = numbers.key_by(lambda n: n % 2).window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
    windows.reduce(lambda a, b: a + b).map(str, Types.STRING()).sink_to(sink)
    env.execute()
    expected = [sum(range(start, start + 50, 2)) for start in (0, 1, 50, 51)]
    assert lines_in(tmp_path / "out") == sorted(map(str, [*expected, 100]))


def test_savepoint_is_restored_by_another_program(mini_cluster: MiniCluster, tmp_path: Path) -> None:
    def program(**keys: Any) -> StreamExecutionEnvironment:
        env = mini_cluster.environment(**{"execution.checkpointing.interval": 10, **keys})
        numbers = env.from_source(NumberSequenceSource(1, 20_000), WatermarkStrategy.no_watermarks(), "numbers")
        sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
        totals = numbers.uid("numbers").key_by(lambda n: n % 4, Types.LONG()).process(Total()).uid("totals")
        totals.map(lambda pair: f"{pair[0]} {pair[1]}", Types.STRING()).sink_to(sink).uid("out")
        return env

    client = program(**{"tidegate.round.max-records": 10}).execute_async()
    savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    program(**{"execution.state-recovery.path": savepoint, "parallelism.default": 3}).execute()
    lines = [line.split() for line in lines_in(tmp_path / "out")]
    assert len(lines) == 20_000, "nothing is lost or duplicated over the savepoint"
    for key in range(4):
        assert max(int(total) for found, total in lines if int(found) == key) == sum(range(key, 20_001, 4))


def test_error_of_a_function_fails_the_job(mini_cluster: MiniCluster) -> None:
    env = mini_cluster.environment()
    env.from_collection([1, 0]).map(lambda n: 1 // n).print()
    with pytest.raises(JobFailedError, match=r"ZeroDivisionError[\s\S]*record 0"):
        env.execute()


def test_collect(mini_cluster: MiniCluster) -> None:
    env = mini_cluster.environment()
    assert sorted(mini_cluster.collect(env.from_collection([3, 1, 2]).map(lambda n: n * n))) == [1, 4, 9]


def test_source_that_needs_spark_is_refused() -> None:
    env = StreamExecutionEnvironment(Configuration.from_dict({"execution.target": "test"}))
    env.from_source(DataFrameSource.__new__(DataFrameSource), WatermarkStrategy.no_watermarks(), "frame").print()
    with pytest.raises(ConfigurationError, match=r"reads from Spark[\s\S]*'frame'[\s\S]*from_collection"):
        env.execute()


PROGRAM = """
import sys
from tidegate.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([1, 2]).map(lambda n: n + 1).print()
env.execute("sums")
print("pyspark" in sys.modules)
"""


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_runs_a_program_without_spark(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    done = tidegate("run", "-D", "execution.target=test", str(tmp_path / "job.py"))
    assert done.stdout == "2\n3\nFalse\n"
    assert "job 'sums' runs in this process, for tests only" in done.stderr


def test_unknown_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    done = tidegate("run", "-D", "execution.target=tset", str(tmp_path / "job.py"))
    assert (done.returncode, done.stdout) == (ExitCode.BAD_PROGRAM, "")
    assert (
        "'execution.target' names no installed executor\n  found: 'tset'\n  cure: use one of spark, test" in done.stderr
    )
