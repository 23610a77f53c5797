"""Checkpoints in the memory of the driver's host: little state, restarts, nothing left; too much state is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_jobs import SETTINGS, SmallJob

from tidegate.checkpoint.history import read_history
from tidegate.common.errors import CheckpointError, ConfigurationError
from tidegate.common.files import Files
from tidegate.graph.transformation import Input, Partitioning, Program, ReduceSpec, Ship, Transformation
from tidegate.runtime import job_files
from tidegate.runtime.master import JobMaster
from tidegate.spark.session import check_settings
from tidegate.testing.simulated_engine import SimulatedEngine

STORAGE = "execution.checkpointing.storage"
LIMIT = "tidegate.checkpoint.max-state-size"


def keyed(job: SmallJob, **settings: Any) -> Program:
    """With a state for each number."""
    source, _, sink = job.program().transformations
    by_itself = Partitioning(Ship.HASH, lambda value: value)
    reduced = Transformation(2, "reduced", ReduceSpec(lambda a, b: a + b), (Input(1, by_itself),))
    values = {key: value for key, value in SETTINGS.items() if key != "tidegate.job-id"}
    return Program("small", (source, reduced, sink), {**values, STORAGE: "jobmanager", **settings})


def fails_once(mark: Path) -> Any:
    def function(value: int) -> int:
        if value == 7 and not mark.exists():
            mark.touch()
            raise ValueError("once")
        return value

    return function


def test_a_job_restarts_from_memory_and_leaves_nothing(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, function=fails_once(tmp_path / "failed"))
    program = job.program(**{STORAGE: "jobmanager", "restart-strategy.type": "fixed-delay"})
    configuration = {
        key: value
        for key, value in program.configuration.items()
        if key not in ("execution.checkpointing.dir", "tidegate.job-id")
    }
    configuration["restart-strategy.fixed-delay.delay"] = 1
    master = JobMaster(
        Program("small", program.transformations, configuration), SimulatedEngine(1), local_root=job.local
    )
    assert master.directory.startswith("/dev/shm/")
    master.run()
    assert len(master.view().attempts) == 2
    assert job.committed() == list(range(10))
    assert not os.path.exists(master.directory)


def test_more_state_than_may_be_kept_fails_the_checkpoint(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(200))
    where = f"{tmp_path}/kept"
    settings = {LIMIT: 50, "execution.checkpointing.dir": where, "tidegate.job-id": "small"}
    with pytest.raises(CheckpointError) as failed:
        JobMaster(keyed(job, **settings), SimulatedEngine(1), local_root=job.local).run()
    text = str(failed.value)
    assert "its state is larger than tidegate.checkpoint.max-state-size" in text
    assert "'reduced' (1/1) has" in text and "and 50 may be kept in memory" in text
    assert "use execution.checkpointing.storage: filesystem" in text
    assert read_history(Files(f"{where}/small"))[-1].reason == "STATE_TOO_LARGE"


def test_as_much_state_as_may_be_is_kept(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(200))
    JobMaster(keyed(job, **{LIMIT: 1 << 20}), SimulatedEngine(1), local_root=job.local).run()
    assert sorted(job.committed()) == list(range(200))


def test_without_memory_that_files_can_lie_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "_SHARED_MEMORY", f"{tmp_path}/none")
    with pytest.raises(ConfigurationError, match="Checkpoints in memory need a file system in memory"):
        JobMaster(keyed(SmallJob(tmp_path)), SimulatedEngine(1), local_root=str(tmp_path))


def test_tasks_on_other_hosts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="need tasks on the driver's host"):
        check_settings({STORAGE: "jobmanager", "spark.master": "spark://host:7077"})
    check_settings({STORAGE: "jobmanager", "spark.master": "spark://host:7077", "execution.checkpointing.dir": "/x"})
    check_settings({STORAGE: "jobmanager", "spark.master": "local[2]"})
