"""Completed checkpoints: publish with an unknown outcome, retention, deletion by reference, sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.checkpoint.attempt_model import GROUPS
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import FencedError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.completed import CompletedCheckpoints, OutcomeUnknownError
from tidegate.checkpoint.lease import Lease, acquire
from tidegate.checkpoint.lease_records import AttemptStatus, RestorePoint
from tidegate.checkpoint.locate import read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.state.refs import StateFile
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot


@pytest.fixture
def lease(files: Files) -> Lease:
    lease = new_lease(files)
    lease.record_restored(None, [], [])
    return lease


@pytest.fixture
def completed(files: Files, lease: Lease) -> CompletedCheckpoints:
    return CompletedCheckpoints(files, lease, retained=1)


@pytest.fixture
def fail() -> Iterator[Callable[..., list[str]]]:
    """Fail at the points with these names, on paths with this text in them."""

    def install(*names: str, on: str = "") -> list[str]:
        fired: list[str] = []

        def hook(name: str, where: dict[str, Any]) -> None:
            if name in names and on in where["path"]:
                fired.append(where["path"])
                raise OSError(5, "broken")

        faults.install(hook)
        return fired

    yield install
    faults.install(None)


def new_lease(files: Files) -> Lease:
    return acquire(files, ManualClock(), job_id="job", liveness=lambda owner: False)


def metadata(files: Files, lease: Lease, *names: str) -> CheckpointMetadata:
    """A checkpoint over files of these names, which are written unless they are there."""
    refs = []
    for name in names:
        if not files.exists(f"shared/{name}"):
            files.write(f"shared/{name}", name.encode())
        refs.append(StateFile(f"shared/{name}", len(name), "", name, GROUPS))
    held = [OperatorSnapshot({KEYED: KeyedPart(GROUPS, tuple(refs))})]
    operator = OperatorState(uid_hash="x", name="x", parallelism=1, max_parallelism=128, subtasks=held)
    return CheckpointMetadata(
        checkpoint_id=lease.take_id(), job_id="job", job_name="n", token=lease.token, trigger_ms=0, complete_ms=0,
        round=0, operators=[operator],
    )  # fmt: skip


def shared(files: Files) -> list[str]:
    return files.list_names("shared")


def test_add_and_subsume_by_reference(files: Files, lease: Lease, completed: CompletedCheckpoints) -> None:
    first = completed.add(metadata(files, lease, "base", "a"))
    assert first.size > 5
    completed.add(metadata(files, lease, "base", "b"))
    assert files.exists(first.path)
    assert completed.subsume(in_use=["shared/base", "shared/b"]) == [1]
    assert shared(files) == ["b", "base"]
    assert not files.exists("chk-1")
    assert read_lineage(files).retained == [RestorePoint(2, 1)]


def test_a_committed_checkpoint_that_vanished_is_missed(
    files: Files, lease: Lease, completed: CompletedCheckpoints
) -> None:
    """Written down before step 8: a restart must not go back behind what was committed."""
    completed.add(metadata(files, lease, "a"))
    completed.add(metadata(files, lease, "b"))
    files.delete("chk-2/_metadata")
    assert read_lineage(files).latest == RestorePoint(2, 1)


def test_files_of_the_running_state_stay_until_it_lets_them_go(
    files: Files, lease: Lease, completed: CompletedCheckpoints
) -> None:
    completed.add(metadata(files, lease, "a"))
    completed.add(metadata(files, lease, "b"))
    completed.subsume(in_use=["shared/a", "shared/b"])
    assert shared(files) == ["a", "b"]
    completed.subsume(in_use=["shared/b"])
    assert shared(files) == ["b"]


def test_files_that_never_were_in_a_checkpoint(files: Files, lease: Lease, completed: CompletedCheckpoints) -> None:
    completed.add(metadata(files, lease, "a"))
    files.write("shared/merged-away", b"x")
    completed.subsume(in_use=["shared/a"], released=["shared/merged-away"])
    assert shared(files) == ["a"]


def test_retained_number(files: Files, lease: Lease) -> None:
    completed = CompletedCheckpoints(files, lease, retained=3)
    for name in "abcde":
        completed.add(metadata(files, lease, name))
        completed.subsume(in_use=[f"shared/{name}"])
    assert [point.checkpoint_id for point in completed.retained] == [3, 4, 5]
    assert shared(files) == ["c", "d", "e"]


def test_publish_that_arrived_though_it_failed_is_complete(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    fired = fail("storage.publish.after-link")
    done = completed.add(metadata(files, lease, "a"))
    assert fired
    assert completed.latest == RestorePoint(done.checkpoint_id, done.metadata.token)


def test_publish_that_did_not_arrive_fails_the_checkpoint_only(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    completed.add(metadata(files, lease, "a"))
    fired = fail("storage.publish.before-link")
    with pytest.raises(StorageError) as caught:
        completed.add(metadata(files, lease, "b"))
    assert fired
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert caught.value.found == "EIO: Input/output error"
    assert completed.latest == RestorePoint(1, 1)


def test_nothing_is_deleted_while_the_outcome_is_unknown(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    completed.add(metadata(files, lease, "a"))
    fail("storage.publish.after-link", "storage.read", on="chk-2")
    with pytest.raises(OutcomeUnknownError, match="not known whether"):
        completed.add(metadata(files, lease, "b"))
    faults.install(None)
    completed.subsume(in_use=[], released=["shared/b"])
    assert shared(files) == ["a", "b"]
    # It did arrive, so a new attempt restores it; and once a later one is complete its files go.
    assert read_lineage(files).latest == RestorePoint(2, 1)
    completed.add(metadata(files, lease, "c"))
    completed.subsume(in_use=["shared/c"])
    assert shared(files) == ["c"]
    assert files.list_names() == ["chk-3", "lease", "shared"]


def test_fenced_between_publish_and_commit(files: Files, lease: Lease, completed: CompletedCheckpoints) -> None:
    ready = metadata(files, lease, "a")

    def take_over(name: str, where: dict[str, Any]) -> None:
        if name == "C6.published":
            faults.install(None)
            new_lease(files)

    faults.install(take_over)
    with pytest.raises(FencedError):
        completed.add(ready)
    assert completed.latest is None


def test_failed_deletes_are_made_up_for(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    completed.add(metadata(files, lease, "a"))
    completed.add(metadata(files, lease, "b"))
    fired = fail("storage.delete", on="shared/a")
    assert completed.subsume(in_use=["shared/b"]) == [1]
    assert fired
    assert shared(files) == ["a", "b"]
    faults.install(None)
    completed.subsume(in_use=["shared/b"])
    assert shared(files) == ["b"]


def test_subsume_waits_for_its_record(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    """Step 7 writes it; if storage fails that, step 9 does, before it deletes anything."""
    completed.add(metadata(files, lease, "a"))
    ready = metadata(files, lease, "b")
    fired = fail("storage.replace", on="live")
    completed.add(ready)
    assert completed.subsume(in_use=["shared/b"]) == []
    assert len(fired) == 2
    assert shared(files) == ["a", "b"]
    faults.install(None)
    assert completed.subsume(in_use=["shared/b"]) == [1]


def test_sweep_leaves_what_is_referenced_and_nothing_else(files: Files, lease: Lease) -> None:
    completed = CompletedCheckpoints(files, lease, retained=2)
    completed.add(metadata(files, lease, "a"))
    for stray in ("shared/torn", "chk-7/_metadata", "chk-8/x", ".history.json.1.tmp", "chk-1/._metadata.2.tmp"):
        files.write(stray, b"x")
    files.write("taskowned/sink/rows", b"kept: the sink's own")
    files.write("lease/.00000001.live.json.1.tmp", b"the own heartbeat, just being written")
    following = new_lease(files)
    following.record_restored(RestorePoint(1, 1), [RestorePoint(1, 1)], [])
    files.write("lease/.00000003.json.1.tmp", b"a newer claim, just being written")
    deleted = CompletedCheckpoints(files, following, retained=2).sweep(in_use=["shared/a"])
    assert {"chk-7", "chk-8", "shared/torn"} < set(deleted)
    assert files.list() == [
        "chk-1/_metadata",
        "lease/.00000003.json.1.tmp",
        "lease/00000001.json",
        "lease/00000002.json",
        "lease/00000002.live.json",
        "lease/00000002.restored.json",
        "shared/a",
        "taskowned/sink/rows",
    ]


@pytest.mark.parametrize("stray", ["shared/torn", ".history.json.1.tmp", "chk-7/_metadata"])
def test_what_a_sweep_could_not_delete_goes_with_the_next_step_9(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]], stray: str
) -> None:
    files.write(stray, b"x")
    fired = fail("storage.delete", on=stray)
    completed.sweep(in_use=[])
    assert fired
    assert files.exists(stray)
    faults.install(None)
    completed.add(metadata(files, lease, "a"))
    assert completed.subsume(in_use=["shared/a"]) == []
    assert [path for path in files.list() if not path.startswith("lease/")] == ["chk-1/_metadata", "shared/a"]


def test_a_dropped_checkpoint_that_could_not_be_deleted_goes_with_the_next_step_9(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    completed.add(metadata(files, lease, "a"))
    completed.add(metadata(files, lease, "b"))
    assert fail("storage.delete", on="chk-1/_metadata") == []
    assert completed.subsume(in_use=["shared/b"]) == [1]
    assert shared(files) == ["a", "b"], "its metadata can be read, so it must restore"
    faults.install(None)
    completed.subsume(in_use=["shared/b"])
    assert files.list_names() == ["chk-2", "lease", "shared"]
    assert shared(files) == ["b"]


def test_a_stray_checkpoint_that_could_not_be_deleted_keeps_its_files(
    files: Files, lease: Lease, completed: CompletedCheckpoints, fail: Callable[..., list[str]]
) -> None:
    """A fenced attempt published it; until its metadata is gone whoever points at it must find all its files."""
    completed.add(metadata(files, lease, "a"))
    following = new_lease(files)
    following.record_restored(None, [], [])
    following_completed = CompletedCheckpoints(files, following, retained=1)
    fired = fail("storage.delete", on="chk-1/_metadata")
    following_completed.sweep(in_use=[])
    assert fired
    assert shared(files) == ["a"]
    faults.install(None)
    following_completed.add(metadata(files, following, "b"))
    following_completed.subsume(in_use=["shared/b"])
    assert shared(files) == ["b"]
    assert files.list_names() == ["chk-2", "lease", "shared"]


def test_an_unreadable_kept_checkpoint_stops_deleting_shared_files(files: Files, lease: Lease) -> None:
    completed = CompletedCheckpoints(files, lease, retained=2)
    completed.add(metadata(files, lease, "a"))
    completed.add(metadata(files, lease, "b"))
    files.replace("chk-1/_metadata", b"tidegate-metadata torn")
    following = new_lease(files)
    following.record_restored(RestorePoint(2, 1), completed.retained, [])
    CompletedCheckpoints(files, following, retained=2).sweep(in_use=["shared/b"])
    assert shared(files) == ["a", "b"]


@pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.CANCELLED])
def test_discard_all(files: Files, lease: Lease, completed: CompletedCheckpoints, status: AttemptStatus) -> None:
    completed.add(metadata(files, lease, "a"))
    files.write("shared/unreferenced", b"x")
    files.write("taskowned/sink/rows", b"x")
    completed.discard_all(status)
    assert [path for path in files.list() if not path.startswith("lease/")] == []
    assert read_lineage(files).status is status
    assert read_lineage(files).latest is None


def test_discard_all_leaves_protected_checkpoints(files: Files, lease: Lease, completed: CompletedCheckpoints) -> None:
    completed.add(metadata(files, lease, "a"))
    following = new_lease(files)
    following.record_restored(RestorePoint(1, 1), [], [RestorePoint(1, 1)])
    following_completed = CompletedCheckpoints(files, following, retained=1)
    following_completed.add(metadata(files, following, "b"))
    following_completed.discard_all(AttemptStatus.CANCELLED)
    assert shared(files) == ["a"]
    assert files.exists("chk-1/_metadata")
    assert not files.exists("chk-2")
