"""Whose the snapshot is that a job starts from: not touched, or the job's own and deleted when it is subsumed; and thrown away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tests.unit.runtime.test_begin_anew import run, savepoint_of, start_from
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import LeaseError, RestoreError, SnapshotInUseError
from tidegate.checkpoint.disposal import dispose
from tidegate.checkpoint.locate import locate_exactly
from tidegate.common.job_status import JobStatus
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.driver import SimulatedCrash
from tidegate.testing.simulation.engine import SimulatedEngine

CLAIM: dict[str, Any] = {"execution.state-recovery.claim-mode": "CLAIM"}
RETAIN: dict[str, Any] = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "tidegate.job-id": "first",
}
OTHER: dict[str, Any] = {"tidegate.job-id": "other"}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def retained(job: SmallJob) -> Path:
    """The checkpoint of a job that was cancelled."""
    assert run(job, 4, **RETAIN) is JobStatus.CANCELED
    [path] = (job.directory / "checkpoints" / "first").glob("chk-*")
    return path


@pytest.mark.parametrize("what", ["savepoint", "checkpoint"])
def test_no_claim_never_touches_it(tmp_path: Path, what: str) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp")) if what == "savepoint" else retained(job)
    place = path if what == "savepoint" else path.parent
    before = contents(place)
    assert run(job, **OTHER, **start_from(path)) is JobStatus.FINISHED
    assert contents(place) == before
    assert sorted(job.committed()) == list(range(40))


@pytest.mark.parametrize("what", ["savepoint", "checkpoint"])
def test_claimed_it_is_deleted_when_it_is_subsumed(tmp_path: Path, what: str) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp")) if what == "savepoint" else retained(job)
    seen: list[bool] = []

    def look(name: str, where: dict[str, Any]) -> None:
        if name == "C6.completed":
            seen.append(path.exists())

    faults.install(look)
    keeps: dict[str, Any] = {"execution.checkpointing.num-retained": 3}
    assert run(job, **OTHER, **CLAIM, **keeps, **start_from(path)) is JobStatus.FINISHED
    assert seen[:3] == [True] * 3  # it is the oldest of those that are kept
    assert not any(seen[3:])
    assert not path.exists()
    if what == "checkpoint":
        assert not list((path.parent / "shared").glob("*"))
    assert sorted(job.committed()) == list(range(40))


def test_claimed_and_not_replaced_it_stays(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp"))
    before = contents(path)
    assert run(job, 1, **OTHER, **CLAIM, **start_from(path)) is JobStatus.CANCELED
    assert contents(path) == before


@pytest.mark.parametrize("point", ["C6.completed", "C7.recorded", "storage.delete", "C7.subsumed"])
def test_a_crash_around_the_deletion_is_made_up_for(tmp_path: Path, point: str) -> None:
    job = SmallJob(tmp_path, *range(60))
    path = Path(savepoint_of(job, tmp_path / "sp"))

    def crash(name: str, where: dict[str, Any]) -> None:
        if name == point and (point != "storage.delete" or str(path) in where["path"]):
            raise SimulatedCrash

    faults.install(crash)
    with pytest.raises(SimulatedCrash):
        run(job, **OTHER, **CLAIM, **start_from(path))
    faults.install(None)
    assert run_again(job, path) is JobStatus.FINISHED
    assert not path.exists()
    assert sorted(job.committed()) == list(range(60))


def run_again(job: SmallJob, path: Path) -> JobStatus:
    program = job.program(**OTHER, **CLAIM, **start_from(path))
    master = JobMaster(program, SimulatedEngine(1), clock=ManualClock(), local_root=job.local, liveness=lambda _: False)
    master.run()
    return master.status


def test_a_checkpoint_of_a_job_that_runs_cannot_be_claimed(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    refused: list[Exception] = []

    def start_another(name: str, where: dict[str, Any]) -> None:
        if name == "C6.all-committed" and not refused:
            faults.install(None)
            [path] = (tmp_path / "checkpoints" / "first").glob("chk-*")
            with pytest.raises(LeaseError) as caught:
                run(job, **OTHER, **CLAIM, **start_from(path))
            refused.append(caught.value)

    faults.install(start_another)
    assert run(job, **RETAIN) is JobStatus.FINISHED
    assert "is used by one driver at a time" in str(refused[0])
    assert sorted(job.committed()) == list(range(40))


# -- thrown away -----------------------------------------------------------------------------------------------------------


def test_disposed_of(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp"))
    dispose(f"{path}/_metadata", [str(tmp_path / "checkpoints" / "small")])
    assert not path.exists()
    with pytest.raises(RestoreError, match="no such file or directory"):
        dispose(str(path))


def test_one_that_a_job_stands_on_is_not(tmp_path: Path) -> None:
    """It has no checkpoint of its own yet: a restart would begin with the savepoint again."""
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp"))
    before = contents(path)
    directory = str(tmp_path / "checkpoints" / "other")
    assert run(job, 1, "suspend", **OTHER, **start_from(path)) is JobStatus.SUSPENDED
    with pytest.raises(RestoreError) as caught:
        dispose(str(path), [directory])
    assert caught.value.rule == "A job still needs this savepoint."
    assert caught.value.found == f"the job in {directory} started from it and has no checkpoint of its own yet"
    assert caught.value.cure == "wait for the job's first checkpoint, or cancel the job"
    assert contents(path) == before
    assert run(job, 3, "suspend", **OTHER, **start_from(path)) is JobStatus.SUSPENDED
    dispose(str(path), [directory])
    assert run(job, **OTHER, **start_from(path)) is JobStatus.FINISHED
    assert sorted(job.committed()) == list(range(40))


def test_a_path_that_is_none_is_said_to_be_that_to_dispose_of(tmp_path: Path) -> None:
    with pytest.raises(RestoreError) as caught:
        dispose(str(tmp_path))
    assert caught.value.rule == "The path to dispose of must be a checkpoint or a savepoint."
    assert "restore" not in str(caught.value)


def test_one_that_nobody_can_tell_of_is_not_disposed_of_without_force(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = Path(savepoint_of(job, tmp_path / "sp"))
    directory = tmp_path / "checkpoints" / "other"
    assert run(job, 3, "suspend", **OTHER, **start_from(path)) is JobStatus.SUSPENDED
    for record in (directory / "lease").glob("*.live.json"):
        record.write_bytes(b"damaged")
    before = contents(path)
    with pytest.raises(SnapshotInUseError) as caught:
        dispose(str(path), [str(directory)])
    assert caught.value.rule == "It is not known whether a job still needs this snapshot."
    assert str(caught.value.found).startswith(f"the directory of a job that may need it cannot be read: {directory}: ")
    assert "--force" in str(caught.value.cure)
    assert contents(path) == before
    dispose(str(path), [str(directory)], force=True)
    assert not path.exists()


def test_a_checkpoint_that_a_cancelled_job_has_left_is_disposed_of_with_its_files(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    path = retained(job)
    dispose(str(path), [str(path.parent)])
    assert not path.exists()
    assert list(path.parent.glob("shared/*")) == []
    # As after a cancellation that keeps nothing: its output is there, so it does not begin anew by itself.
    with pytest.raises(RestoreError, match="cancelled"):
        run(job, **RETAIN)


def test_of_several_the_latest_goes_last_and_files_go_with_the_last_that_needs_them(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    two: dict[str, Any] = {**RETAIN, "execution.checkpointing.num-retained": 2}
    assert run(job, 5, **two) is JobStatus.CANCELED
    older, latest = sorted((tmp_path / "checkpoints" / "first").glob("chk-*"))
    with pytest.raises(SnapshotInUseError) as caught:
        dispose(str(latest), force=True)
    assert caught.value.found == f"it is the latest checkpoint, and the job would restore an older one: {older.name}"
    dispose(str(older))
    assert not older.exists()
    locate_exactly(str(latest)).verify_files()
    assert run(job, **RETAIN) is JobStatus.FINISHED  # it continues from the latest
    assert sorted(job.committed()) == list(range(40))


def test_the_latest_of_a_job_that_can_continue_is_not_disposed_of_without_force(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    assert run(job, 4, "suspend", **RETAIN) is JobStatus.SUSPENDED
    [path] = (tmp_path / "checkpoints" / "first").glob("chk-*")
    with pytest.raises(SnapshotInUseError) as caught:
        dispose(str(path))
    assert (
        caught.value.found == "the job was not cancelled (it is suspended), and would start with empty state without it"
    )
    assert caught.value.cure == "start the job and cancel it, or use --force"
    locate_exactly(str(path)).verify_files()
    dispose(str(path), force=True)
    assert not path.exists()


def test_a_checkpoint_of_a_live_job_is_not_disposed_of(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, *range(40))
    refused: list[LeaseError] = []

    def try_it(name: str, where: dict[str, Any]) -> None:
        if name == "C6.all-committed" and not refused:
            faults.install(None)
            [path] = (tmp_path / "checkpoints" / "first").glob("chk-*")
            with pytest.raises(LeaseError) as caught:
                dispose(str(path), force=True)
            refused.append(caught.value)

    faults.install(try_it)
    assert run(job, **RETAIN) is JobStatus.FINISHED
    assert "is used by one driver at a time" in str(refused[0])
    assert sorted(job.committed()) == list(range(40))
