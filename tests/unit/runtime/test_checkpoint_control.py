"""When checkpoints are taken, which failures count, what stays on storage: C8 to C10 and C12, on whole jobs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import check_storage
from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, ConfigurationError, JobCancelledError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, read_history
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.inbox import Inbox
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine
from tidegate.testing.simulation.lanes import SimulatedLanes

PREFIX = "execution.checkpointing."
RETAINED = "execution.checkpointing.num-retained"
STEPS = range(60)
"""Twenty rounds of three."""


class Rounds(SimulatedEngine):
    """Rounds take 20 ms: each carries a checkpoint, if there is room. ``slow``: rounds that take longer, by number."""

    def __init__(self, clock: ManualClock, slow: dict[int, int]) -> None:
        super().__init__(1)
        self.clock, self.slow, self.rounds = clock, slow, 0
        self.at: dict[int, Callable[[], None]] = {}

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.rounds += 1
        self.clock.advance(self.slow.get(self.rounds, 20))
        self.at.get(self.rounds, lambda: None)()
        return super().run(plan)


class EagerLanes(SimulatedLanes):
    """In one thread: what is to be stored is stored before the next round."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(inbox, 1)
        self._before = 1.0


class Job:
    def __init__(self, directory: Path, slow: dict[int, int] | None = None, /, **settings: Any) -> None:
        self.small, self.clock = SmallJob(directory, *STEPS), ManualClock()
        self.engine = Rounds(self.clock, slow or {})
        self.files = Files(f"{directory}/checkpoints/small")
        program = self.small.program(**settings)
        self.master = JobMaster(
            program,
            self.engine,
            clock=self.clock,
            local_root=self.small.local,
            lanes=lambda inbox, _: EagerLanes(inbox),
        )

    def history(self) -> list[HistoryEntry]:
        return read_history(self.files)

    def reasons(self) -> list[str]:
        """Of those that failed."""
        return [entry.reason for entry in self.history() if entry.status is CheckpointStatus.FAILED]


def not_stored(*numbers: int) -> None:
    """The metadata of these checkpoints cannot be written."""

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C4.before-publish" and where["path"] in {f"chk-{number}/_metadata" for number in numbers}:
            raise StorageError("Not stored.", found="disk full")

    faults.install(hook)


@pytest.fixture(autouse=True)
def _no_faults() -> Any:
    yield
    faults.install(None)


# -- storage that is not there -----------------------------------------------------------------------------------------------


def test_storage_that_cannot_be_written_fails_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the directory should be")
    job = Job(tmp_path)
    with pytest.raises(ConfigurationError, match="The checkpoint directory is not writable") as refused:
        job.master.run()
    assert str(tmp_path / "checkpoints") in str(refused.value)
    assert refused.value.cure
    assert job.engine.rounds == 0
    assert job.small.committed() == []


def test_a_scheme_nobody_knows_is_refused_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="nowhere"):
        Job(tmp_path, **{PREFIX + "dir": "nowhere://bucket/x"}).master.run()


def test_storage_that_fails_later_is_not_tolerated_by_default(tmp_path: Path) -> None:
    job = Job(tmp_path)
    not_stored(2)
    with pytest.raises(CheckpointError) as failed:
        job.master.run()
    assert "At most 0 checkpoints in a row may fail" in str(failed.value)
    assert "disk full" in str(failed.value)
    assert "raise execution.checkpointing.tolerable-failed-checkpoints" in str(failed.value)
    assert job.reasons() == ["STORAGE_FAILED"]


@pytest.mark.parametrize(("numbers", "survives"), [((2, 3), True), ((2, 3, 4), False), ((2, 3, 5, 6, 8, 9), True)])
def test_only_failures_in_a_row_count(tmp_path: Path, numbers: tuple[int, ...], survives: bool) -> None:
    job = Job(tmp_path, **{PREFIX + "tolerable-failed-checkpoints": 2})
    not_stored(*numbers)
    if not survives:
        with pytest.raises(CheckpointError, match="At most 2 checkpoints in a row may fail"):
            job.master.run()
        return
    job.master.run()
    assert job.reasons() == ["STORAGE_FAILED"] * len(numbers)
    assert job.small.committed() == list(STEPS)  # what a failed one held went into the next


# -- C8 ----------------------------------------------------------------------------------------------------------------------


def test_an_expired_checkpoint_leaves_nothing_and_its_output_goes_into_the_next(tmp_path: Path) -> None:
    settings = {PREFIX + "timeout": 100, PREFIX + "tolerable-failed-checkpoints": 1}
    job = Job(tmp_path, {5: 150}, **settings)
    seen: list[list[str]] = []
    job.engine.at[7] = lambda: seen.append(job.files.list_names())
    job.master.run()
    assert job.reasons() == ["EXPIRED"]
    [expired] = [entry for entry in job.history() if entry.status is CheckpointStatus.FAILED]
    assert f"chk-{expired.checkpoint_id}" not in seen[0]
    assert job.small.committed() == list(STEPS)


def test_expired_ones_count(tmp_path: Path) -> None:
    """A round that is longer than all that is tolerated is cut off instead: test_lanes.py."""
    job = Job(tmp_path, {5: 150}, **{PREFIX + "timeout": 100})
    with pytest.raises(CheckpointError, match=r"took longer than execution\.checkpointing\.timeout"):
        job.master.run()


# -- C9 ----------------------------------------------------------------------------------------------------------------------


def test_the_pause_is_kept_also_after_a_failed_one(tmp_path: Path) -> None:
    settings = {PREFIX + "min-pause": 50, PREFIX + "max-concurrent-checkpoints": 3}
    job = Job(tmp_path, **settings, **{PREFIX + "tolerable-failed-checkpoints": 1})
    not_stored(2)
    job.master.run()
    entries = job.history()
    assert len(entries) >= 4
    *taken, last = entries  # the last one waits for nobody: it commits the end
    assert all(later.trigger_ms - earlier.end_ms >= 50 for earlier, later in pairwise(taken))
    assert last.trigger_ms >= taken[-1].end_ms


@pytest.mark.parametrize("concurrent", [1, 3])
def test_completed_in_the_order_of_their_ids(tmp_path: Path, concurrent: int) -> None:
    order: list[int] = []
    faults.install(lambda name, where: order.append(where["checkpoint_id"]) if name == "C6.all-committed" else None)
    job = Job(tmp_path, **{PREFIX + "max-concurrent-checkpoints": concurrent})
    job.master.run()
    assert order == sorted(order) and len(order) > 2
    assert job.small.committed() == list(STEPS)


# -- C12 and I8 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retained", [1, 3])
def test_a_failed_job_keeps_as_many_as_it_should_and_nothing_else(tmp_path: Path, retained: int) -> None:
    job = Job(tmp_path, **{RETAINED: retained})
    not_stored(8)
    with pytest.raises(CheckpointError):
        job.master.run()
    kept = [name for name in job.files.list_names() if name.startswith("chk-")]
    assert kept == [f"chk-{number}" for number in range(8 - retained, 8)]
    check_storage(job.files.root, ended=False)


@pytest.mark.parametrize("retention", ["DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"])
def test_a_cancelled_job_keeps_what_it_was_told_to(tmp_path: Path, retention: str) -> None:
    job = Job(tmp_path, **{PREFIX + "externalized-checkpoint-retention": retention, RETAINED: 2})
    job.engine.at[8] = job.master.cancel
    with pytest.raises(JobCancelledError):
        job.master.run()
    kept = [name for name in job.files.list_names() if name.startswith("chk-")]
    assert len(kept) == (2 if retention.startswith("RETAIN") else 0)
    check_storage(job.files.root, ended=not kept)
    assert job.history()  # it outlives the checkpoints


def test_a_finished_job_leaves_its_records_only(tmp_path: Path) -> None:
    job = Job(tmp_path, **{PREFIX + "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"})
    job.master.run()
    check_storage(job.files.root, ended=True)
    assert [entry.status for entry in job.history()] == [CheckpointStatus.COMPLETED] * len(job.history())
