"""Checkpoints in the memory of the driver's host: little state, restarts, nothing left; too much state is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SETTINGS, SmallJob
from tidegate.base import faults
from tidegate.base.errors import (
    CheckpointError,
    ConfigurationError,
    JobCancelledError,
    JobSuspendedError,
    TidegateError,
    UserCodeError,
)
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.graph.transformation import Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import ReduceSpec
from tidegate.runtime import life_cycle
from tidegate.runtime.master import JobMaster
from tidegate.runtime.settings import JobSettings
from tidegate.spark.session import check_settings
from tidegate.testing.simulation.engine import SimulatedEngine

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


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setattr(life_cycle, "_SHARED_MEMORY", str(place))
    return place


def left_in(memory: Path) -> list[str]:
    return list(Files(str(memory)).list())


def in_memory(job: SmallJob, **settings: Any) -> JobMaster:
    program = job.program(**{STORAGE: "jobmanager", **settings})
    own = ("execution.checkpointing.dir", "tidegate.job-id")
    configuration = {key: value for key, value in program.configuration.items() if key not in own}
    return JobMaster(Program("small", program.transformations, configuration), SimulatedEngine(1), local_root=job.local)


@pytest.fixture
def published() -> Iterator[list[Callable[[], object]]]:
    """What happens when the first checkpoint is complete."""
    acts: list[Callable[[], object]] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C6.published" and acts:
            acts.pop()()

    faults.install(hook)
    yield acts
    faults.install(None)


MANY = range(3000)
"""So many that a checkpoint comes before the last."""


def test_a_failed_job_leaves_nothing_in_memory(
    tmp_path: Path, memory: Path, published: list[Callable[[], object]]
) -> None:
    mark = tmp_path / "mark"
    published.append(mark.touch)
    master = in_memory(SmallJob(tmp_path, *MANY, function=lambda value: 1 // 0 if mark.exists() else value))
    with pytest.raises(UserCodeError):
        master.run()
    assert not published and left_in(memory) == []
    assert master.kept_checkpoint() is None, "nobody is told to restore what is gone"


@pytest.mark.parametrize("retention", ["RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION"])
def test_a_cancelled_job_leaves_nothing_in_memory(
    tmp_path: Path, memory: Path, published: list[Callable[[], object]], retention: str
) -> None:
    settings = {"execution.checkpointing.externalized-checkpoint-retention": retention}
    master = in_memory(SmallJob(tmp_path, *MANY), **settings)
    published.append(master.cancel)
    with pytest.raises(JobCancelledError):
        master.run()
    assert not published and left_in(memory) == []


def test_a_job_that_is_refused_leaves_nothing_in_memory(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(TidegateError):
        in_memory(SmallJob(tmp_path), **{"execution.state-recovery.path": f"{tmp_path}/missing"}).prepare()
    assert left_in(memory) == []


def test_an_interrupted_job_can_continue_from_memory(
    tmp_path: Path, memory: Path, published: list[Callable[[], object]]
) -> None:
    master = in_memory(SmallJob(tmp_path, *MANY))
    published.append(master.suspend)
    with pytest.raises(JobSuspendedError):
        master.run()
    kept = master.kept_checkpoint()
    assert kept is not None
    in_memory(SmallJob(tmp_path / "another")).run()
    assert master.kept_checkpoint() == kept, "the next driver has swept, and left it"
    again = SmallJob(tmp_path, *MANY)
    in_memory(again, **{"execution.state-recovery.path": kept}).run()
    assert sorted(again.committed()) == list(MANY)


_LEAVES = """
import sys
from tidegate.runtime import life_cycle
from tidegate.runtime.settings import JobSettings
life_cycle._SHARED_MEMORY = sys.argv[1]
settings = JobSettings.of({"execution.checkpointing.storage": "jobmanager", "execution.checkpointing.interval": 10})
made = life_cycle.job_files(settings, "job", sys.argv[1], one_host=True)
made.files.write("chk-1/_metadata", b"")
print(made.files.root, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("asked_for", [False, True])
def test_what_a_killed_driver_has_left_in_memory_goes_with_the_next_one_unless_a_job_restores_it(
    tmp_path: Path, memory: Path, asked_for: bool
) -> None:
    command = [sys.executable, "-c", _LEAVES, str(memory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        directory = driver.stdout.readline().strip()
        SmallJob(tmp_path / "first").directory.mkdir()
        in_memory(SmallJob(tmp_path / "first")).run()
        assert os.path.exists(f"{directory}/chk-1/_metadata"), "it lives"
        driver.kill()
    if asked_for:
        asked = JobSettings.of({"execution.state-recovery.path": f"file://{directory}/chk-1"})
        life_cycle.job_files(asked, "job", str(tmp_path), one_host=True)
    life_cycle.job_files(JobSettings.of({}), "other", str(tmp_path), one_host=True)
    assert os.path.exists(f"{directory}/chk-1/_metadata") is asked_for
    assert bool(left_in(memory)) is asked_for


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
    monkeypatch.setattr(life_cycle, "_SHARED_MEMORY", f"{tmp_path}/none")
    with pytest.raises(
        ConfigurationError,
        match="Checkpoints cannot be stored in memory: the host has no writable file system in memory",
    ):
        JobMaster(keyed(SmallJob(tmp_path)), SimulatedEngine(1), local_root=str(tmp_path))


def test_tasks_on_other_hosts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="need tasks on the driver's host"):
        check_settings({STORAGE: "jobmanager", "spark.master": "spark://host:7077"})
    check_settings({STORAGE: "jobmanager", "spark.master": "spark://host:7077", "execution.checkpointing.dir": "/x"})
    check_settings({STORAGE: "jobmanager", "spark.master": "local[2]"})
