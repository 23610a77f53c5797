"""Triggers, acks, declines, expiry, failing storage, crashes in any order: the checkpoints of an attempt against a plain model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.checkpoint.attempt_model import complete, end, new_checkpoints
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError
from tidegate.base.files import Files
from tidegate.checkpoint.checkpoint import Checkpoint, CheckpointFailureReason
from tidegate.checkpoint.completed import CompletedCheckpoints
from tidegate.checkpoint.history import CheckpointStatus
from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.locate import read_lineage
from tidegate.checkpoint.metadata import OperatorState
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.checkpoint.recovery import decide
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot

GROUPS = KeyGroupRange(0, 127)
SUBTASKS = [("a", 0), ("a", 1), ("b", 0)]
TIMEOUT, TOLERABLE, RETAINED, CONCURRENT = 1000, 2, 2, 3
POLICY = CheckpointPolicy(
    100, timeout_ms=TIMEOUT, tolerable_failures=TOLERABLE, retained=RETAINED, max_concurrent=CONCURRENT
)


KINDS = [
    *["round", "acknowledge_all"] * 4, *["trigger", "complete"] * 6, *["acknowledge", "too_late", "give_up", "time"] * 2,
    *["not_triggered", "not_stored", "die"],
]  # fmt: skip


@dataclass
class UnderWay:
    """What the model knows of a checkpoint that has not ended."""

    pending: Checkpoint
    deadline: int
    files: frozenset[str] = frozenset()
    acked: set[tuple[str, int]] = field(default_factory=set)


class CheckpointsModel(RuleBasedStateMachine):
    """The model is a few lists; after every step storage, history and the answers must agree with them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.files, self.clock = Files(f"{self.root}/job"), ManualClock()
        self.written = 0
        self.state: frozenset[str] = frozenset()  # files of the running state
        self.last_id = self.failures = self.room_used = 0
        self.under_way: dict[int, UnderWay] = {}
        self.over: list[Checkpoint] = []
        self.completed: list[tuple[int, frozenset[str]]] = []
        self.ended: dict[int, str] = {}
        self.stored: dict[int, str] = {}  # of it, in the history on storage
        self.id_on_storage = 0
        self.released: frozenset[str] = frozenset()
        self._start()

    def teardown(self) -> None:
        faults.install(None)
        shutil.rmtree(self.root)

    def _start(self) -> None:
        lease = acquire(self.files, self.clock, job_id="job", liveness=lambda owner: False)
        recovery = decide(self.files, lease)
        assert (recovery.point.checkpoint_id if recovery.point else None) == (
            self.completed[-1][0] if self.completed else None
        )
        recovery.record(lease)
        store = CompletedCheckpoints(self.files, lease, RETAINED)
        self.state = self.completed[-1][1] if self.completed else frozenset()
        store.sweep(self.state)
        self.checkpoints = new_checkpoints(lease, store, POLICY, self.clock)
        kept = [number for number, _ in self.completed]
        self.ended = dict(self.stored)  # what was only remembered is forgotten
        for number in range(max(self.ended, default=0) + 1, lease.live.first_id):
            self.ended[number] = "completed" if number in kept else "DRIVER_LOST"
        self.stored = dict(self.ended)
        assert lease.live.first_id == self.id_on_storage + 1
        self.last_id = max(self.id_on_storage, *self.ended, 0)
        self.over += [one.pending for one in self.under_way.values()]
        self.under_way, self.failures, self.room_used = {}, 0, 0
        self.check_files()

    def _counts(self, act: Callable[[], None]) -> None:
        """What the model expects of a failure that counts."""
        self.failures += 1
        self.room_used -= 1
        if self.failures <= TOLERABLE:
            return act()
        with pytest.raises(CheckpointError, match=f"At most {TOLERABLE} checkpoints in a row may fail"):
            act()
        self._start()  # the job fails, and restarts

    # -- what happens ------------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), data=st.data())
    def step(self, kind: str, data: st.DataObject) -> None:
        """One of the methods below, if there is anything for it to do."""
        ready = sorted(number for number, one in self.under_way.items() if one.acked == set(SUBTASKS))
        of = {
            "acknowledge": sorted(self.under_way), "acknowledge_all": sorted(self.under_way), "give_up": sorted(self.under_way),
            "complete": ready, "not_stored": ready, "too_late": range(len(self.over)),
        }.get(kind, [None])  # fmt: skip
        if of:
            getattr(self, "_" + kind)(data.draw(st.sampled_from(of)), data)

    def _round(self, _: None, data: st.DataObject) -> None:
        """One more file, or all of them become one."""
        self.written += 1
        path = f"shared/{self.written}"
        self.files.write(path, path.encode())
        merge = data.draw(st.booleans())
        self.released |= self.state if merge else frozenset()
        self.state = frozenset({path}) if merge else self.state | {path}

    def _trigger(self, _: None, data: st.DataObject) -> None:
        assert self.checkpoints.is_full == (self.room_used >= CONCURRENT)
        if self.room_used < CONCURRENT:
            pending = self.checkpoints.trigger(SUBTASKS)
            assert pending is not None and pending.checkpoint_id == self.last_id + 1
            self.last_id = self.id_on_storage = pending.checkpoint_id
            self.room_used += 1
            self.under_way[self.last_id] = UnderWay(pending, self.clock.now_ms() + TIMEOUT)

    def _not_triggered(self, _: None, data: st.DataObject) -> None:
        """Storage fails. The id may have arrived: it is never used again."""
        if self.room_used < CONCURRENT:
            self.last_id += 1
            self.room_used += 1
            self.ended[self.last_id] = "TRIGGER_FAILED"
            self._counts(self._trigger_in_vain)

    def _trigger_in_vain(self) -> None:
        with failing("storage.replace"):
            assert self.checkpoints.trigger(SUBTASKS) is None

    def _acknowledge(self, number: int, data: st.DataObject) -> None:
        one, subtask = self.under_way[number], data.draw(st.sampled_from([*SUBTASKS, ("unknown", 0)]))
        found = one.pending.acknowledge(*subtask)
        assert found == (subtask in SUBTASKS and subtask not in one.acked), "unknown ones and duplicates do not count"
        one.acked |= {subtask} & set(SUBTASKS)
        assert one.pending.is_acknowledged == (one.acked == set(SUBTASKS))

    def _acknowledge_all(self, number: int, data: st.DataObject) -> None:
        one = self.under_way[number]
        for subtask in set(SUBTASKS) - one.acked:
            assert one.pending.acknowledge(*subtask)
        one.acked = set(SUBTASKS)

    def _too_late(self, index: int, data: st.DataObject) -> None:
        late = self.over[index]
        if not late.is_pending:  # one of a driver that died was never ended by anybody
            assert not late.acknowledge(*SUBTASKS[0]), "too late"
            self.checkpoints.abort(late, CheckpointFailureReason.DECLINED, "again")  # counts once

    def _give_up(self, number: int, data: st.DataObject) -> None:
        self._abort(number, data.draw(st.sampled_from(["DECLINED", "ROUND_FAILED", "STATE_TOO_LARGE"])))

    def _abort(self, number: int, reason: str) -> None:
        one = self.under_way.pop(number)
        self.over.append(one.pending)
        self.ended[number] = reason
        kind = CheckpointFailureReason[reason]
        if kind.counts:
            return self._counts(lambda: self.checkpoints.abort(one.pending, kind, "model"))
        self.room_used -= 1
        self.checkpoints.abort(one.pending, kind, "model")

    def _time(self, _: None, data: st.DataObject) -> None:
        self.clock.advance(data.draw(st.sampled_from([1, TIMEOUT // 2, TIMEOUT])))
        for number, one in sorted(self.under_way.items()):
            if number not in self.under_way:
                continue  # the job has failed meanwhile
            expired = self.clock.now_ms() >= one.deadline
            assert one.pending.is_expired(self.clock.monotonic() * 1000) == expired
            if expired:
                self._abort(number, "EXPIRED")

    def _not_stored(self, number: int, data: st.DataObject) -> None:
        one = self.under_way.pop(number)
        self.over.append(one.pending)
        self.ended[number] = "STORAGE_FAILED"
        self._counts(lambda: self._store_in_vain(one.pending))

    def _store_in_vain(self, pending: Checkpoint) -> None:
        with failing("storage.publish"):
            assert self._store(pending) is None

    def _complete(self, number: int, data: st.DataObject) -> None:
        one = self.under_way[number]
        assert self._store(one.pending) is not None
        for older in [other for other in self.under_way if other <= number]:
            self.over.append(self.under_way.pop(older).pending)
            self.ended[older] = "completed" if older == number else "SUBSUMED"
            self.room_used -= 1
        self.failures = 0
        self.completed = [*self.completed, (number, self.state)][-RETAINED:]
        end(self.checkpoints, one.pending, lambda: self.checkpoints.steps.completed.subsume(self.state, self.released))
        self.stored, self.released = dict(self.ended), frozenset()
        self.check_files()

    def _store(self, pending: Checkpoint) -> Any:
        refs = tuple(StateFile(path, len(path), "", path, GROUPS) for path in sorted(self.state))
        snapshot = OperatorSnapshot({KEYED: KeyedPart(GROUPS, refs)})
        held = OperatorState(uid_hash="a", name="a", parallelism=1, max_parallelism=128, subtasks=[snapshot])
        return complete(self.checkpoints, pending, [held], round=pending.checkpoint_id)

    def _die(self, _: None, data: st.DataObject) -> None:
        self._start()

    # -- what must hold ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_latest_counts(self) -> None:
        kept = [point.checkpoint_id for point in read_lineage(self.files).retained]
        assert kept == [number for number, _ in self.completed]

    @invariant()
    def what_is_kept_can_be_restored(self) -> None:
        there = set(self.files.list("shared"))
        assert there >= self.state.union(*(files for _, files in self.completed))

    @invariant()
    def room_is_what_is_not_under_way(self) -> None:
        assert self.checkpoints.is_full == (self.room_used >= CONCURRENT)

    @invariant()
    def the_history_tells_how_each_ended(self) -> None:
        told = {
            entry.checkpoint_id: "completed" if entry.status is CheckpointStatus.COMPLETED else entry.reason
            for entry in self.checkpoints.history.entries
        }
        assert told == self.ended

    def check_files(self) -> None:
        """I8, after a sweep or step 9."""
        there = set(self.files.list("shared"))
        assert there == self.state.union(*(files for _, files in self.completed))


class failing:
    """Storage fails at a point."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __enter__(self) -> None:
        def hook(name: str, where: dict[str, Any]) -> None:
            if name == self._point:
                raise OSError(5, "broken")

        faults.install(hook)

    def __exit__(self, *_: object) -> None:
        faults.install(None)


TestCheckpointsModel = CheckpointsModel.TestCase
TestCheckpointsModel.settings = settings(
    max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
