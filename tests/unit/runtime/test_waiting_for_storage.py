"""How long the next round waits for the checkpoint under way: while storage is quick, and never twice for one that is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.base.clock import FOREVER, ManualClock
from tidegate.runtime.attempt_checkpoints import AttemptCheckpoints
from tidegate.runtime.checkpoint_lane import CheckpointLane, Committed, NotStored, Through

HALF_ROUND_MS = 400.0


class Driver:
    """The job's thread with a lane that has begun a checkpoint. What the lane answers, and when, the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        coordinator: Any = SimpleNamespace(
            history=SimpleNamespace(), is_full=True, ends_with_sources=False, late=lambda early_ms: True
        )
        lanes: Any = SimpleNamespace(submit=lambda lane, work: None)
        committers: Any = SimpleNamespace(at_once=False)
        nobody: Any = SimpleNamespace(entered=None)
        self.lane = CheckpointLane(lanes, committers, coordinator, self.clock)
        self.checkpoints = AttemptCheckpoints(coordinator, self.lane, nobody, nobody, nobody, self.clock)
        self.cut: Any = None

    def begin(self, number: int) -> None:
        self.cut = SimpleNamespace(checkpoint_id=number)
        self.lane.checkpoint(self.cut)

    def through(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.lane.ended(Committed(seconds / 2, self.cut))
        self.lane.ended(Through(seconds / 2, self.cut))

    def hold_ms(self, **state: Any) -> float:
        return self.checkpoints.hold_ms(**{"wanted": True, "ending": False, "half_round_ms": HALF_ROUND_MS, **state})

    def round(self) -> None:
        self.checkpoints.round_begins(None)
        self.clock.advance(int(2 * HALF_ROUND_MS))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(made.checkpoints._coordinator, "patience_ms", lambda pending: None, raising=False)
    return made


def test_a_round_waits_a_quarter_of_a_round_at_most(driver: Driver) -> None:
    driver.begin(1)
    assert driver.hold_ms() == 200
    driver.clock.advance(160)
    assert driver.hold_ms() == 40, "it is the same wait, though the checkpoint is taking longer"
    driver.clock.advance(40)
    assert driver.hold_ms() == 0


def test_the_rounds_behind_it_do_not_wait_for_the_same_checkpoint(driver: Driver) -> None:
    """Before the first one is through nobody knows that storage is slow: but that it has not answered yet is known."""
    driver.begin(1)
    driver.clock.advance(200)
    for _ in range(3):
        driver.round()
        assert driver.hold_ms() == 0


def test_no_round_waits_for_storage_that_was_slow_the_last_time(driver: Driver) -> None:
    driver.begin(1)
    driver.through(0.202)
    driver.begin(2)
    assert driver.hold_ms() == 0
    driver.through(0.05)
    driver.begin(3)
    assert driver.hold_ms() == 200, "it is quick again"


def test_one_that_could_not_be_stored_is_not_waited_for_either(driver: Driver) -> None:
    driver.begin(1)
    driver.clock.advance(5_000)
    failed: Any = NotStored(0.01, driver.cut, None)  # type: ignore[arg-type]
    driver.lane.ended(failed)
    driver.begin(2)
    assert driver.hold_ms() == 200


def test_the_last_round_waits_for_as_long_as_it_takes(driver: Driver) -> None:
    driver.begin(1)
    driver.clock.advance(5_000)
    assert driver.hold_ms(ending=True) == FOREVER
