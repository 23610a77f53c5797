"""How long the next round waits for the checkpoint under way: while storage is quick, and never twice for one that is slow."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.base.clock import FOREVER, ManualClock
from tidegate.base.files import Files
from tidegate.checkpoint.checkpoint import Checkpoint, CheckpointFailureReason, Committed, Cut, Failed, Stored, Subsumed
from tidegate.checkpoint.completed import CompletedCheckpoints
from tidegate.checkpoint.history import CheckpointHistory, Sizes
from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.checkpoint.savepoint import SavepointPlace
from tidegate.runtime.checkpoints import Checkpoints, Look
from tidegate.runtime.commands import Stop
from tidegate.runtime.engine import RoundResult
from tidegate.runtime.savepoints import Around
from tidegate.runtime.steps import CheckpointSteps

HALF_ROUND_MS = 400.0


class Driver:
    """The job's thread with a lane that has begun a checkpoint. What the lane answers, and when, the test says."""

    def __init__(self, files: Files) -> None:
        self.clock = ManualClock()
        lanes: Any = SimpleNamespace(submit=lambda lane, work: None)
        committers: Any = SimpleNamespace(at_once=False)
        nobody: Any = SimpleNamespace(checkpoint=lambda checkpoint: None)
        lease = acquire(files, self.clock, job_id="job", liveness=lambda owner: False)
        lease.record_restored(None, [], [])
        history, policy = CheckpointHistory(files), CheckpointPolicy(10, tolerable_failures=9)
        steps = CheckpointSteps(
            lanes, committers, lease, self.clock, 1, CompletedCheckpoints(files, lease, 1), history, 1
        )
        around = Around(SavepointPlace("job", "job", None), nobody, lease, nobody, self.clock, Stop())
        self.checkpoints = Checkpoints(steps, around, policy, history)
        self.checkpoint: Checkpoint | None = None

    def begin(self) -> None:
        self.checkpoint = self.checkpoints.trigger([])
        assert self.checkpoint is not None
        self.clock.advance(10)  # the next one is due
        progress: Any = SimpleNamespace(
            committables={},
            in_flight_records=0,
            operator_states=lambda sources: [],
            paths=set,
            without_pending=dict,
            graph=SimpleNamespace(operators=[]),
        )
        planner: Any = SimpleNamespace(behind=dict, snapshots=dict, finished=False)
        assert self.checkpoints.cut(self.checkpoint, RoundResult(1, 0.0, []), progress, planner)

    def through(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        assert self.checkpoint is not None and isinstance(self.checkpoint.stage, Cut)
        cut = self.checkpoint.stage
        progress: Any = SimpleNamespace(paths=set, without_pending=lambda confirmed: progress)
        self.checkpoints.stored(self.checkpoint, Stored(cut, Sizes(0, 0, {})))
        self.checkpoints.committed(self.checkpoint, Committed(cut), progress, seconds / 2)
        self.checkpoints.subsumed(self.checkpoint, Subsumed(), seconds / 2)

    def fail(self, seconds: float) -> None:
        assert self.checkpoint is not None
        self.checkpoints.failed(self.checkpoint, Failed(CheckpointFailureReason.STORAGE_FAILED), seconds)

    def hold_ms(self, **state: Any) -> float:
        return self.checkpoints.hold_ms(
            Look(**{"wanted": True, "ending": False, "half_round_ms": HALF_ROUND_MS, **state})
        )

    def round(self) -> None:
        self.checkpoints.round_begins(None)
        self.clock.advance(int(2 * HALF_ROUND_MS))


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(Files(str(tmp_path)))


def test_a_round_waits_a_quarter_of_a_round_at_most(driver: Driver) -> None:
    driver.begin()
    assert driver.hold_ms() == 200
    driver.clock.advance(160)
    assert driver.hold_ms() == 40, "it is the same wait, though the checkpoint is taking longer"
    driver.clock.advance(40)
    assert driver.hold_ms() == 0


def test_the_rounds_after_it_do_not_wait_for_the_same_checkpoint(driver: Driver) -> None:
    """Before the first one is through nobody knows that storage is slow: but that it has not answered yet is known."""
    driver.begin()
    driver.clock.advance(200)
    for _ in range(3):
        driver.round()
        assert driver.hold_ms() == 0


def test_no_round_waits_for_storage_that_was_slow_the_last_time(driver: Driver) -> None:
    driver.begin()
    driver.through(0.202)
    driver.begin()
    assert driver.hold_ms() == 0
    driver.through(0.05)
    driver.begin()
    assert driver.hold_ms() == 200, "it is quick again"


def test_one_that_could_not_be_stored_is_not_waited_for_either(driver: Driver) -> None:
    driver.begin()
    driver.clock.advance(5_000)
    driver.fail(0.01)
    driver.begin()
    assert driver.hold_ms() == 200


def test_the_last_round_waits_for_as_long_as_it_takes(driver: Driver) -> None:
    driver.begin()
    driver.clock.advance(5_000)
    driver.checkpoints.note_sources(stopping=True, some_ended=False)
    assert driver.hold_ms(ending=True) == FOREVER
