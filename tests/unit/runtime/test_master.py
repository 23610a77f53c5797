"""The job master: rounds that hang, the end of a job, cancelling, listeners."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import staged_pages
from tests.sinks import LedgerSink
from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock, SystemClock
from tidegate.base.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    JobCancelledError,
    JobFailedError,
    JobSuspendedError,
    LeaseError,
    RetryableCommitError,
    RoundError,
    ServiceError,
    TidegateError,
)
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.checkpoint.lease import acquire
from tidegate.common.job_status import JobStatus
from tidegate.operators.contracts.sink import Committer, CommitterContext, Prepared, Sink, SinkWriter, WriterContext
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import Chances, SimulatedEngine

TIMEOUT = "execution.checkpointing.timeout"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
RESTART_ONCE = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1} | {
    "restart-strategy.fixed-delay.delay": 0
}


class RoundClock(SystemClock):
    """Time that only rounds take: however slow the machine is, no round but one that hangs runs into a timeout."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class HangingEngine(SimulatedEngine):
    """A round number ``hangs`` runs until it is cancelled, as one whose task waits for ever."""

    def __init__(self, hangs: int) -> None:
        super().__init__(seed=1)
        self.clock = RoundClock()
        self._hangs, self._cancelled = hangs, threading.Event()
        self.cancels = self.runs = 0

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.runs += 1
        self.clock.now += 0.02
        self._cancelled.clear()  # what came on a slow machine for the round before
        if self.runs == self._hangs:
            self._cancelled.wait()
            raise RoundError("A Spark job failed, and so did all its retries", found="cancelled")
        return super().run(plan)

    def cancel(self) -> None:
        self.cancels += 1
        self._cancelled.set()


# -- rounds that hang --


@pytest.mark.parametrize("tolerable", [0, 2])
@pytest.mark.parametrize("hangs", [1, 2])
def test_a_round_that_hangs_is_cut_off_and_its_checkpoint_expires(tmp_path: Path, tolerable: int, hangs: int) -> None:
    """The first round carries no checkpoint yet: then the one that would have been due has expired."""
    job, engine = SmallJob(tmp_path), HangingEngine(hangs)
    settings = {TIMEOUT: 40, TOLERABLE: tolerable, **RESTART_ONCE}
    JobMaster(job.program(**settings), engine, clock=engine.clock, local_root=job.local).run()
    assert engine.cancels >= 1
    assert job.committed() == list(range(10))
    expired = [entry for entry in read_history(Files(f"{tmp_path}/checkpoints/small")) if entry.reason == "EXPIRED"]
    assert len(expired) == 1
    patience = (tolerable + 1) * 40 + (10 if hangs == 1 else 0)
    assert expired[0].message == f"round {hangs} had not ended after {patience} ms"


def test_a_round_that_hangs_without_restarts_fails_the_job_and_says_why(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    engine = HangingEngine(hangs=1)
    master = JobMaster(job.program(**{TIMEOUT: 20}), engine, clock=engine.clock, local_root=job.local)
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
        self._files.replace("view.json", b"the newer driver's")
        raise RoundError("A Spark job failed, and so did all its retries", found="cancelled")

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
    assert Files(directory).read_bytes("view.json") == b"the newer driver's"
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


# -- cancelling --


def run_until(job: SmallJob, point: str, at: Callable[[JobMaster], None], **settings: Any) -> JobMaster:
    """Run a job and do something when it passes a fault point for the first time."""
    passed: list[str] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        passed.append(name)
        if name == point and passed.count(name) == 1:
            at(master)

    master = JobMaster(job.program(**settings), SimulatedEngine(1), clock=ManualClock(), local_root=job.local)
    faults.install(hook)
    with contextlib.suppress(TidegateError):
        master.run()
    faults.install(None)
    assert point in passed
    return master


def test_cancelling_a_job_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    master = run_until(SmallJob(tmp_path), "C2.cut", lambda master: None)
    master.cancel()
    assert master.status is JobStatus.FINISHED


@pytest.mark.parametrize("point", ["C7.discard-recorded", "C2.cut"])
def test_cancelling_a_job_ends_in_one_status_whenever_it_comes(tmp_path: Path, point: str) -> None:
    """After the last commit it finishes all the same, before it is cancelled; never does it stay between."""
    seen: list[JobStatus] = []

    def cancel(master: JobMaster) -> None:
        master.cancel()
        seen.append(master.status)

    master = run_until(SmallJob(tmp_path), point, cancel)
    assert seen == [JobStatus.CANCELLING]
    assert master.status is (JobStatus.CANCELED if point == "C2.cut" else JobStatus.FINISHED)


def test_a_job_being_cancelled_does_not_seem_to_run_again(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    master = JobMaster(job.program(), SimulatedEngine(1), clock=ManualClock(), local_root=job.local)
    master.prepare()
    master.cancel()
    seen: list[JobStatus] = []
    faults.install(lambda name, where: seen.append(master.status))
    with pytest.raises(JobCancelledError):
        master.run()
    assert set(seen) == {JobStatus.CANCELLING}
    assert master.status is JobStatus.CANCELED


def test_a_cancelled_job_that_owes_output_keeps_the_checkpoint_that_holds_it(tmp_path: Path) -> None:
    """The outside system is down; the user gives up. Deleting the checkpoint would lose what it has promised."""
    job = SmallJob(tmp_path, sink=Unreachable())
    settings = {"tidegate.commit.max-attempts": 1, **RESTART_ONCE}
    master = run_until(job, "C6.before-commit", lambda master: master.cancel(), **settings)
    assert master.status is JobStatus.FAILED
    assert master.kept_checkpoint() == f"{tmp_path}/checkpoints/small/chk-1"


class Unreachable(Sink, SinkWriter, Committer):
    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return self

    def create_committer(self, context: CommitterContext) -> Committer:
        return self

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None: ...

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared(["all"])

    def abort(self, committables: Any = None) -> None: ...

    def commit(self, committables: list[Any]) -> None:
        raise RetryableCommitError("no route to host")


# -- what tasks leave behind --


def test_output_of_attempts_that_did_not_count_is_gone_at_the_end(tmp_path: Path) -> None:
    """Spark ran every task twice, and both attempts prepared their output: one is committed, the other aborted."""
    job, engine = SmallJob(tmp_path), SimulatedEngine(1, Chances(zombie=1.0))
    JobMaster(job.program(), engine, clock=ManualClock(), local_root=job.local).run()
    assert engine.fired["zombie"] >= 4
    assert job.committed() == list(range(10))
    assert staged_pages(f"{tmp_path}/ledger") == []


# -- a start while another system is away --


class AwaySink(LedgerSink):
    """Its system does not answer the first ``away`` checks."""

    away = 0

    def __init__(self, path: str, error: type[Exception] = ServiceError) -> None:
        super().__init__(path)
        self._error = error

    def validate(self) -> None:
        if AwaySink.away > 0:
            AwaySink.away -= 1
            raise self._error("the database does not answer")


def away_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: int, error: type[Exception]) -> SmallJob:
    monkeypatch.setattr(AwaySink, "away", away)
    return SmallJob(tmp_path, sink=AwaySink(f"{tmp_path}/ledger", error))


COVERED = {
    "tidegate.restart.covers-start": True,
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": 1,
    "restart-strategy.exponential-delay.max-backoff": 1,
}


@pytest.mark.parametrize("error", [ServiceError, ConnectionRefusedError])
def test_start_while_a_system_is_away_is_tried_again_where_the_strategy_covers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    job = away_job(tmp_path, monkeypatch, 6, error)
    started = StartedJob(JobMaster(job.program(**COVERED), SimulatedEngine(seed=1), local_root=job.local), [])
    started.result(60)
    assert AwaySink.away == 0
    assert job.committed() == list(range(10))


def test_start_while_a_system_is_away_fails_at_once_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = away_job(tmp_path, monkeypatch, 2, ServiceError)
    settings = {**COVERED, "tidegate.restart.covers-start": False}
    with pytest.raises(ServiceError):
        StartedJob(JobMaster(job.program(**settings), SimulatedEngine(seed=1), local_root=job.local), [])
    assert AwaySink.away == 1


def test_start_with_a_wrong_configuration_fails_at_once_though_the_strategy_covers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = away_job(tmp_path, monkeypatch, 2, ConfigurationError)
    with pytest.raises(ConfigurationError):
        StartedJob(JobMaster(job.program(**COVERED), SimulatedEngine(seed=1), local_root=job.local), [])
    AwaySink.away = 0
    job = away_job(tmp_path, monkeypatch, 2, ServiceError)
    fixed = {**COVERED, "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 1}
    started = StartedJob(
        JobMaster(
            job.program(**fixed, **{"restart-strategy.fixed-delay.delay": 0}),
            SimulatedEngine(seed=1),
            local_root=job.local,
        ),
        [],
    )
    with pytest.raises(JobFailedError, match="the database does not answer"):  # out of restarts
        started.result(60)


def test_start_that_waits_for_a_system_can_be_suspended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = away_job(tmp_path, monkeypatch, 1_000_000, ServiceError)
    slow = {**COVERED, "restart-strategy.exponential-delay.initial-backoff": 60_000} | {
        "restart-strategy.exponential-delay.max-backoff": 60_000
    }
    started = StartedJob(JobMaster(job.program(**slow), SimulatedEngine(seed=1), local_root=job.local), [])
    started.suspend()
    with pytest.raises(JobSuspendedError):
        started.result(60)
