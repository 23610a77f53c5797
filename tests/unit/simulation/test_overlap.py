"""Faults while a round runs and the last checkpoint is being stored, committed or cleaned up: both lanes at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.lives import Life
from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, simulate
from tests.unit.simulation.cases import FIRST_CRASH, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_faults import CAN_FAIL, second_life
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances

SEEDS = range(1, 6)
OFTEN = 40
"""Between checkpoints, in milliseconds: hardly a round without one under way."""
STEPS = ("C4.", "C5.", "C6.", "C7.", "C9.", "K3.", "storage.")
TIMEOUT = "execution.checkpointing.timeout"


def overlaps(scenario: str, seed: int) -> dict[str, list[int]]:
    """Points of steps 7 to 9 that a life passes in the middle of a round -> at which passings."""
    found: dict[str, list[int]] = {}
    for name, passing in second_life(scenario, seed, OFTEN).overlaps:
        if name.startswith(STEPS):
            found.setdefault(name, []).append(passing)
    return found


def test_every_step_happens_in_the_middle_of_a_round() -> None:
    """I13 for the tests below."""
    seen = {name for scenario in SCENARIOS for seed in SEEDS for name in overlaps(scenario, seed)}
    assert {
        *("C4.before-publish", "C6.published", "C6.recorded", "C6.completed", "C6.before-commit", "C6.sink-committed"),
        *("C6.all-committed", "C7.recorded", "C7.metadata-deleted", "C7.subsumed", "storage.publish.before-link"),
    } <= seen


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.ERROR])
def test_a_fault_in_the_checkpoint_lane_while_a_round_runs(kind: Kind) -> None:
    run_all(
        Case(scenario, seed, (FIRST_CRASH, Fault(1, name, passing, kind)), interval=OFTEN)
        for scenario in SCENARIOS
        for seed in SEEDS
        for name, passings in sorted(overlaps(scenario, seed).items())
        if kind is Kind.CRASH or name.startswith(CAN_FAIL)
        for passing in sorted({passings[0], passings[-1]})
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_checkpoints_follow_each_other_without_waiting(scenario: str) -> None:
    """Several under way at once: a crash or an error in one of them, with the next ones in the lane after it."""
    run_all(
        Case(scenario, seed, (FIRST_CRASH, Fault(1, point, 1, kind)), concurrent=3, interval=OFTEN)
        for seed in SEEDS
        for point, kind in [
            *(("C4.before-publish", Kind.CRASH), ("C6.published", Kind.CRASH), ("C6.before-commit", Kind.CRASH)),
            *(("C6.all-committed", Kind.CRASH), ("storage.publish.before-link", Kind.ERROR)),
        ]
    )


def test_several_checkpoints_are_under_way_at_once(root: str) -> None:
    """I13 for the test above."""
    settings = {"execution.checkpointing.max-concurrent-checkpoints": 3, "execution.checkpointing.interval": 10}
    lives = [simulate(SCENARIOS["states"], f"{root}/{seed}", seed, settings=settings).lives[0] for seed in range(6)]
    assert max(life.lanes.deepest for life in lives if life.lanes) >= 2


def cancelled_while_storing(simulation: Simulation) -> Life | None:
    """A life that is cancelled in the middle of a round, with a checkpoint in the other lane; None: it never was in both."""
    life = simulation.new_life()
    calls: list[int] = []
    new_lanes = life._new_lanes

    def watched(*arguments: Any) -> Any:
        lanes = new_lanes(*arguments)

        def go_on_and_cancel() -> None:
            lanes.between_tasks()
            if lanes.storing and not calls:
                calls.append(life.passed["*"])
                life.master.cancel()

        life.engine.between_tasks = go_on_and_cancel
        return lanes

    life._new_lanes = watched  # type: ignore[method-assign, assignment]
    simulation.run(life)
    assert not calls or "cancelled" in str(life.error)
    return life if calls else None


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cancelled_while_a_checkpoint_is_stored(scenario: str, root: str) -> None:
    """The checkpoint is committed, then the job ends and leaves nothing."""
    cancelled = 0
    for seed in SEEDS:
        Outside.forget_all()
        simulation = Simulation(SCENARIOS[scenario], f"{root}/{seed}", seed)
        life = cancelled_while_storing(simulation)
        if life is not None:
            cancelled += 1
            assert life.passed["C6.all-committed"] == life.passed["C6.published"] > 0
            for observer in simulation.observers:
                observer.check_leftovers()
            simulation.check_storage(ended=True)
    assert cancelled


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_cancelled_while_a_checkpoint_is_stored_and_started_again(scenario: str, root: str) -> None:
    settings = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    cancelled = 0
    for seed in SEEDS:
        Outside.forget_all()
        simulation = Simulation(SCENARIOS[scenario], f"{root}/{seed}", seed, settings=settings)
        cancelled += cancelled_while_storing(simulation) is not None
        simulation.conclude(3)
    assert cancelled


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rounds_that_hang_are_cut_off(scenario: str, root: str) -> None:
    """By the watchdog, on the simulated clock: what the other lane had begun finishes before the restart."""
    lives = []
    for seed in SEEDS:
        where, chances = f"{root}/{seed}", Chances(hang=0.25)
        lives += simulate(SCENARIOS[scenario], where, seed, chances=chances, settings={TIMEOUT: 500}).lives
    assert sum(life.engine.fired.get("hang", 0) for life in lives) > 0
    assert max(life.starts for life in lives) > 1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_heartbeats_beat_in_simulated_time(scenario: str, root: str) -> None:
    settings = {"tidegate.checkpoint.lease-timeout": 100}
    simulation = simulate(SCENARIOS[scenario], root, 5, settings=settings)
    quick = simulation.lives[0].passed["storage.replace"]
    assert quick > second_replaces(scenario) + 3


def second_replaces(scenario: str) -> int:
    return second_life(scenario, 5).passed["storage.replace"]
