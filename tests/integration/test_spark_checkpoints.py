"""Checkpoints of running jobs: when they come, what stays of them, what the history tells, what a failed one does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fault_switch import FaultSwitch
from tests.integration.job_tools import Count, checkpoints, committed_lines, file_sink, hidden_files, history
from tests.sources import Pause, ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import CheckpointError, JobCancelledError, JobFailedError
from tidegate.checkpoint.history import CheckpointStatus
from tidegate.common import JobClient, JobStatus, WatermarkStrategy
from tidegate.datastream import ExternalizedCheckpointRetention, MapFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource

NONE = WatermarkStrategy.no_watermarks()
JOB = "the-job"


@pytest.fixture
def job_directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / JOB


@pytest.fixture
def counting_env(make_env: Any) -> Any:
    """Environments of the job ``the-job`` with a checkpoint every 30 ms."""

    def make(keys: dict[str, Any] | None = None) -> StreamExecutionEnvironment:
        defaults = {"tidegate.job-id": JOB, "execution.checkpointing.interval": "30 ms"}
        env: StreamExecutionEnvironment = make_env({**defaults, **(keys or {})})
        return env

    return make


def start_counting(env: StreamExecutionEnvironment, out: Path) -> JobClient:
    """An endless job with state that changes in every round."""
    numbers = env.from_source(DataGeneratorSource(lambda index: index % 10, records_per_second=500), NONE, "numbers")
    numbers.key_by(lambda v: v).process(Count()).sink_to(file_sink(out))
    return env.execute_async()


def cancel(job: JobClient) -> None:
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.get_job_execution_result().result()


def test_ids_grow_and_the_newest_are_kept(counting_env: Any, tmp_path: Path, job_directory: Path) -> None:
    job = start_counting(counting_env({"execution.checkpointing.num-retained": 3}), tmp_path / "out")
    ids = eventually(lambda: (found := checkpoints(job_directory)) and found[-1] >= 6 and found)
    assert len(ids) in (3, 4)  # the newest is there before the oldest goes
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    cancel(job)


def test_the_interval_decides_which_rounds_carry_a_barrier(make_env: Any) -> None:
    env = make_env({"execution.checkpointing.interval": "400 ms"})
    env.from_source(DataGeneratorSource(lambda index: index, records_per_second=1_000), NONE, "n").add_sink(print)
    rounds: list[Any] = []
    job = env.execute_async()
    job.add_round_listener(rounds.append)
    eventually(lambda: sum(r.checkpoint_id is not None for r in rounds) >= 4)
    carried = [r for r in rounds if r.checkpoint_id is not None]
    assert [r.checkpoint_id for r in carried] == list(range(1, len(carried) + 1))
    # A round may carry one up to half a round early; the first comes one interval after the start.
    gaps = [later.started_ms - earlier.started_ms for earlier, later in pairwise(carried)]
    longest = max(r.seconds for r in rounds) * 1_000
    assert all(gap >= 400 - longest for gap in gaps)
    cancel(job)


def test_the_pause_between_two_checkpoints_is_kept(counting_env: Any, tmp_path: Path, job_directory: Path) -> None:
    env = counting_env()
    env.get_checkpoint_config().set_min_pause_between_checkpoints(250)
    job = start_counting(env, tmp_path / "out")
    eventually(lambda: len(history(job_directory)) >= 3)
    entries = history(job_directory)
    assert all(b.trigger_ms - a.end_ms >= 249 for a, b in pairwise(entries))
    cancel(job)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION, True),
        (ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION, False),
        (ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS, False),
    ],
)
def test_retention_on_cancellation(
    counting_env: Any, tmp_path: Path, job_directory: Path, retention: ExternalizedCheckpointRetention, kept: bool
) -> None:
    env = counting_env()
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    job = start_counting(env, tmp_path / "out")
    eventually(lambda: checkpoints(job_directory))
    cancel(job)
    assert bool(checkpoints(job_directory)) is kept
    assert bool(list(job_directory.glob("shared/*"))) is kept
    assert hidden_files(tmp_path / "out") == []
    assert history(job_directory)[0].status is CheckpointStatus.COMPLETED  # the history stays in any case


class FailAt(MapFunction):
    def __init__(self, value: int) -> None:
        self.value = value

    def map(self, value: int) -> int:
        if value == self.value:
            raise ValueError(f"this is {value}")
        return value


def test_a_failed_job_keeps_its_checkpoints_and_names_the_latest(counting_env: Any, job_directory: Path) -> None:
    env = counting_env()
    stream = env.from_source(ScriptedSource([1, Pause(500), 2]), NONE, "s").key_by(lambda v: v).map(FailAt(2))
    stream.add_sink(lambda v: None)
    with pytest.raises(JobFailedError, match="this is 2") as failure:
        env.execute()
    (kept,) = checkpoints(job_directory)
    assert f"its latest checkpoint is retained: {job_directory}/chk-{kept}" in str(failure.value)


def test_a_finished_job_leaves_no_checkpoint(counting_env: Any, job_directory: Path) -> None:
    env = counting_env()
    stream = env.from_collection(range(10)).key_by(lambda v: v).process(Count())
    assert sorted(stream.execute_and_collect()) == [(v, 1) for v in range(10)]
    assert checkpoints(job_directory) == []
    assert list(job_directory.glob("shared/*")) == list(job_directory.glob("taskowned/*")) == []


def test_the_history_tells_of_every_checkpoint(counting_env: Any, tmp_path: Path, job_directory: Path) -> None:
    job = start_counting(counting_env(), tmp_path / "out")
    eventually(lambda: len(history(job_directory)) >= 3)
    cancel(job)
    entries = history(job_directory)
    assert [entry.checkpoint_id for entry in entries] == list(range(1, len(entries) + 1))
    completed = [entry for entry in entries if entry.status is CheckpointStatus.COMPLETED]
    assert len(completed) >= 3
    for entry in completed:
        assert entry.kind == "checkpoint"
        assert entry.trigger_ms <= entry.end_ms
        assert entry.size > 100
        assert entry.round > 0
        names = sorted(figures.name.partition(" at ")[0] for figures in entry.operators.values())
        assert names == ["DataGeneratorSource 'numbers'", "FileSink", "KEYED PROCESS"]
        assert {"trigger", "run", "align", "snapshot", "complete", "commit"} <= entry.steps_ms.keys()
        assert 0 < entry.incremental <= entry.size
    assert [entry.round for entry in completed] == sorted(entry.round for entry in completed)
    assert "tidegate-history" in json.dumps((job_directory / "history.json").read_text())


class Notified(MapFunction):
    def __init__(self, path: str) -> None:
        self.path = path

    def map(self, value: int) -> int:
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with open(self.path, "a") as file:
            file.write(f"complete {checkpoint_id}\n")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        with open(self.path, "a") as file:
            file.write(f"aborted {checkpoint_id}\n")


def test_functions_are_notified_of_completed_checkpoints(make_env: Any, tmp_path: Path) -> None:
    env = make_env({"execution.checkpointing.interval": "30 ms"}, parallelism=1)
    numbers = env.from_source(DataGeneratorSource(lambda index: index, records_per_second=500), NONE, "n")
    numbers.map(Notified(str(tmp_path / "calls"))).add_sink(lambda v: None)
    job = env.execute_async()
    eventually(lambda: (tmp_path / "calls").exists() and "complete 4\n" in (tmp_path / "calls").read_text())
    cancel(job)
    lines = (tmp_path / "calls").read_text().splitlines()
    assert lines == [f"complete {n}" for n in range(1, len(lines) + 1)]


# -- checkpoints that fail


def test_a_full_disk_fails_the_checkpoint_and_the_job_continues(
    counting_env: Any, tmp_path: Path, job_directory: Path, fault_switch: FaultSwitch
) -> None:
    env = counting_env({"execution.checkpointing.tolerable-failed-checkpoints": 1_000})
    script = [*range(10), Pause(1), *range(10), Pause(1), *range(10)]
    stream = env.from_source(ScriptedSource(script, ends=False), NONE, "s").key_by(lambda v: v).process(Count())
    stream.sink_to(file_sink(tmp_path / "out"))
    fault_switch.on("storage.write", "ENOSPC", "/shared/")
    job = env.execute_async()
    failed = eventually(lambda: [e for e in history(job_directory) if e.status is CheckpointStatus.FAILED])
    assert failed[0].reason == "DECLINED"
    assert "No space left on device" in failed[0].message
    assert "free some space" in failed[0].message
    assert committed_lines(tmp_path / "out") == []
    fault_switch.off()
    # Everything is there once there is space again: nothing was lost, nothing came twice.
    lines = eventually(lambda: (found := committed_lines(tmp_path / "out")) and len(found) >= 30 and found)
    assert sorted(lines) == sorted(str((key, n)) for key in range(10) for n in (1, 2, 3))
    assert job.get_job_status().result() is JobStatus.RUNNING
    cancel(job)


def test_a_directory_that_cannot_be_written_for_a_while(
    counting_env: Any, tmp_path: Path, job_directory: Path, fault_switch: FaultSwitch
) -> None:
    env = counting_env({"execution.checkpointing.tolerable-failed-checkpoints": 1_000})
    job = start_counting(env, tmp_path / "out")
    eventually(lambda: checkpoints(job_directory))
    fault_switch.on("storage.publish", "EACCES", "_metadata")  # not by permissions: tests may run as root
    failed = eventually(lambda: [e for e in history(job_directory) if e.status is CheckpointStatus.FAILED])
    assert failed[0].reason == "STORAGE_FAILED"
    assert "Permission denied" in failed[0].message
    seen = committed_lines(tmp_path / "out")
    fault_switch.off()
    last = history(job_directory)[-1].checkpoint_id
    eventually(lambda: completed_after(job_directory, last))
    cancel(job)
    lines = committed_lines(tmp_path / "out")
    assert len(lines) > len(seen)
    assert_counts_are_whole(lines)


def completed_after(job_directory: Path, last: int) -> bool:
    entries = history(job_directory)
    return any(e.checkpoint_id > last and e.status is CheckpointStatus.COMPLETED for e in entries)


def assert_counts_are_whole(lines: list[str]) -> None:
    """Every key was counted 1, 2, 3, ... without a gap or a repetition."""
    counts: dict[int, list[int]] = {}
    for line in lines:
        key, count = json.loads(line.replace("(", "[").replace(")", "]"))
        counts.setdefault(key, []).append(count)
    assert counts
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())


def test_too_many_failed_checkpoints_fail_the_job(
    counting_env: Any, tmp_path: Path, job_directory: Path, fault_switch: FaultSwitch
) -> None:
    env = counting_env({"execution.checkpointing.tolerable-failed-checkpoints": 2})
    fault_switch.on("storage.write", "ENOSPC", "/shared/")
    job = start_counting(env, tmp_path / "out")
    with pytest.raises(JobFailedError) as failure:
        job.get_job_execution_result().result()
    assert isinstance(failure.value.__cause__, CheckpointError)
    assert "At most 2 checkpoints in a row may fail." in str(failure.value)
    assert "No space left on device" in str(failure.value)
    assert "tolerable-failed-checkpoints" in str(failure.value)
    assert [entry.status for entry in history(job_directory)] == [CheckpointStatus.FAILED] * 3
    assert committed_lines(tmp_path / "out") == []
    assert hidden_files(tmp_path / "out") == []


def test_a_checkpoint_that_takes_too_long_is_aborted(counting_env: Any, tmp_path: Path, job_directory: Path) -> None:
    env = counting_env({"execution.checkpointing.tolerable-failed-checkpoints": 1_000})
    env.get_checkpoint_config().set_checkpoint_timeout(10)
    source = ScriptedSource([*range(5), Pause(1), *range(5, 9)], ends=False)
    env.from_source(source, NONE, "s").key_by(lambda v: v).process(Count()).sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async()
    failed = eventually(lambda: [e for e in history(job_directory) if e.status is CheckpointStatus.FAILED])
    assert failed[0].reason == "EXPIRED"
    # A round takes longer than 10 ms, so nothing is ever committed, and nothing of it stays behind.
    assert committed_lines(tmp_path / "out") == []
    cancel(job)
    assert checkpoints(job_directory) == []
    assert hidden_files(tmp_path / "out") == []


def test_functions_are_notified_of_aborted_checkpoints(
    make_env: Any, tmp_path: Path, fault_switch: FaultSwitch
) -> None:
    keys = {"execution.checkpointing.interval": "30 ms", "execution.checkpointing.tolerable-failed-checkpoints": 1_000}
    env = make_env(keys, parallelism=1)
    numbers = env.from_source(DataGeneratorSource(lambda index: index, records_per_second=500), NONE, "n")
    numbers.map(Notified(str(tmp_path / "calls"))).key_by(lambda v: v % 3).process(Count()).add_sink(lambda v: None)
    fault_switch.on("storage.write", "ENOSPC", "/shared/")
    job = env.execute_async()
    eventually(lambda: (tmp_path / "calls").exists() and "aborted 1\n" in (tmp_path / "calls").read_text())
    fault_switch.off()
    eventually(lambda: "complete" in (tmp_path / "calls").read_text())
    cancel(job)
