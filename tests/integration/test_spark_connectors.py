"""Sources and sinks end to end: files in and out, the generator, printing, user sinks, two-phase commit."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import RenamedFiles, committed_files, committed_lines, file_sink, hidden_files
from tests.sources import Pause, ScriptedSource
from tests.waiting import eventually
from tidegate.common import Duration, Encoder, JobStatus, Row, Types, WatermarkStrategy
from tidegate.datastream import SinkFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource, RateLimiterStrategy
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from tidegate.datastream.connectors.number_seq import NumberSequenceSource

NONE = WatermarkStrategy.no_watermarks()


# -- sources


def test_a_number_sequence_is_whole_and_in_order_per_subtask(env: StreamExecutionEnvironment) -> None:
    found = list(env.from_source(NumberSequenceSource(-5, 20_000), NONE, "numbers").execute_and_collect())
    assert sorted(found) == list(range(-5, 20_001))
    assert found == sorted(found[:10_003]) + sorted(found[10_003:])


def test_files_of_a_directory_are_read_once_with_hidden_ones_left_out(env: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deeper").mkdir(parents=True)
    (source / "a.txt").write_text("one\ntwo\r\nthree")
    (source / "deeper" / "b.txt").write_text("four\n\nfive\n")
    (source / ".hidden").write_text("never\n")
    (source / "_temporary").write_text("never\n")
    with gzip.open(source / "c.gz", "wt") as file:
        file.write("six\nseven\n")
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(source)).build()
    found = list(env.from_source(files, NONE, "files").execute_and_collect())
    assert sorted(found) == ["", "five", "four", "one", "seven", "six", "three", "two"]


def test_a_large_file_is_cut_into_splits_and_rounds(make_env: Any, tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 90)}" for number in range(3_000)]
    (tmp_path / "big.txt").write_text("\n".join(lines))
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "big.txt"))
    env = make_env({"tidegate.round.max-records": 60_000})
    found = list(env.from_source(builder.with_split_size(50_000).build(), NONE, "files").execute_and_collect())
    assert sorted(found) == sorted(lines)


def test_a_watched_directory_gives_new_files_as_they_come(make_env: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "1").write_text("first\n")
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(source))
    files = builder.monitor_continuously(Duration.of_millis(20)).build()
    with make_env().from_source(files, NONE, "files").execute_and_collect() as found:
        assert found.next() == "first"
        (tmp_path / "2").write_text("second\nthird\n")
        (tmp_path / "2").rename(source / "2")
        assert [found.next(), found.next()] == ["second", "third"]


def test_the_generator_calls_its_function_for_every_index(env: StreamExecutionEnvironment) -> None:
    source = DataGeneratorSource(lambda index: f"#{index}", count=1_000)
    assert sorted(env.from_source(source, NONE, "g").execute_and_collect()) == sorted(f"#{i}" for i in range(1_000))


def test_the_generator_keeps_to_its_rate(make_env: Any) -> None:
    source = DataGeneratorSource(lambda index: index, rate_limiter=RateLimiterStrategy.per_second(40))
    client = make_env().from_source(source, NONE, "g")
    client.add_sink(lambda value: None)
    rounds: list[Any] = []
    started = time.monotonic()
    job = client.get_execution_environment().execute_async()
    job.add_round_listener(lambda statistics: rounds.append(statistics))
    eventually(lambda: sum(r.records_in for r in rounds) >= 20)
    # One record at once, then one every 25 ms: never more than time has passed for, whatever the machine does.
    assert sum(r.records_in for r in rounds) <= 1 + 40 * (time.monotonic() - started)
    job.cancel()


# -- sinks


def test_print_writes_flinks_lines(make_env: Any, capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env(parallelism=1)
    env.from_collection(["x", "y"]).print()
    env.from_collection([(1, "a")], Types.TUPLE([Types.INT(), Types.STRING()])).print("tuples")
    env.from_collection([Row(2, "b")], Types.ROW([Types.INT(), Types.STRING()])).print("rows")
    env.from_collection([7]).print("two").set_parallelism(2)
    env.execute()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in ("x", "y")] == ["x", "y"]
    assert "tuples> (1,a)" in lines
    assert "rows> +I[2,b]" in lines
    assert any(re.fullmatch(r"two:[12]> 7", line) for line in lines)
    assert len(lines) == 5


class ToFile(SinkFunction):
    """Appends each record to a file when it is closed, as a client with a buffer would."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, runtime_context: Any) -> None:
        self.buffer: list[str] = []

    def invoke(self, value: Any, context: Any) -> None:
        self.buffer.append(f"{value} at {context.timestamp()}")

    def close(self) -> None:
        with open(self.path, "a") as file:
            file.writelines(f"{line}\n" for line in self.buffer)


def test_add_sink_takes_functions_and_sink_functions(make_env: Any, tmp_path: Path) -> None:
    path = tmp_path / "callable"

    def append(value: int) -> None:
        with open(path, "a") as file:
            file.write(f"{value}\n")

    env = make_env()
    numbers = env.from_collection(range(4))
    numbers.add_sink(append)
    numbers.add_sink(ToFile(str(tmp_path / "object")))
    assert env.execute().get_job_id() is not None
    assert sorted(path.read_text().split()) == ["0", "1", "2", "3"]
    assert sorted((tmp_path / "object").read_text().splitlines()) == [f"{n} at None" for n in range(4)]


def test_several_sources_and_several_sinks_in_one_job(make_env: Any, tmp_path: Path) -> None:
    env = make_env()
    numbers = env.from_source(NumberSequenceSource(1, 100), NONE, "numbers")
    words = env.from_collection(["a", "b"])
    numbers.sink_to(file_sink(tmp_path / "numbers"))
    words.union(numbers.map(str)).sink_to(file_sink(tmp_path / "all"))
    words.key_by(lambda w: w).reduce(lambda a, b: a + b).sink_to(file_sink(tmp_path / "words"))
    env.execute()
    assert sorted(map(int, committed_lines(tmp_path / "numbers"))) == list(range(1, 101))
    assert sorted(committed_lines(tmp_path / "all")) == sorted(["a", "b", *map(str, range(1, 101))])
    assert sorted(committed_lines(tmp_path / "words")) == ["a", "b"]


# -- the file sink


def test_part_files_have_flinks_names_and_nothing_hidden_stays(make_env: Any, tmp_path: Path) -> None:
    names = OutputFileConfig.builder().with_part_prefix("sales").with_part_suffix(".txt").build()
    builder = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder())
    builder = builder.with_output_file_config(names).with_bucket_assigner(lambda value: f"digit={value % 3}")
    env = make_env()
    env.from_source(NumberSequenceSource(0, 299), NONE, "n").sink_to(builder.build())
    env.execute()
    files = committed_files(tmp_path / "out")
    assert {path.parent.name for path in files} == {"digit=0", "digit=1", "digit=2"}
    assert all(re.fullmatch(r"sales-[^/]+-\d+\.txt", path.name) for path in files)
    assert sorted(map(int, committed_lines(tmp_path / "out" / "digit=1"))) == list(range(1, 300, 3))
    assert hidden_files(tmp_path / "out") == []


def test_parts_roll_by_size(make_env: Any, tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(part_size=1_000)
    env = make_env(parallelism=1)
    env.from_source(NumberSequenceSource(1_000, 2_999), NONE, "n").sink_to(file_sink(tmp_path / "out", policy))
    env.execute()
    sizes = [path.stat().st_size for path in committed_files(tmp_path / "out")]
    assert sum(sizes) == 2_000 * 5
    assert len(sizes) == 10
    assert max(sizes) == 1_005  # the record that crosses the limit is the last one of its part


def test_parts_roll_by_time_although_the_job_continues(make_env: Any, tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(rollover_interval=300, inactivity_interval=100_000)
    env = make_env({"execution.checkpointing.interval": "30 ms"}, parallelism=1)
    source = ScriptedSource(["a", Pause(1), "b", Pause(1_000), "c"], ends=False)
    env.from_source(source, NONE, "s").sink_to(file_sink(tmp_path / "out", policy))
    job = env.execute_async()
    # The third record rolls the part of the first two; its own stays hidden, and goes when the job is cancelled.
    assert sorted(eventually(lambda: committed_lines(tmp_path / "out"))) == ["a", "b"]
    job.cancel()
    eventually(lambda: job.get_job_status().result() is JobStatus.CANCELED)
    assert len(committed_files(tmp_path / "out")) == 1
    assert hidden_files(tmp_path / "out") == []


def test_a_checkpoint_publishes_whole_files_while_the_job_runs(make_env: Any, tmp_path: Path) -> None:
    env = make_env({"execution.checkpointing.interval": "30 ms"})
    env.from_source(ScriptedSource(list(range(100)), ends=False), NONE, "s").sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async()
    lines = eventually(lambda: committed_lines(tmp_path / "out"))
    assert sorted(map(int, lines)) == list(range(100))
    job.cancel()


def test_without_checkpoints_files_appear_when_the_job_ends(make_env: Any, tmp_path: Path) -> None:
    env = make_env(parallelism=1)
    source = ScriptedSource(["a", Pause(1), "b"])
    seen: list[list[str]] = []
    env.from_source(source, NONE, "s").sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async()
    job.add_round_listener(lambda round: seen.append(committed_lines(tmp_path / "out")))
    job.get_job_execution_result().result()
    assert not any(seen)
    assert committed_lines(tmp_path / "out") == ["a", "b"]


def test_dates_as_buckets(make_env: Any, tmp_path: Path) -> None:
    assigner = BucketAssigner.date_time_bucket_assigner("'year='yyyy", "UTC")
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder()).with_bucket_assigner(assigner)
    env = make_env({"execution.checkpointing.dir": str(tmp_path.parent / "other")})
    env.from_collection([1]).sink_to(builder.build())
    env.execute()
    (written,) = [path for path in committed_files(tmp_path) if path.parent.name.startswith("year=")]
    assert re.fullmatch(r"year=20\d\d", written.parent.name)


# -- two-phase commit


@pytest.mark.parametrize("keys", [{}, {"execution.checkpointing.interval": "40 ms"}], ids=["plain", "checkpoints"])
def test_two_phase_commit_publishes_every_record_once(make_env: Any, tmp_path: Path, keys: dict[str, str]) -> None:
    out = tmp_path / "transactions"
    out.mkdir()
    env = make_env({**keys, "tidegate.round.max-records": 100})
    env.from_source(NumberSequenceSource(1, 300), NONE, "n").add_sink(RenamedFiles(out))
    env.execute()
    assert sorted(map(int, committed_lines(out / "committed"))) == list(range(1, 301))
    assert list((out / "open").iterdir()) == []
    calls = (out / "calls").read_text().split()
    assert (
        calls.count("begin")
        == calls.count("pre_commit")
        == calls.count("commit")
        == len(committed_files(out / "committed"))
    )
    assert "abort" not in calls


def test_cancelling_aborts_what_was_not_committed(make_env: Any, tmp_path: Path) -> None:
    out = tmp_path / "transactions"
    out.mkdir()
    env = make_env({"execution.checkpointing.interval": "1 h"})
    env.from_source(ScriptedSource([1, 2], ends=False), NONE, "s").add_sink(RenamedFiles(out))
    job = env.execute_async()
    eventually(lambda: (out / "calls").exists() and "pre_commit" in (out / "calls").read_text())
    job.cancel()
    eventually(lambda: job.get_job_status().result() is JobStatus.CANCELED)
    assert not (out / "committed").exists()
    assert list((out / "open").iterdir()) == []
