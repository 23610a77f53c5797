"""Savepoints of a running job: taken beside it, complete in themselves, and the end of a job with one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from small_jobs import SmallJob
from test_commands import PATIENCE_S, RARELY, endless, started, stop

from tidegate.checkpoint.locate import locate
from tidegate.common.job_status import JobStatus
from tidegate.runtime.commands import StopWithSavepoint, TriggerCheckpoint, TriggerSavepoint

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
    stop(handle)
    assert Path(path, "_metadata").exists()


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


def test_the_same_job_goes_on_from_its_own_savepoint(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    handle = started(job, **RARELY)
    path = handle.submit(StopWithSavepoint(f"{tmp_path}/sp")).answer.result(PATIENCE_S)
    handle.result(PATIENCE_S)
    again = started(job, **RARELY, **{RECOVERY: path})
    again.result(PATIENCE_S)
    assert sorted(job.committed()) == list(range(40))
