"""A running job can be told things, from any thread, and answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.sources import Pause, ScriptedSource
from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, JobCancelledError, JobFailedError
from tidegate.common.job_status import JobStatus
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import Cancel, TriggerCheckpoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.inbox import LaneName, WorkEnded
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

PATIENCE_S = 60
INTERVAL = "execution.checkpointing.interval"
TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"
RARELY = {INTERVAL: 3_600_000}


def endless(directory: Path) -> SmallJob:
    """A job that reads some numbers and then waits for more, for ever."""
    job = SmallJob(directory)
    job.source = ScriptedSource(list(range(10)), ends=False)
    return job


def started(job: SmallJob, **settings: Any) -> StartedJob:
    """In threads, as users run it."""
    return StartedJob(JobMaster(job.program(**settings), SimulatedEngine(1), local_root=job.local), [])


def stop(handle: StartedJob) -> None:
    cancel = handle.submit(Cancel())
    assert cancel.answer.result(PATIENCE_S) is JobStatus.CANCELED
    with pytest.raises(JobCancelledError):
        handle.result(PATIENCE_S)


def test_a_checkpoint_that_is_asked_for_is_taken_at_once(tmp_path: Path) -> None:
    """No other is due for an hour. When the answer comes its output is committed."""
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    try:
        first = handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
        second = handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
        assert (first, second) == (1, 2)
        assert job.committed() == list(range(10))
    finally:
        stop(handle)


def test_from_several_threads_each_gets_an_answer(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY)
    answers: list[int] = []
    asking = [
        threading.Thread(target=lambda: answers.append(handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)))
        for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    stop(handle)
    assert len(answers) == 8
    assert set(answers) == set(range(1, max(answers) + 1))


def test_a_job_without_checkpoints_says_so(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **{INTERVAL: None})
    with pytest.raises(CheckpointError, match="the job takes no checkpoints"):
        handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    stop(handle)


def test_a_checkpoint_that_fails_is_an_answer_too(tmp_path: Path) -> None:
    job = endless(tmp_path)
    handle = started(job, **RARELY, **{TOLERABLE: 10})
    handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)

    def full(name: str, where: dict[str, Any]) -> None:
        if name == "storage.publish.before-link":
            raise OSError(28, "No space left on device")

    faults.install(full)
    with pytest.raises(CheckpointError) as caught:
        handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    assert caught.value.rule == "The requested checkpoint could not be taken."
    assert "checkpoint 2" in str(caught.value.found)
    assert "ENOSPC" in str(caught.value.found)
    faults.install(None)
    assert handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S) == 3
    stop(handle)


def test_a_job_that_has_ended_refuses(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, 1, 2)
    master = JobMaster(job.program(), SimulatedEngine(1), clock=ManualClock(), local_root=job.local)
    master.run()
    with pytest.raises(CheckpointError, match="has ended, so it takes no commands"):
        master.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    assert master.submit(Cancel()).answer.result(PATIENCE_S) is JobStatus.FINISHED


@pytest.mark.parametrize("point", ["C3.acks-in", "C7.discard-recorded", "C9.claimed"])
def test_every_command_is_answered_whenever_it_comes(tmp_path: Path, point: str) -> None:
    """While the job starts, runs or ends: with an id, or with an error, never with silence."""
    job, commands = SmallJob(tmp_path), []

    def ask(name: str, where: dict[str, Any]) -> None:
        if name == point:
            commands.append(master.submit(TriggerCheckpoint()))

    master = JobMaster(job.program(**RARELY), SimulatedEngine(1), clock=ManualClock(), local_root=job.local)
    faults.install(ask)
    master.run()
    assert commands
    assert all(command.answer.done() for command in commands)
    assert job.committed() == list(range(10))


def test_a_trigger_that_fails_refuses_those_who_wait_for_it_only(tmp_path: Path) -> None:
    """The first checkpoint is being stored when the second gets no id."""
    job, failed = endless(tmp_path), threading.Event()
    handle = started(job, **RARELY, **{TOLERABLE: 10, "execution.checkpointing.max-concurrent-checkpoints": 2})
    later: list[TriggerCheckpoint] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C4.before-publish" and not later:
            later.append(handle.submit(TriggerCheckpoint()))
            assert failed.wait(PATIENCE_S)
        elif name == "storage.replace" and later and not failed.is_set():
            raise OSError(28, "No space left on device")
        elif name == "C2.aborted":
            failed.set()

    faults.install(hook)
    first = handle.submit(TriggerCheckpoint())
    assert first.answer.result(PATIENCE_S) == 1
    with pytest.raises(CheckpointError, match="has no id"):
        later[0].answer.result(PATIENCE_S)
    faults.install(None)
    stop(handle)


@pytest.mark.parametrize("point", ["K3.ledger.before-commit", "C2.cut", "C1.before-trigger", "K2.ledger.listed"])
def test_a_program_that_exits_on_the_driver_ends_its_job(tmp_path: Path, point: str) -> None:
    """In a committer or in an enumerator. The lease is given up, and nobody waits for an answer for ever."""
    job, seen = endless(tmp_path), 0

    def leave(name: str, where: dict[str, Any]) -> None:
        nonlocal seen
        seen += name == point
        if name == point and (seen > 1 or point != "K2.ledger.listed"):  # at first while the program is checked
            raise SystemExit(3)
        if name == "C4.before-publish" and point == "K2.ledger.listed":
            raise ValueError("to be restarted")

    faults.install(leave)
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    handle = started(job, **restarts)
    with pytest.raises(JobFailedError):
        handle.result(PATIENCE_S)
    faults.install(None)
    assert handle.submit(Cancel()).answer.result(PATIENCE_S) is JobStatus.FAILED
    assert not [t.name for t in threading.enumerate() if t.name.startswith("tidegate-small")]
    again = started(job)
    again.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    stop(again)


def test_an_answer_nobody_waits_for_any_more_is_no_failure() -> None:
    command = TriggerCheckpoint()
    assert command.answer.cancel()
    command.succeed(1)
    command.fail(ValueError())
    assert command.answer.cancelled()


class Noted(SimulatedEngine):
    """Notes its rounds, and when the job's thread has acted: begun the second of them, or ended the job."""

    def __init__(self) -> None:
        super().__init__(1)
        self.rounds, self.acted = 0, threading.Event()

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.rounds += 1
        if self.rounds > 1:
            self.acted.set()
        return super().run(plan)

    def stop(self) -> None:
        self.acted.set()
        super().stop()


def test_no_round_begins_after_a_cancellation(tmp_path: Path) -> None:
    """The job's thread takes the command before the one who cancels has come any further. Nobody would cancel that round."""
    job, engine, idle = SmallJob(tmp_path), Noted(), threading.Event()
    job.source = ScriptedSource([1, Pause(200), 2], ends=False)
    master = JobMaster(job.program(**{INTERVAL: None}), engine, local_root=job.local)
    post = master._inbox.post

    def wait_behind(event: Any) -> None:
        post(event)
        if isinstance(event, WorkEnded) and event.lane.name is LaneName.ROUNDS:
            idle.set()
        if isinstance(event, Cancel):
            assert engine.acted.wait(PATIENCE_S)

    master._inbox.post = wait_behind  # type: ignore[method-assign]
    handle = StartedJob(master, [])
    assert idle.wait(PATIENCE_S)
    stop(handle)
    assert engine.rounds == 1
