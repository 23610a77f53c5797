"""The view of a job on storage: what is read is what was shown, without secrets, and nothing depends on it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import FailsOnce, SmallJob
from tests.unit.runtime.test_figures import numbers
from tests.unit.runtime.timed_jobs import TimedEngine, TimedJob, takes
from tidegate.base import faults, secrets
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CorruptFileError, NewerFormatError, UserCodeError
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal_bytes
from tidegate.checkpoint.history import read_history
from tidegate.common.job_status import JobStatus
from tidegate.datastream.functions import MapFunction
from tidegate.runtime import stored_view
from tidegate.runtime.master import JobMaster
from tidegate.runtime.stored_view import EVERY_MS, FIRST_MS, MAGIC, PATH, StoredView, read_view, write_view

RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 5}


def stored(files: Files) -> StoredView:
    found = read_view(files)
    assert found is not None
    return found


def ended(directory: Path, function: Any = None, **settings: Any) -> JobMaster:
    job = SmallJob(directory) if function is None else SmallJob(directory, function=function)
    master = JobMaster(job.program(**settings), TimedEngine(1), clock=ManualClock(), local_root=job.local)
    master.run()
    return master


class Measures(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_metrics_group().counter("seen")

    def map(self, value: int) -> int:
        self.seen.inc()
        return value


def test_view_of_an_ended_job_is_read_as_it_was_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 5, "tidegate.job-id": "stored"}
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 20).map(Measures()).print(), **keys)
    shown = job.run()
    found = stored(Files(job.master.directory))
    assert found.view == replace(shown, ended_ms=found.view.ended_ms)
    assert found.view.status is JobStatus.FINISHED
    assert found.view.ended_ms is not None
    assert [metric.value for metric in found.view.metrics.values()] == [20]
    assert found.view.checkpoints[-1].subtasks
    assert found.story("round", 1) == job.master.story("round", 1) != []
    assert found.story("round", 99) == []


def test_directory_without_a_view_has_none(tmp_path: Path) -> None:
    assert read_view(Files(str(tmp_path))) is None


def test_damaged_and_newer_views_are_reported(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    files.write(PATH, seal_bytes(MAGIC, 1, b'{"as_of_ms": "no number"}'))
    with pytest.raises(CorruptFileError, match="tidegate-view version 1"):
        read_view(files)
    files.replace(PATH, seal_bytes(MAGIC, 2, b"{}"))
    with pytest.raises(NewerFormatError):
        read_view(files)


def test_secrets_are_in_no_view(tmp_path: Path) -> None:
    secrets.hide(['se"cret\\word'])
    master = ended(tmp_path)
    files = Files(master.directory)
    view = replace(master.view(), configuration={"connection": 'password is se"cret\\word'})
    write_view(files, view, 0)
    assert b"cret" not in files.read_bytes(PATH).partition(b'"configuration"')[2].partition(b"}")[0]
    assert stored(files).view.configuration == {"connection": "password is ***"}


def test_running_job_is_written_soon_and_then_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []
    real = stored_view.write_view

    def note(files: Files, view: Any, now_ms: int, **more: Any) -> None:
        written.append(now_ms - view.created_ms)
        real(files, view, now_ms, **more)

    def slow(value: int) -> int:
        takes(500)
        return value

    monkeypatch.setattr(stored_view, "write_view", note)
    keys: dict[str, Any] = {"tidegate.round.max-records": 1}
    job = TimedJob(tmp_path, monkeypatch, lambda env: numbers(env, 60).map(slow).print(), **keys)
    job.run()
    first, second, third, at_end = written
    assert FIRST_MS <= first < EVERY_MS
    assert min(second - first, third - second) >= EVERY_MS
    assert at_end >= 30_000


def test_failed_write_of_the_view_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(stored_view, "write_view", refuse)
    with caplog.at_level(logging.WARNING):
        master = ended(tmp_path)
    assert master.status is JobStatus.FINISHED
    assert "the view of the job is not stored: no space" in caplog.text


def test_view_is_written_at_a_failure(tmp_path: Path) -> None:
    FailsOnce.failures = 0
    seen: list[StoredView | None] = []
    job = SmallJob(tmp_path, function=FailsOnce())
    master = JobMaster(job.program(**RESTARTS), TimedEngine(1), clock=ManualClock(), local_root=job.local)
    faults.install(lambda name, _: seen.append(read_view(Files(master.directory))) if name == "C1.triggered" else None)
    master.run()
    faults.install(None)
    restarted = next(found for found in seen if found is not None)
    (failure,) = restarted.view.exceptions
    assert failure.kind == UserCodeError.__name__
    assert failure.debug_command == "tidegate debug small"
    assert restarted.view.attempts[-1].reason is not None


def test_job_with_a_temporary_directory_leaves_nothing(tmp_path: Path) -> None:
    master = ended(tmp_path, **{"execution.checkpointing.dir": None, "tidegate.job-id": None})
    assert not Path(master.directory).exists()


# -- checkpoints ---------------------------------------------------------------------------------------------------------


def slow_if_hot(pair: tuple[str, int]) -> tuple[str, int]:
    if pair[0] == "hot":
        takes(10)
    return pair


def build(env: Any) -> None:
    pairs = numbers(env, 100).map(lambda n: ("hot" if n % 5 else f"key {n}", n))
    pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: slow_if_hot((a[0], a[1] + b[1]))).name("sums").uid(
        "sums"
    ).set_parallelism(8).print()


def test_checkpoint_has_the_figures_of_every_subtask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 25, "execution.checkpointing.interval": "10 ms"}
    job = TimedJob(tmp_path, monkeypatch, build, **keys)
    view = job.run()
    sums = next(o.id for o in view.operators if o.name == "sums")
    first, *_, last = view.checkpoints
    of_sums = [figures for figures in last.subtasks if figures.operator == sums]
    assert [figures.subtask for figures in of_sums] == list(range(8))
    slowest = max(of_sums, key=lambda figures: figures.run_ms)
    hot = max(job.views[-1].subtasks, key=lambda subtask: subtask.busy)
    assert slowest.subtask == hot.subtask
    assert slowest.run_ms >= 100
    assert last.entry is not None
    assert sum(figures.size for figures in of_sums) == last.entry.operators[_uid_hash(last, "sums")].size > 0
    assert sum(f.incremental for f in of_sums) == last.entry.operators[_uid_hash(last, "sums")].incremental
    assert all(last.passed_ms[1] <= (figures.acknowledged_ms or 0) <= last.passed_ms[6] for figures in of_sums)
    assert first.subtasks


def _uid_hash(checkpoint: Any, name: str) -> str:
    return next(uid_hash for uid_hash, figures in checkpoint.entry.operators.items() if name in figures.name)


def test_history_keeps_the_slowest_and_largest_subtasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"tidegate.round.max-records": 25, "execution.checkpointing.interval": "10 ms"}
    job = TimedJob(tmp_path, monkeypatch, build, **keys)
    view = job.run()
    entry = read_history(Files(job.master.directory))[-1]
    ids = {_uid_hash(view.checkpoints[-1], "sums"): 5}
    kept = entry.figures(ids)
    full = [
        f for f in view.checkpoints[-1].subtasks if f.operator == next(o.id for o in view.operators if o.name == "sums")
    ]
    assert 3 <= len(kept) <= 6
    assert max(full, key=lambda figures: figures.run_ms).subtask in {figures.subtask for figures in kept}
    for figures in kept:
        assert replace(figures, operator=full[0].operator) == full[figures.subtask]
