"""What a checkpoint asks of storage: counted, and no more than the argument in ``checkpoint/lease.py`` needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SlowRounds, SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

METHODS: tuple[str, ...] = (
    "write",
    "publish",
    "replace",
    "rename",
    "delete",
    "delete_tree",
    "read",
    "read_bytes",
    "read_if_exists",
)
METHODS += (
    "exists",
    "size",
    "list",
    "list_names",
    "make_directory",
    "create_stream",
    "open_stream",
    "size_if_exists",
    "is_directory",
    "find",
)
NAMES = {"_metadata": "metadata", "live.json": "live record", "history.json": "history", "json": "claim"}

STEP_1 = ["replace live record", "exists claim"]
STEP_7 = ["exists claim", "publish metadata", "replace live record", "exists claim"]
STEP_9 = ["delete metadata", "delete_tree checkpoint"]
HISTORY = ["exists claim", "replace history"]


@contextmanager
def counted(directory: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every call of the driver on the job's directory; what tasks write there does not count."""
    calls: list[str] = []

    def note(method: str, path: str) -> None:
        if "rounds" not in threading.current_thread().name:
            ends = (name for end, name in NAMES.items() if path.endswith(end))
            calls.append(f"{method} {next(ends, 'checkpoint' if path.startswith('chk-') else path)}")

    def counting(method: str) -> Any:
        real = getattr(Files, method)

        def call(files: Files, path: Any = "", *arguments: Any) -> Any:
            if files.root == directory:
                note(method, path if isinstance(path, str) else path.path)
            return real(files, path, *arguments)

        return call

    with monkeypatch.context() as patch:
        for method in METHODS:
            patch.setattr(Files, method, counting(method))
        yield calls


def test_calls_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, clock = SmallJob(tmp_path, *range(18)), ManualClock()
    marks: list[int] = []
    master = JobMaster(job.program(), SlowRounds(clock, 10), clock=clock, local_root=job.local)
    with counted(f"{tmp_path}/checkpoints/small", monkeypatch) as calls:
        faults.install(lambda name, where: marks.append(len(calls)) if name == "C1.before-trigger" else None)
        master.run()
    faults.install(None)
    assert len(marks) >= 4
    checkpoints = [calls[start:end] for start, end in pairwise(marks)]
    assert checkpoints[0] == [*STEP_1, *STEP_7, *HISTORY], "nothing to subsume yet"
    for each in checkpoints[1:]:
        assert each == [*STEP_1, *STEP_7, *STEP_9, *HISTORY]
    assert len(checkpoints[1]) == 10


def test_counting_a_failure_takes_no_id_from_storage(tmp_path: Path) -> None:
    """A round without a barrier that is declined counts as a failed checkpoint, and the next real one has the next id."""
    job = SmallJob(tmp_path)
    declined: list[Any] = []

    seen: dict[int, list[tuple[str, int]]] = {}

    def disk_full_at_first(name: str, where: dict[str, Any]) -> None:
        if name == "C2.cut":
            entries = read_history(Files(f"{tmp_path}/checkpoints/small"))
            seen[where["round"]] = [(entry.reason, entry.checkpoint_id) for entry in entries]
        if name == "K1.ledger.flush" and not declined:
            declined.append(where)
            raise OSError(28, "No space left on device")

    faults.install(disk_full_at_first)
    settings = {"execution.checkpointing.tolerable-failed-checkpoints": 1, "execution.checkpointing.interval": 60_000}
    master = JobMaster(job.program(**settings), SimulatedEngine(1), clock=ManualClock(), local_root=job.local)
    master.run()
    assert declined
    assert seen[2] == [("DECLINED", 0)], "it is in the history before the next round"
    assert [c.checkpoint_id for c in master.view().checkpoints] == [1]
    assert job.committed() == list(range(10))
