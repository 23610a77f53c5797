"""The life of a function object: opened before its first record, closed after its last one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import UserCodeError
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine


class Diary:
    """A map function; ``diary`` is shared because the simulated workers are this process."""

    diary: ClassVar[list[Any]] = []

    def open(self, runtime_context: Any) -> None:
        self.diary.append("open")

    def map(self, value: Any) -> Any:
        self.diary.append(value)
        return value

    def close(self) -> None:
        self.diary.append("close")


class Listener(Diary):
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.diary.append(f"checkpoint {checkpoint_id}")


class CannotClose(Diary):
    def close(self) -> None:
        raise OSError("still busy")


@pytest.fixture(autouse=True)
def _empty_diary() -> Iterator[None]:
    Diary.diary.clear()
    yield
    faults.install(None)


def run(directory: Path, function: Any) -> list[Any]:
    """In one worker, so with one copy of the function."""
    job = SmallJob(directory, 1, 2, function=function)
    program = job.program(**{"execution.checkpointing.tolerable-failed-checkpoints": 1})
    engine = SimulatedEngine(1, workers=1)
    JobMaster(program, engine, clock=ManualClock(), local_root=job.local, listeners=[]).run()
    return Diary.diary


def test_a_function_is_closed_when_its_input_has_ended(tmp_path: Path) -> None:
    assert run(tmp_path, Diary()) == ["open", 1, 2, "close"]


def test_a_function_that_listens_hears_of_the_last_checkpoint_before_it_is_closed(tmp_path: Path) -> None:
    assert run(tmp_path, Listener()) == ["open", 1, 2, "checkpoint 1", "close"]


def test_a_function_whose_last_round_is_repeated_is_opened_again(tmp_path: Path) -> None:
    snapshots: list[Any] = []

    def disk_full_at_first(name: str, where: dict[str, Any]) -> None:
        if name == "T2.before-segment" and not snapshots:
            snapshots.append(where)
            raise OSError("no space left on device")

    faults.install(disk_full_at_first)
    diary = run(tmp_path, Diary())
    assert snapshots, "nothing was injected"
    assert diary == ["open", 1, 2, "close"] * 2


def test_a_function_that_cannot_be_closed_fails_the_job(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"close\(\) of operator 'mapped'.*\n.*OSError: still busy"):
        run(tmp_path, CannotClose())
