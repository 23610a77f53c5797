"""Savepoints of a running job: taken beside it, complete in themselves, and the end of a job with one."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tests.unit.runtime.test_commands import INTERVAL, PATIENCE_S, RARELY, endless, started, stop
from tests.waiting import eventually
from tidegate.base import faults
from tidegate.base.errors import CheckpointError, ConfigurationError, JobCancelledError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, read_history
from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.locate import locate
from tidegate.common.job_status import JobStatus
from tidegate.runtime.commands import (
    CancelWithSavepoint,
    SavepointCommand,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
)
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.phase import WindingUp

RECOVERY = "execution.state-recovery.path"
FROM_ELSEWHERE: dict[str, Any] = {"tidegate.job-id": "other"}


def test_a_savepoint_is_complete_in_itself_and_commits_nothing(tmp_path: Path) -> None:
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    path = handle.submit(TriggerSavepoint(f"{tmp_path}/sp")).answer.result(PATIENCE_S)
    assert Path(path).parent == tmp_path / "sp"
    assert Path(path).name.startswith("savepoint-small-")
    located = locate(path)
    assert located.metadata.kind == "savepoint"
    located.check_files()
    assert job.committed() == []
    totals = handle.view().totals
    assert (totals.checkpoints, totals.savepoints) == (0, 1)
    stop(handle)
    assert Path(path, "_metadata").exists()
    [entry] = read_history(Files(handle.directory))
    assert (entry.kind, entry.status, entry.message) == ("savepoint", CheckpointStatus.COMPLETED, path)


def test_stopped_with_a_savepoint_and_resumed_elsewhere(tmp_path: Path) -> None:
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    path = handle.submit(StopWithSavepoint(f"{tmp_path}/sp")).answer.result(PATIENCE_S)
    handle.result(PATIENCE_S)
    assert handle.status() is JobStatus.FINISHED
    done = job.committed()
    assert done == list(range(len(done)))
    shutil.move(path, f"{tmp_path}/moved")
    again = started(job, **RARELY, **FROM_ELSEWHERE, **{RECOVERY: f"{tmp_path}/moved"})
    again.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    stop(again)
    assert job.committed() == list(range(10))


def test_the_same_job_continues_from_its_own_savepoint(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    handle = started(job, **RARELY)
    path = handle.submit(StopWithSavepoint(f"{tmp_path}/sp")).answer.result(PATIENCE_S)
    handle.result(PATIENCE_S)
    again = started(job, **RARELY, **{RECOVERY: path})
    again.result(PATIENCE_S)
    assert sorted(job.committed()) == list(range(40))


def answer(handle: StartedJob, command: SavepointCommand) -> str:
    return handle.submit(command).answer.result(PATIENCE_S)


def refusal(handle: StartedJob, command: SavepointCommand) -> BaseException:
    error = handle.submit(command).answer.exception(PATIENCE_S)
    assert error is not None
    return error


def committed_now(handle: StartedJob) -> None:
    handle.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)


# -- where to --------------------------------------------------------------------------------------------------------------


def test_the_configured_directory(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY, **{"execution.checkpointing.savepoint-dir": f"{tmp_path}/mine"})
    assert Path(answer(handle, TriggerSavepoint())).parent == tmp_path / "mine"
    stop(handle)


@pytest.mark.parametrize("command", [TriggerSavepoint(), StopWithSavepoint(), CancelWithSavepoint()])
def test_no_directory_at_all(tmp_path: Path, command: SavepointCommand) -> None:
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    error = refusal(handle, command)
    assert isinstance(error, ConfigurationError)
    assert error.rule == "The savepoint has no target directory"
    assert "execution.checkpointing.savepoint-dir (state.savepoints.dir) is not set" in str(error.found)
    assert error.cure == "give a directory with the command, or set the key when you start the job"
    committed_now(handle)
    assert job.committed() == list(range(10))
    stop(handle)


def test_inside_of_the_jobs_own_directory(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY)
    error = refusal(handle, TriggerSavepoint(handle.directory))
    assert isinstance(error, ConfigurationError)
    assert "inside the job's own directory" in error.rule
    stop(handle)


@pytest.mark.parametrize("command", [TriggerSavepoint, StopWithSavepoint])
def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path, command: type[SavepointCommand]) -> None:
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    (tmp_path / "file").write_text("not a directory")
    error = refusal(handle, command(f"{tmp_path}/file/below"))
    assert isinstance(error, StorageError)
    assert error.rule == "Savepoint storage cannot make directory."
    committed_now(handle)
    assert job.committed() == list(range(10))
    stop(handle)


@pytest.mark.parametrize("drain", [False, True])
def test_no_space_for_the_savepoint_a_job_was_to_stop_with(tmp_path: Path, drain: bool) -> None:
    """Without drain the job continues, with it a restart goes back to before the end of event time."""
    job = endless(tmp_path)
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    handle = started(job, **RARELY, **restarts)
    committed_now(handle)

    def full(name: str, where: dict[str, Any]) -> None:
        if name == "C11.copied":
            raise StorageError("Savepoint storage cannot write.", found="ENOSPC: No space left on device")

    faults.install(full)
    error = refusal(handle, StopWithSavepoint(f"{tmp_path}/sp", drain=drain))
    faults.install(None)
    assert "ENOSPC" in str(error)
    assert os.listdir(tmp_path / "sp") == []
    committed_now(handle)
    stop(handle)


# -- who cannot ------------------------------------------------------------------------------------------------------------


def test_a_source_that_cannot_stop(tmp_path: Path) -> None:
    job = endless(tmp_path)
    job.source.can_stop = False
    handle = started(job, **RARELY)
    error = refusal(handle, StopWithSavepoint(f"{tmp_path}/sp"))
    assert isinstance(error, CheckpointError)
    assert error.rule == "The job cannot stop: some of its sources cannot stop."
    assert error.found == "records that ScriptedSource 'numbers' has received but not handed over would be lost"
    assert error.cure == "cancel the job; add a savepoint to keep its state"
    assert not os.path.exists(tmp_path / "sp")
    path = answer(handle, CancelWithSavepoint(f"{tmp_path}/sp"))
    with pytest.raises(JobCancelledError, match="its savepoint: "):
        handle.result(PATIENCE_S)
    assert handle.status() is JobStatus.CANCELED
    locate(path).check_files()
    assert job.committed() == list(range(10))


def test_batch_mode_takes_none(tmp_path: Path) -> None:
    job = endless(tmp_path)
    handle = started(job, **{"execution.runtime-mode": "BATCH", "tidegate.job-id": None})
    assert "batch mode" in str(refusal(handle, TriggerSavepoint(f"{tmp_path}/sp")))
    stop(handle)


def test_a_job_that_has_ended(tmp_path: Path) -> None:
    handle = started(SmallJob(tmp_path, 1, 2))
    handle.result(PATIENCE_S)
    for command in (TriggerSavepoint("x"), StopWithSavepoint("x"), CancelWithSavepoint("x")):
        assert "The job has ended, so it takes no commands." in str(refusal(handle, command))


# -- without checkpoints ---------------------------------------------------------------------------------------------------


def test_a_job_without_checkpoints_takes_savepoints_too(tmp_path: Path) -> None:
    """Its sinks wait for its end; stopped with a savepoint they have their output."""
    job = endless(tmp_path)
    without: dict[str, Any] = {INTERVAL: None, "tidegate.job-id": None}
    handle = started(job, **without)
    beside = answer(handle, TriggerSavepoint(f"{tmp_path}/sp"))
    assert job.committed() == []
    last = answer(handle, StopWithSavepoint(f"{tmp_path}/sp"))
    handle.result(PATIENCE_S)
    assert handle.status() is JobStatus.FINISHED
    assert job.committed() == list(range(10))
    assert sorted(os.listdir(tmp_path / "sp")) == sorted(Path(path).name for path in (beside, last))
    assert [o.committables for o in locate(last).metadata.operators] == [[], [], []]
    again = started(job, **without, **{RECOVERY: last})
    answer(again, StopWithSavepoint(f"{tmp_path}/sp"))
    assert job.committed() == list(range(10))


# -- two at once -----------------------------------------------------------------------------------------------------------


def held(point: str) -> tuple[threading.Event, threading.Event]:
    """Whoever passes the point waits there: reached, continue."""
    reached, go_on = threading.Event(), threading.Event()

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == point:
            reached.set()
            assert go_on.wait(PATIENCE_S)

    faults.install(hook)
    return reached, go_on


def test_a_savepoint_during_a_savepoint(tmp_path: Path) -> None:
    """The flow continues meanwhile, checkpoints are stored and committed, and each has a directory of its own."""
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    reached, go_on = held("C11.copied")
    first = handle.submit(TriggerSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    second = handle.submit(TriggerSavepoint(f"{tmp_path}/sp"))
    committed_now(handle)
    assert job.committed() == list(range(10))
    assert not second.answer.done()
    go_on.set()
    paths = {first.answer.result(PATIENCE_S), second.answer.result(PATIENCE_S)}
    assert {Path(path).name for path in paths} == set(os.listdir(tmp_path / "sp"))
    assert len(paths) == 2
    stop(handle)


def test_a_stop_during_a_savepoint(tmp_path: Path) -> None:
    """Both are done: the job ends when the first is complete."""
    handle = started(endless(tmp_path), **RARELY)
    reached, go_on = held("C11.copied")
    first = handle.submit(TriggerSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    last = handle.submit(StopWithSavepoint(f"{tmp_path}/sp"))
    go_on.set()
    assert first.answer.result(PATIENCE_S) != last.answer.result(PATIENCE_S)
    handle.result(PATIENCE_S)
    assert handle.status() is JobStatus.FINISHED


def test_whatever_comes_during_a_stop(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY)
    reached, go_on = held("C10.decided")
    last = handle.submit(StopWithSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    for command in (TriggerSavepoint(f"{tmp_path}/sp"), StopWithSavepoint(f"{tmp_path}/sp", drain=True)):
        error = refusal(handle, command)
        assert "the job is already ending with the savepoint" in str(error)
    go_on.set()
    path = last.answer.result(PATIENCE_S)
    assert os.listdir(tmp_path / "sp") == [Path(path).name]
    handle.result(PATIENCE_S)


def test_a_cancel_during_a_savepoint(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY)
    reached, go_on = held("C11.copied")
    first = handle.submit(TriggerSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    handle.cancel()
    attempt: Any = handle._master._attempt
    eventually(lambda: isinstance(attempt.phase, WindingUp), "the attempt ends")
    go_on.set()
    with pytest.raises(JobCancelledError):
        handle.result(PATIENCE_S)
    assert isinstance(first.answer.exception(PATIENCE_S), JobCancelledError)
    assert os.listdir(tmp_path / "sp") == []


@pytest.mark.parametrize("point", ["C10.decided", "C6.before-commit", "C6.all-committed"])
def test_a_cancel_during_the_commit_of_a_stop(tmp_path: Path, point: str) -> None:
    """What was decided finishes first: the savepoint is there and its output committed; then the job is cancelled."""
    job = endless(tmp_path)
    handle = started(job, **RARELY)
    reached, go_on = held(point)
    last = handle.submit(StopWithSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    handle.cancel()
    go_on.set()
    with pytest.raises(JobCancelledError):
        handle.result(PATIENCE_S)
    path = last.answer.result(PATIENCE_S)
    assert [o.committables for o in locate(path).metadata.operators] == [[], [], []]
    done = job.committed()
    again = started(job, **RARELY, **{RECOVERY: path})
    committed_now(again)
    stop(again)
    assert job.committed() == list(range(10))
    assert done == list(range(len(done)))


def test_a_cancel_before_a_stop_is_decided(tmp_path: Path) -> None:
    handle = started(endless(tmp_path), **RARELY)
    reached, go_on = held("C3.acks-in")
    last = handle.submit(StopWithSavepoint(f"{tmp_path}/sp"))
    assert reached.wait(PATIENCE_S)
    handle.cancel()
    go_on.set()
    with pytest.raises(JobCancelledError):
        handle.result(PATIENCE_S)
    error = last.answer.exception(PATIENCE_S)
    if error is not None:
        assert os.listdir(tmp_path / "sp") == []


def test_while_the_job_restarts(tmp_path: Path) -> None:
    """The next attempt takes it."""
    job = endless(tmp_path)
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    asked: list[SavepointCommand] = []

    def fail(name: str, where: dict[str, Any]) -> None:
        if name == "C8.deciding" and failed:
            asked.append(handle.submit(TriggerSavepoint(f"{tmp_path}/sp")))
        elif name == "C3.acks-in" and not failed:
            failed.append(True)
            raise ValueError("once")

    failed: list[bool] = []
    handle = started(job, **RARELY, **restarts)
    faults.install(fail)
    committed = handle.submit(TriggerCheckpoint())
    assert committed.answer.exception(PATIENCE_S) is not None or committed.answer.done()
    committed_now(handle)
    faults.install(None)
    locate(asked[0].answer.result(PATIENCE_S)).check_files()
    stop(handle)


# -- ids -------------------------------------------------------------------------------------------------------------------


def test_operators_without_a_uid_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handle = started(endless(tmp_path), **RARELY, **{"tidegate.job-id": None})
    assert "operators have no uid:" not in caplog.text  # its checkpoints are for nobody else
    for _ in range(2):
        answer(handle, TriggerSavepoint(f"{tmp_path}/sp"))
    stop(handle)
    [record] = [record for record in caplog.records if "operators have no uid:" in record.message]
    assert "'numbers', 'ledger'" in record.message
    assert "Call uid('...') on each operator (pipeline.auto-generate-uids: false makes this an error)" in record.message


@pytest.mark.parametrize("interval", [RARELY[INTERVAL], None])
def test_savepoint_whose_round_cannot_begin_is_answered_when_the_attempt_ends(
    tmp_path: Path, interval: int | None
) -> None:
    failures = [OSError(5, "injected")]

    def fails_once(name: str, where: dict[str, Any]) -> None:
        if name == "C2.cut" and where.get("checkpoint_id") and failures:
            raise failures.pop()

    strategy = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 1}
    handle = started(endless(tmp_path), **{**RARELY, INTERVAL: interval, **strategy})
    faults.install(fails_once)
    try:
        error = handle.submit(TriggerSavepoint(f"{tmp_path}/sp")).answer.exception(PATIENCE_S)
    finally:
        faults.install(None)
    assert not failures, "the fault was injected"
    assert isinstance(error, CheckpointError)
    assert list(tmp_path.glob("sp/*")) == []
    stop(handle)


@pytest.mark.parametrize("drain", [True, False])
def test_refused_stop_of_a_job_without_checkpoints_lets_the_job_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    take_id, failures = Lease.take_id, [StorageError("no id", found="injected")]

    def gives_none_once(self: Lease, *arguments: Any, **options: Any) -> int:
        if failures:
            raise failures.pop()
        return take_id(self, *arguments, **options)

    handle = started(endless(tmp_path), **{**RARELY, INTERVAL: None})
    monkeypatch.setattr(Lease, "take_id", gives_none_once)
    error = handle.submit(StopWithSavepoint(f"{tmp_path}/sp", drain=drain)).answer.exception(PATIENCE_S)
    assert not failures and error is not None
    path = handle.submit(TriggerSavepoint(f"{tmp_path}/sp")).answer.result(PATIENCE_S)
    assert handle.status() is JobStatus.RUNNING
    assert not locate(path).metadata.finished
    stop(handle)
