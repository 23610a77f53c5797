"""A job with a fixed id never begins from zero beside its committed output without being told to."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base.clock import ManualClock
from tidegate.base.errors import ConfigurationError, JobCancelledError, JobSuspendedError, RestoreError
from tidegate.common.job_status import JobStatus
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import StopWithSavepoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

ANEW: dict[str, Any] = {"tidegate.start-anew": True}


class Ends(SimulatedEngine):
    """The job is told to end while a round runs."""

    def __init__(self, round: int, how: str) -> None:
        super().__init__(seed=1)
        self._round, self._how = round, how
        self._runs = 0
        self.clock = ManualClock()
        self.master: JobMaster | None = None

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._runs += 1
        self.clock.advance(20)  # so that every round has a checkpoint
        if self._runs == self._round and self.master is not None:
            getattr(self.master, self._how)()
        return super().run(plan)


def run(job: SmallJob, round: int = 0, how: str = "cancel", **settings: Any) -> JobStatus:
    engine = Ends(round, how)
    master = engine.master = JobMaster(job.program(**settings), engine, clock=engine.clock, local_root=job.local)
    with contextlib.suppress(JobCancelledError, JobSuspendedError):
        master.run()
    return master.status


def test_after_a_cancel_that_deletes_it_is_refused_and_says_how(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(30))
    assert run(job, 5) is JobStatus.CANCELED
    committed = job.committed()
    assert 0 < len(committed) < 30
    with pytest.raises(RestoreError) as caught:
        run(job)
    error = caught.value
    assert error.rule.startswith("The job would start with empty state, but has committed output")
    assert f"job small, {tmp_path}/checkpoints/small" in str(error.where)
    assert "it was cancelled after checkpoint " in str(error.found)
    assert "and its checkpoints were deleted" in str(error.found)
    assert "set tidegate.start-anew=true" in str(error.cure)
    assert "or set another tidegate.job-id" in str(error.cure)
    assert job.committed() == committed
    assert run(job, **ANEW) is JobStatus.FINISHED


def test_nothing_committed_is_nothing_to_refuse(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(30))
    assert run(job, 1) is JobStatus.CANCELED
    assert job.committed() == []
    assert run(job) is JobStatus.FINISHED


def test_the_option_counts_for_one_run_only(tmp_path: Path) -> None:
    """The run that began anew is cancelled before its first checkpoint: the output of the first is still there."""
    job = SmallJob(tmp_path, *range(30))
    run(job, 5)
    assert run(job, 1, **ANEW) is JobStatus.CANCELED
    with pytest.raises(RestoreError, match="would be duplicated"):
        run(job)


def test_the_option_left_set_skips_no_checkpoint(tmp_path: Path) -> None:
    """A supervisor starts the same command again and again: only the first start begins anew."""
    job = SmallJob(tmp_path, *range(30))
    run(job, 5)
    once = len(job.committed())
    assert run(job, 5, "suspend", **ANEW) is JobStatus.SUSPENDED
    assert run(job, **ANEW) is JobStatus.FINISHED
    assert len(job.committed()) == once + 30


@pytest.mark.parametrize("how", ["suspend", "cancel"])
def test_kept_checkpoints_continue(tmp_path: Path, how: str) -> None:
    job = SmallJob(tmp_path, *range(30))
    retain = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    status = run(job, 5, how, **(retain if how == "cancel" else {}))
    assert status is (JobStatus.CANCELED if how == "cancel" else JobStatus.SUSPENDED)
    assert run(job) is JobStatus.FINISHED
    assert sorted(job.committed()) == list(range(30))


def test_a_job_without_checkpoints_is_cancelled_when_it_is_suspended(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(30))
    assert run(job, 2, "suspend", **{"execution.checkpointing.interval": None}) is JobStatus.CANCELED


def test_a_fixed_id_needs_a_directory(tmp_path: Path) -> None:
    """Every start would begin anew, in a temporary one."""
    nowhere: dict[str, Any] = {"execution.checkpointing.dir": None}
    with pytest.raises(ConfigurationError) as caught:
        run(SmallJob(tmp_path), **nowhere)
    assert "tidegate.job-id=small, and no execution.checkpointing.dir" in str(caught.value.found)
    assert caught.value.cure == "set execution.checkpointing.dir, or remove tidegate.job-id"


# -- with a path -----------------------------------------------------------------------------------------------------------


def start_from(path: object) -> dict[str, Any]:
    return {"execution.state-recovery.path": str(path)}


def savepoint_of(job: SmallJob, directory: Path, round: int = 3) -> str:
    """The job is stopped with it."""
    answers = []

    class Stops(Ends):
        def run(self, plan: RoundPlan) -> list[Ack]:
            if self._runs + 1 == round:
                answers.append(master.submit(StopWithSavepoint(str(directory))))
            return super().run(plan)

    stops = Stops(0, "")
    master = JobMaster(job.program(), stops, clock=stops.clock, local_root=job.local)
    master.run()
    return answers[0].answer.result(0)


def test_the_same_path_again_after_a_cancel_that_deletes_is_refused(tmp_path: Path) -> None:
    """It would go back to where it began, beside what it has committed since."""
    job = SmallJob(tmp_path, *range(40))
    path = savepoint_of(job, tmp_path / "sp")
    before = len(job.committed())
    assert run(job, 5, **start_from(path)) is JobStatus.CANCELED
    committed = job.committed()
    assert len(committed) > before
    with pytest.raises(RestoreError) as caught:
        run(job, **start_from(path))
    assert caught.value.rule.startswith("The job would start with empty state, but has committed output")
    assert "set tidegate.start-anew=true" in str(caught.value.cure)
    assert job.committed() == committed
    assert run(job, **ANEW, **start_from(path)) is JobStatus.FINISHED


def test_the_same_path_again_is_fine_while_nothing_has_come_of_it(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = savepoint_of(job, tmp_path / "sp")
    assert run(job, 1, **start_from(path)) is JobStatus.CANCELED
    assert run(job, **start_from(path)) is JobStatus.FINISHED
    assert sorted(job.committed()) == list(range(40))


def test_a_stopped_job_that_is_started_without_its_savepoint_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = savepoint_of(job, tmp_path / "sp")
    done = job.committed()
    assert run(job) is JobStatus.FINISHED
    assert job.committed() == done
    assert f"to continue, start it with execution.state-recovery.path={path} (tidegate run -s)" in caplog.text


def test_from_elsewhere_beside_its_own_checkpoints_is_refused(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = savepoint_of(job, tmp_path / "sp")
    other: dict[str, Any] = {"tidegate.job-id": "other"}
    assert run(job, 3, "suspend", **other) is JobStatus.SUSPENDED
    with pytest.raises(RestoreError) as caught:
        run(job, **other, **start_from(path))
    assert caught.value.rule.startswith("The job has checkpoints of its own")
    assert f"and it was started from {path}" in str(caught.value.found)
    assert "set another tidegate.job-id to start from there" in str(caught.value.cure)
    assert run(job, **other) is JobStatus.FINISHED
