"""The job master: rounds that hang, the end of a job, cancelling, listeners."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from small_jobs import SmallJob

from tidegate.checkpoint.history import read_history
from tidegate.checkpoint.lease import acquire
from tidegate.common import faults
from tidegate.common.clock import ManualClock
from tidegate.common.errors import CheckpointError, FencedError, JobCancelledError, LeaseError, RoundError
from tidegate.common.files import Files
from tidegate.common.job_status import JobStatus
from tidegate.operators.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulated_engine import SimulatedEngine

TIMEOUT = "execution.checkpointing.timeout"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
RESTART_ONCE = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1}


class HangingEngine(SimulatedEngine):
    """A round number ``hangs`` runs until it is cancelled, as one whose task waits for ever."""

    def __init__(self, hangs: int) -> None:
        super().__init__(seed=1)
        self._hangs, self._cancelled = hangs, threading.Event()
        self.cancels = self.runs = 0

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.runs += 1
        if self.runs == self._hangs:
            self._cancelled.wait()
            raise RoundError("A Spark job failed, with all its retries", found="cancelled")
        return super().run(plan)

    def cancel(self) -> None:
        self.cancels += 1
        self._cancelled.set()


# -- rounds that hang --


@pytest.mark.parametrize("tolerable", [0, 2])
def test_a_round_that_hangs_is_cut_off_and_its_checkpoint_expires(tmp_path: Path, tolerable: int) -> None:
    job, engine = SmallJob(tmp_path), HangingEngine(hangs=2)
    settings = {TIMEOUT: 40, TOLERABLE: tolerable, **RESTART_ONCE}
    JobMaster(job.program(**settings), engine, local_root=job.local).run()
    assert engine.cancels >= 1
    assert job.committed() == list(range(10))
    expired = [entry for entry in read_history(Files(f"{tmp_path}/checkpoints/small")) if entry.reason == "EXPIRED"]
    assert len(expired) == 1
    assert "round 2 had not ended after" in expired[0].message


def test_a_round_that_hangs_without_restarts_fails_the_job_and_says_why(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    master = JobMaster(job.program(**{TIMEOUT: 20}), HangingEngine(hangs=1), local_root=job.local)
    with pytest.raises(CheckpointError) as caught:
        master.run()
    assert "took longer than execution.checkpointing.timeout: round 1 had not ended" in str(caught.value.found)
    assert master.status is JobStatus.FAILED


# -- a newer driver --


class OvertakenEngine(SimulatedEngine):
    """In its third round another driver takes the job over, which the round's failure is a consequence of."""

    def __init__(self, directory: str) -> None:
        super().__init__(seed=1)
        self._files = Files(directory)
        self.runs = self.stops = 0

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.runs += 1
        if self.runs < 3:
            return super().run(plan)
        self.newer = acquire(self._files, ManualClock(), job_id="small", liveness=lambda owner: False)
        self._files.replace("history.json", b"the newer driver's")
        raise RoundError("A Spark job failed, with all its retries", found="cancelled")

    def stop(self) -> None:
        self.stops += 1
        super().stop()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_driver_that_lost_its_lease_touches_nothing_any_more(tmp_path: Path, cancelled: bool) -> None:
    job = SmallJob(tmp_path)
    directory = f"{tmp_path}/checkpoints/small"
    engine = OvertakenEngine(directory)
    stopped: list[JobMaster] = []

    def cancel_in_time(name: str, where: dict[str, Any]) -> None:
        if cancelled and engine.runs == 3 and not stopped:
            stopped.append(master)
            master.cancel()

    faults.install(cancel_in_time)
    master = JobMaster(job.program(), engine, clock=ManualClock(), local_root=job.local)
    Files(job.local).write("small/store", b"the newer driver's")
    with pytest.raises(JobCancelledError if cancelled else FencedError):
        master.run()
    faults.install(None)
    assert len(stopped) == cancelled
    assert Files(directory).read_bytes("history.json") == b"the newer driver's"
    assert engine.stops == 0, "the local stores are the newer driver's"
    assert master.status is (JobStatus.CANCELED if cancelled else JobStatus.FAILED)


def test_local_stores_go_before_the_lease_is_given_up(tmp_path: Path) -> None:
    """The next driver may start at once, and its stores have the same names."""
    job, held = SmallJob(tmp_path), []

    class Engine(SimulatedEngine):
        def stop(self) -> None:
            with pytest.raises(LeaseError, match="used by one driver at a time"):
                acquire(Files(f"{tmp_path}/checkpoints/small"), ManualClock(), job_id="small")
            held.append(True)

    JobMaster(job.program(), Engine(1), local_root=job.local).run()
    assert held


# -- the end --


def test_the_last_checkpoint_waits_when_storage_gives_no_id(tmp_path: Path) -> None:
    job, clock = SmallJob(tmp_path, 1, 2), ManualClock()
    passed: list[str] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        passed.append(name)
        if passed[-2:] == ["C1.before-trigger", "storage.replace"] and passed.count("C1.before-trigger") <= 3:
            raise OSError(28, "full")

    faults.install(hook)
    before = clock.now_ms()
    JobMaster(job.program(**{TOLERABLE: 10}), SimulatedEngine(1), clock=clock, local_root=job.local).run()
    assert passed.count("C1.before-trigger") == 4
    assert job.committed() == [1, 2]
    assert clock.now_ms() - before >= 200, "it was asked again and again without a pause"
