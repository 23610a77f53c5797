"""The lease: one driver at a time, said clearly; an older attempt is fenced whatever it does next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CorruptFileError, FencedError, InternalError, LeaseError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.lease import Lease, acquire
from tidegate.checkpoint.lease_records import (
    AttemptStatus,
    RestorePoint,
    claim_path,
    live_path,
    newest_token,
    restored_path,
)
from tidegate.checkpoint.locate import read_lineage
from tidegate.checkpoint.owner import Owner, is_alive, this_process

FAR = Owner("far-away", 77)
PATIENCE_S = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def take(files: Files, clock: ManualClock, *, alive: bool | None = False, owner: Owner = FAR) -> Lease:
    return acquire(files, clock, job_id="job", owner=owner, liveness=lambda _: alive)


def test_tokens_grow(files: Files, clock: ManualClock) -> None:
    assert [take(files, clock).token for _ in range(3)] == [1, 2, 3]
    assert newest_token(files) == 3


def test_a_second_driver_on_this_host_is_refused(files: Files, clock: ManualClock) -> None:
    acquire(files, clock, job_id="job")
    clock.advance(5_000)
    with pytest.raises(LeaseError) as caught:
        acquire(files, clock, job_id="job")
    assert caught.value.where == files.root
    assert f"process {os.getpid()} on" in str(caught.value.found)
    assert "has held it for 5 s and is alive" in str(caught.value.found)
    assert f"kill {os.getpid()}" in str(caught.value.cure)
    assert not isinstance(caught.value, FencedError)
    assert newest_token(files) == 1


def test_a_driver_of_another_host_is_believed_by_its_heartbeat(files: Files, clock: ManualClock) -> None:
    lease = take(files, clock)
    clock.advance(25_000)
    lease.renew()
    clock.advance(29_000)
    with pytest.raises(LeaseError, match="last heartbeat was 29 s ago"):
        take(files, clock, alive=None)
    clock.advance(1_000)
    assert take(files, clock, alive=None).token == 2
    with pytest.raises(FencedError):
        lease.renew()


def test_a_released_lease_is_free_at_once(files: Files, clock: ManualClock) -> None:
    take(files, clock).release()
    assert take(files, clock, alive=True).token == 2


def test_the_directory_of_another_job_is_refused(files: Files, clock: ManualClock) -> None:
    take(files, clock).release()
    with pytest.raises(LeaseError) as caught:
        acquire(files, clock, job_id="other")
    assert caught.value.found == "it belongs to job job, this is job other"
    assert "execution.state-recovery.path" in str(caught.value.cure)


def test_a_damaged_claim_is_taken_over(files: Files, clock: ManualClock) -> None:
    first = take(files, clock)
    files.replace(claim_path(1), b"tidegate-lease damaged")
    assert take(files, clock, alive=True).token == 2
    with pytest.raises(FencedError, match="token 2"):
        first.check()


def test_every_act_of_a_fenced_attempt_is_refused(files: Files, clock: ManualClock) -> None:
    old = take(files, clock)
    old.check()
    take(files, clock, owner=Owner("new-host", 5))
    for act in (old.check, old.renew, old.take_id, lambda: old.record_restored(None, [], [])):
        with pytest.raises(FencedError) as caught:
            act()
        assert caught.value.found == "token 2, process 5 on new-host"
        assert "must not publish, commit or delete" in caught.value.rule


def test_a_directory_deleted_and_made_again_fences_too(files: Files, clock: ManualClock) -> None:
    old = take(files, clock)
    files.delete_tree("")
    assert take(files, clock).token == old.token
    with pytest.raises(FencedError, match="own claim is missing or changed"):
        old.renew()


def test_ids_grow_over_attempts_even_if_nothing_else_was_written(files: Files, clock: ManualClock) -> None:
    first = take(files, clock)
    assert [first.take_id(), first.take_id()] == [1, 2]
    second = take(files, clock)
    assert second.take_id() == 3
    assert second.take_id(at_least=10) == 10
    files.make_directory("chk-20")
    assert take(files, clock).take_id() == 21


def test_where_storage_is_slow_the_next_id_is_taken_ahead(files: Files, clock: ManualClock) -> None:
    """Without a call of storage when it is needed; a crash in between costs a number, and gives none twice."""
    lease, written = take(files, clock), []
    lease.take_ahead()
    assert lease.last_id == 0, "it has not been slow"

    def slow(name: str, where: dict[str, Any]) -> None:
        if name == "storage.replace":
            written.append(name)
            clock.advance(50)

    faults.install(slow)
    try:
        assert (lease.take_id(), len(written)) == (1, 1)
        lease.take_ahead()
        lease.take_ahead()
        assert (lease.last_id, len(written)) == (2, 2)
        assert (lease.take_id(), len(written)) == (2, 2)
        assert (lease.take_id(), len(written)) == (3, 3)
        lease.take_ahead()
        assert lease.take_id(at_least=10) == 10, "one that is too small is left out"
        lease.take_ahead()
    finally:
        faults.install(None)
    assert take(files, clock).take_id() == 12


def test_an_id_taken_ahead_is_not_given_after_a_later_one(files: Files, clock: ManualClock) -> None:
    """While the lane takes one ahead, the job's thread takes the next: with several checkpoints under way both are at it."""
    lease, given = take(files, clock), []

    def slow(name: str, where: dict[str, Any]) -> None:
        if name == "storage.replace":
            clock.advance(50)
        if name == "C1.id-taken" and where["checkpoint_id"] == 2:
            given.append(lease.take_id())

    faults.install(slow)
    try:
        assert lease.take_id() == 1
        lease.take_ahead()
        assert given == [3]
        assert lease.take_id() == 4
    finally:
        faults.install(None)


def test_as_many_ids_are_taken_ahead_as_checkpoints_may_be_under_way(files: Files, clock: ManualClock) -> None:
    lease, written = take(files, clock), []

    def slow(name: str, where: dict[str, Any]) -> None:
        if name == "storage.replace":
            written.append(name)
            clock.advance(50)

    faults.install(slow)
    try:
        assert (lease.take_id(spare=3), lease.last_id) == (1, 1), "it was not known to be slow"
        assert [lease.take_id(spare=3) for _ in range(4)] == [2, 3, 4, 5]
        assert (lease.last_id, len(written)) == (5, 2), "four with one write"
        lease.take_ahead(3)
        assert lease.take_id() == 6
        lease.take_ahead(3)
        assert (lease.last_id, len(written)) == (9, 4), "only the missing one"
        assert [lease.take_id(at_least=8), lease.take_id(), len(written)] == [8, 9, 4]
    finally:
        faults.install(None)
    assert take(files, clock).take_id() == 10


def test_an_id_from_memory_does_not_wait_for_the_live_record(files: Files, clock: ManualClock) -> None:
    """The heartbeat, or step 7 of another checkpoint, may be writing it to a slow storage."""
    lease, given = take(files, clock), []

    def slow(name: str, where: dict[str, Any]) -> None:
        if name == "storage.replace":
            clock.advance(50)

    def take_meanwhile(name: str, where: dict[str, Any]) -> None:
        if name == "storage.replace":
            thread = threading.Thread(target=lambda: given.append(lease.take_id()), daemon=True)
            thread.start()
            thread.join(PATIENCE_S)

    faults.install(slow)
    try:
        lease.take_id()
        lease.take_ahead()
        faults.install(take_meanwhile)
        lease.renew()
    finally:
        faults.install(None)
    assert given == [2]


def test_an_id_whose_write_failed_is_not_given_again(
    files: Files, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(files, clock)

    def fail(path: str, data: bytes) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", fail)
        with pytest.raises(StorageError):
            lease.take_id()
    assert lease.take_id() == 2


def test_damaged_live_record_does_not_bring_ids_back(files: Files, clock: ManualClock) -> None:
    lease = take(files, clock)
    lease.take_id()
    lease.record_restored(None, [], [])
    files.publish("chk-1/_metadata", b"x")
    files.replace(live_path(1), b"tidegate-live torn")
    following = take(files, clock)
    assert following.take_id() == 2
    for damaged in (b"tidegate-live torn", b"", b"something else"):
        files.replace(live_path(1), damaged)
        with pytest.raises(CorruptFileError, match=r"00000001\.live\.json") as refused:
            read_lineage(files, below=following.token)
        # another checkpoint would not help: the record of the job itself is gone
        assert refused.value.cure is not None and "another tidegate.job-id" in refused.value.cure


def test_the_restore_decision_is_recorded_once(files: Files, clock: ManualClock) -> None:
    lease = take(files, clock)
    lease.record_restored(None, [], [])
    with pytest.raises(InternalError, match="a second time"):
        lease.record_restored(RestorePoint(1, 1), [], [])


def test_end_and_status_are_kept(files: Files, clock: ManualClock) -> None:
    lease = take(files, clock)
    lease.record_restored(None, [RestorePoint(1, 1)], [])
    lease.record_end(AttemptStatus.CANCELLED, discarded=[])
    lineage = read_lineage(files)
    assert (lineage.latest, lineage.retained, lineage.status) == (None, [], AttemptStatus.CANCELLED)


# -- owners --


def test_this_process_is_alive() -> None:
    assert is_alive(this_process()) is True


def test_a_reused_pid_is_not_mistaken() -> None:
    me = this_process()
    assert is_alive(Owner(me.host, me.pid, "12345", me.boot)) is False


def test_an_ended_process_is_dead_even_before_its_parent_looks() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_process()
    with open(f"/proc/{child.pid}/stat") as stat:
        started = stat.read().rpartition(")")[2].split()[19]
    owner = Owner(me.host, child.pid, started, me.boot)
    assert is_alive(owner) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
    assert is_alive(owner) is False
    child.communicate()
    assert is_alive(owner) is False


def test_a_stopped_process_may_be_dead_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_process()
    with open(f"/proc/{child.pid}/stat") as stat:
        started = stat.read().rpartition(")")[2].split()[19]
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_alive(Owner(me.host, child.pid, started, me.boot)) is None
    child.kill()
    child.communicate()


def test_other_hosts_and_boots_cannot_be_seen() -> None:
    me = this_process()
    assert is_alive(Owner("far-away", me.pid, me.started, me.boot)) is None
    assert is_alive(Owner(me.host, me.pid, me.started, "another boot")) is None


@pytest.mark.parametrize("path", [restored_path(1), live_path(1)])
def test_a_damaged_record_says_what_to_do_without_a_copy(files: Files, clock: ManualClock, path: str) -> None:
    """Nobody guesses: an attempt that fell behind what was committed would write it again."""
    take(files, clock).record_restored(None, [], [])
    files.replace(path, b"tidegate-")
    with pytest.raises(CorruptFileError) as caught:
        read_lineage(files)
    assert caught.value.where == files.location(path)
    assert caught.value.cure == (
        "bring the file back from a copy. Without a copy, and if no driver of this job runs: start the program with another"
        " tidegate.job-id, and set execution.state-recovery.path to the newest chk-<n> of this job"
    )
