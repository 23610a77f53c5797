"""The checkpoints of an attempt and the small classes they ask: policy, trigger, failures, checkpoint, history."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.checkpoint.attempt_model import complete, end, new_checkpoints
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, ConfigurationError, CorruptFileError, FencedError, InternalError
from tidegate.base.files import Files
from tidegate.checkpoint.checkpoint import Checkpoint, CheckpointFailureReason, Failed, Subsumed
from tidegate.checkpoint.completed import CompletedCheckpoints
from tidegate.checkpoint.history import CheckpointHistory, CheckpointStatus, HistoryEntry, OperatorFigures, read_history
from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.checkpoint.locate import read_lineage
from tidegate.checkpoint.policy import CheckpointPolicy, CheckpointTrigger, FailureCounter, Retention

PREFIX = "execution.checkpointing."


# -- policy --


def test_policy_from_configuration() -> None:
    policy = CheckpointPolicy.from_configuration(
        {
            PREFIX + "interval": 1000,
            PREFIX + "timeout": 5000,
            PREFIX + "min-pause": 100,
            PREFIX + "max-concurrent-checkpoints": 3,
            PREFIX + "tolerable-failed-checkpoints": 2,
            PREFIX + "num-retained": 4,
            PREFIX + "externalized-checkpoint-retention": "retain-on-cancellation",
        }
    )
    assert policy == CheckpointPolicy(1000, 5000, 100, 3, 2, 4, Retention.RETAIN_ON_CANCELLATION)
    assert policy is not None
    assert policy.concurrency == 1  # a pause leaves room for one only
    assert CheckpointPolicy(1000, max_concurrent=3).concurrency == 3
    assert CheckpointPolicy.from_configuration({}) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("interval", 9, "interval must be at least 10 ms"),
        ("interval", -1, "interval must be at least 10 ms"),
        ("interval", "10 s", "interval must be at least 10 ms"),
        ("timeout", 0, "timeout must be at least 10 ms"),
        ("min-pause", -5, "min-pause must be at least 0 ms"),
        ("max-concurrent-checkpoints", 0, "max-concurrent-checkpoints must be at least 1"),
        ("tolerable-failed-checkpoints", -1, "tolerable-failed-checkpoints must be at least 0"),
        ("num-retained", 0, "num-retained must be at least 1"),
        ("externalized-checkpoint-retention", "KEEP", "is not one of Flink's names"),
    ],
)
def test_policy_refuses(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        CheckpointPolicy.from_configuration({PREFIX + "interval": 1000, PREFIX + key: value})
    assert repr(value) in str(caught.value.found)
    assert caught.value.cure


# -- trigger --


def test_interval_since_the_last_trigger() -> None:
    trigger = CheckpointTrigger(CheckpointPolicy(100), now_ms=1000)
    assert not trigger.due(1099)
    assert trigger.due(1100)
    trigger.started(1105)
    assert trigger.next_due() is None
    trigger.ended(1150)
    assert trigger.next_due() == 1205


def test_pause_since_the_last_end() -> None:
    trigger = CheckpointTrigger(CheckpointPolicy(100, min_pause_ms=80), now_ms=0)
    trigger.started(100)
    trigger.ended(190)
    assert trigger.next_due() == 270


def test_a_late_checkpoint_is_not_followed_by_a_volley() -> None:
    trigger = CheckpointTrigger(CheckpointPolicy(100), now_ms=0)
    trigger.started(1000)
    trigger.ended(1010)
    assert not trigger.due(1050)
    assert trigger.due(1100)


def test_concurrent_checkpoints() -> None:
    trigger = CheckpointTrigger(CheckpointPolicy(100, max_concurrent=2), now_ms=0)
    trigger.started(100)
    assert trigger.due(200)
    trigger.started(200)
    assert not trigger.due(10_000)
    trigger.ended(300)
    assert trigger.due(300)


# -- failures --


def test_more_failures_in_a_row_than_tolerated() -> None:
    counter = FailureCounter(tolerable=1)
    counter.failed(1, CheckpointFailureReason.EXPIRED, "")
    counter.completed()
    counter.failed(2, CheckpointFailureReason.DECLINED, "disk full")
    counter.failed(3, CheckpointFailureReason.JOB_STOPPING, "")
    with pytest.raises(CheckpointError) as caught:
        counter.failed(4, CheckpointFailureReason.DECLINED, "disk full")
    assert caught.value.rule == "At most 1 checkpoints in a row may fail."
    assert caught.value.where == "checkpoint 4"
    assert str(caught.value.found).startswith("2 failed; the last: a subtask declined")
    assert "disk full" in str(caught.value.found)
    assert "tolerable-failed-checkpoints" in str(caught.value.cure)
    assert caught.value.restart_helps


# -- checkpoint --


def pending_of(*subtasks: tuple[str, int]) -> Checkpoint:
    return Checkpoint(1, token=1, trigger_ms=0, began=0, deadline=100, expected=frozenset(subtasks))


def test_complete_only_when_every_subtask_has_acknowledged() -> None:
    pending = pending_of(("a", 0), ("a", 1))
    assert pending.acknowledge("a", 0, OperatorFigures(name="A", snapshot_ms=3, in_flight_bytes=5))
    assert not pending.acknowledge("a", 0), "a duplicate"
    assert not pending.acknowledge("b", 0), "unknown"
    assert not pending.is_acknowledged
    assert pending.missing == {("a", 1)}
    assert pending.acknowledge("a", 1, OperatorFigures(name="A", snapshot_ms=2, in_flight_bytes=6))
    assert pending.is_acknowledged
    assert pending.operators == {"a": OperatorFigures(name="A", snapshot_ms=3, in_flight_bytes=11)}


def test_expiry() -> None:
    pending = pending_of(("a", 0))
    assert not pending.is_expired(99)
    assert pending.is_expired(100)
    pending.reach(Failed(CheckpointFailureReason.DECLINED), 5)
    assert not pending.is_expired(100)
    assert not pending.acknowledge("a", 0), "too late"


def test_a_stage_that_is_not_the_next_one_is_a_bug() -> None:
    pending = pending_of()
    with pytest.raises(InternalError, match="from Triggered to Subsumed"):
        pending.reach(Subsumed(), 5)
    pending.reach(Failed(CheckpointFailureReason.DECLINED), 5)
    with pytest.raises(InternalError, match="from Failed to Failed"):
        pending.reach(Failed(CheckpointFailureReason.EXPIRED), 6)


# -- history --


def entry(number: int) -> HistoryEntry:
    return HistoryEntry(
        checkpoint_id=number, token=1, kind="checkpoint", status=CheckpointStatus.COMPLETED, trigger_ms=1, end_ms=2,
        duration_ms=1.5, operators_ms={"a": 0.5},
    )  # fmt: skip


def test_history_is_bounded_and_outlives_the_driver(files: Files) -> None:
    history = CheckpointHistory(files, limit=3)
    for number in range(1, 6):
        history.add(entry(number))
    assert [item.checkpoint_id for item in read_history(files)] == [3, 4, 5]
    assert CheckpointHistory(files).entries == [entry(3), entry(4), entry(5)]
    assert CheckpointHistory(files).highest_id == 5


def test_torn_history_never_blocks_a_job(files: Files) -> None:
    CheckpointHistory(files).add(entry(1))
    files.replace("history.json", files.read_bytes("history.json")[:-3])
    with pytest.raises(CorruptFileError):
        read_history(files)
    history = CheckpointHistory(files)
    assert history.entries == []
    history.add(entry(2))
    assert read_history(files) == [entry(2)]


def test_history_that_cannot_be_written_never_blocks_a_job(files: Files) -> None:
    history = CheckpointHistory(files)
    files.write("history.json/in-the-way", b"")
    history.add(entry(1))
    assert history.entries == [entry(1)]


# -- the checkpoints of an attempt --


class Bench:
    """On a real directory, as a master has it."""

    def __init__(self, files: Files, policy: CheckpointPolicy | None = None) -> None:
        self.files, self.clock = files, ManualClock()
        self.lease = acquire(files, self.clock, job_id="job", liveness=lambda owner: False)
        lineage = read_lineage(files, below=self.lease.token)
        self.lease.record_restored(lineage.latest, lineage.retained, [])
        policy = policy or CheckpointPolicy(100, timeout_ms=1000)
        completed = CompletedCheckpoints(files, self.lease, retained=1)
        self.checkpoints = new_checkpoints(self.lease, completed, policy, self.clock, job_name="bench")

    def trigger(self) -> Checkpoint:
        pending = self.checkpoints.trigger([("a", 0)])
        assert pending is not None
        return pending

    def checkpoint(self) -> int:
        pending = self.trigger()
        self.clock.advance(7)
        pending.acknowledge("a", 0, OperatorFigures(name="A", snapshot_ms=4))
        done = complete(self.checkpoints, pending, [], round=5)
        assert done is not None
        end(self.checkpoints, pending)
        return done.checkpoint_id


@pytest.fixture
def bench(files: Files) -> Bench:
    return Bench(files)


def test_a_checkpoint_from_trigger_to_subsume(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert not bench.checkpoints.due()
    bench.clock.advance(100)
    assert bench.checkpoints.due()
    assert bench.checkpoint() == 1
    assert bench.checkpoint() == 2
    bench.checkpoints.steps.completed.subsume(in_use=[])
    assert bench.files.list_names() == ["chk-2", "history.json", "lease"]
    assert "job job: checkpoint 2: step 1 triggered" in caplog.text
    assert "job job: checkpoint 2: step 7 complete, round 5" in caplog.text
    assert "job job: checkpoint 1: step 9 subsumed" in caplog.text
    last = read_history(bench.files)[-1]
    assert (last.checkpoint_id, last.status, last.duration_ms, last.round) == (2, CheckpointStatus.COMPLETED, 7, 5)
    assert last.operators == {"a": OperatorFigures(name="A", snapshot_ms=4)}
    assert last.size > 0


def test_completing_too_early_is_a_bug(bench: Bench) -> None:
    pending = bench.trigger()
    with pytest.raises(InternalError, match=r"missing \[\('a', 0\)\]"):
        complete(bench.checkpoints, pending, [], round=1)


def test_abort_is_in_the_history_with_its_reason(bench: Bench) -> None:
    pending = bench.trigger()
    with pytest.raises(CheckpointError, match="At most 0 checkpoints"):
        bench.checkpoints.abort(pending, CheckpointFailureReason.DECLINED, "disk full")
    bench.checkpoints.abort(pending, CheckpointFailureReason.DECLINED, "again")
    bench.checkpoints.write_history()
    (item,) = read_history(bench.files)
    assert (item.status, item.reason, item.message) == (CheckpointStatus.FAILED, "DECLINED", "disk full")


def test_expired_checkpoint(files: Files) -> None:
    bench = Bench(files, CheckpointPolicy(100, timeout_ms=1000, tolerable_failures=1))
    pending = bench.trigger()
    bench.clock.advance(1000)
    assert pending.is_expired(bench.clock.monotonic() * 1000)
    bench.checkpoints.abort(pending, CheckpointFailureReason.EXPIRED)
    assert bench.checkpoint() == 2


def test_disk_full_at_trigger_and_at_publish_fails_checkpoints_not_the_job(files: Files) -> None:
    bench = Bench(files, CheckpointPolicy(100, tolerable_failures=2))
    faults.install(_disk_full)
    assert bench.checkpoints.trigger([]) is None
    faults.install(None)
    pending = bench.trigger()
    assert pending.checkpoint_id == 2
    pending.acknowledge("a", 0)
    faults.install(_disk_full)
    assert complete(bench.checkpoints, pending, [], round=1) is None
    faults.install(None)
    assert bench.checkpoint() == 3
    assert [item.reason for item in bench.checkpoints.history.entries] == ["TRIGGER_FAILED", "STORAGE_FAILED", ""]
    assert "ENOSPC: No space left on device" in bench.checkpoints.history.entries[0].message


def _disk_full(name: str, where: dict[str, Any]) -> None:
    if name in ("storage.write.opened", "storage.publish.before-link"):
        raise OSError(28, "No space left on device")


def test_a_fenced_attempt_stops(bench: Bench, files: Files) -> None:
    pending = bench.trigger()
    pending.acknowledge("a", 0)
    assert Bench(files).checkpoint() == 2
    with pytest.raises(FencedError):
        complete(bench.checkpoints, pending, [], round=1)
    with pytest.raises(FencedError):
        bench.checkpoints.trigger([])
    with pytest.raises(FencedError):
        bench.checkpoints.on_shutdown(AttemptStatus.FINISHED)
    assert files.exists("chk-2/_metadata")


def test_a_later_one_completes_first(files: Files) -> None:
    bench = Bench(files, CheckpointPolicy(100, max_concurrent=2))
    slow = bench.trigger()
    assert bench.checkpoint() == 2
    assert slow.stage == Failed(CheckpointFailureReason.SUBSUMED)
    assert [(item.checkpoint_id, item.reason) for item in read_history(files)] == [(1, "SUBSUMED"), (2, "")]


def test_what_a_killed_driver_had_under_way_is_accounted_for(bench: Bench, files: Files) -> None:
    bench.checkpoint()
    bench.trigger()
    following = Bench(files)
    lost = following.checkpoints.history.entries[-1]
    assert (lost.checkpoint_id, lost.status, lost.reason) == (2, CheckpointStatus.FAILED, "DRIVER_LOST")
    assert following.checkpoint() == 3


@pytest.mark.parametrize(
    ("status", "retention", "kept"),
    [
        (AttemptStatus.FINISHED, Retention.RETAIN_ON_CANCELLATION, False),
        (AttemptStatus.CANCELLED, Retention.RETAIN_ON_CANCELLATION, True),
        (AttemptStatus.CANCELLED, Retention.DELETE_ON_CANCELLATION, False),
        (AttemptStatus.CANCELLED, Retention.NO_EXTERNALIZED_CHECKPOINTS, False),
        (AttemptStatus.FAILED, Retention.DELETE_ON_CANCELLATION, True),
        (AttemptStatus.FAILED, Retention.NO_EXTERNALIZED_CHECKPOINTS, True),
        (AttemptStatus.RUNNING, Retention.DELETE_ON_CANCELLATION, True),
    ],
)
def test_retention(files: Files, status: AttemptStatus, retention: Retention, kept: bool) -> None:
    bench = Bench(files, CheckpointPolicy(100, retention=retention))
    bench.checkpoint()
    bench.trigger()
    bench.checkpoints.on_shutdown(status)
    assert files.exists("chk-1/_metadata") is kept
    lineage = read_lineage(files)
    assert (lineage.latest is not None) is kept
    assert lineage.status is status
    assert read_history(files)[-1].reason == "JOB_STOPPING"
    acquire(files, ManualClock(), job_id="job")  # free at once, though this process is alive


def test_shutdown_continues_when_storage_fails(bench: Bench, files: Files) -> None:
    bench.checkpoint()
    faults.install(_disk_full)
    bench.checkpoints.on_shutdown(AttemptStatus.FINISHED)
    faults.install(None)
    assert read_lineage(files).latest is not None
