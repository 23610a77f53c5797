"""At-least-once: output is committed with its round, so it may repeat after a failure, and none of it is ever lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.observer import OutputObserver, Outside
from tests.simulation.simulation import Simulation, simulate
from tests.unit.simulation.cases import FIRST_CRASH, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_faults import cases_of
from tests.unit.simulation.test_schedules import paused_cases, random_case
from tidegate.testing.simulation.driver import Fault, Kind

MODE = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}
OWN_PAGES = ("keyed_count", "states", "reduced_windows")
"""With sinks that do not mind a driver that was stopped, wakes up and asks for what its successor has aborted."""


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.ERROR])
def test_first_fault_at_every_point(kind: Kind) -> None:
    run_all(case for case in cases_of("two_sources", kind, repeats=1) if case.faults[-1].passing == 1)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", Kind)
def test_fault_at_every_point(scenario: str, kind: Kind) -> None:
    run_all(cases_of(scenario, kind, repeats=1))


def test_random_schedules() -> None:
    run_all(replace(random_case(seed), repeats=1) for seed in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 6_000, 1_000))
def test_random_schedules_by_the_thousand(first: int) -> None:
    run_all(replace(random_case(seed), repeats=1) for seed in range(first, first + 1_000))


def test_a_checkpoint_that_waits_for_publications_keeps_its_files() -> None:
    """Several under way, files merged all the time: step 9 of one must know what the next ones, which are held, refer to."""
    run_all(
        Case(
            scenario,
            seed,
            (FIRST_CRASH, Fault(1, "*", 400, Kind.CRASH)),
            concurrent=3,
            interval=10,
            fan_in=2,
            repeats=1,
        )
        for scenario in ("states", "keyed_count")
        for seed in range(6)
    )


def test_an_old_driver_wakes_up() -> None:
    run_all(replace(case, repeats=1) for case in paused_cases("keyed_count", every=37))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", OWN_PAGES)
def test_an_old_driver_wakes_up_at_many_points(scenario: str) -> None:
    run_all(replace(case, repeats=1) for case in paused_cases(scenario, every=3))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_failure_nothing_is_doubled(scenario: str, root: str) -> None:
    simulation = simulate(SCENARIOS[scenario], root, 1, settings=MODE)
    for observer in simulation.observers:
        OutputObserver(observer.output).check_records()


def test_a_failure_doubles_what_came_after_the_checkpoint(root: str) -> None:
    """I13 for the tests above: output is out before its checkpoint, and comes again."""
    doubled = 0
    for seed in range(1, 6):
        faults = (FIRST_CRASH, Fault(1, "C4.before-publish", 2, Kind.CRASH))
        simulation = simulate(SCENARIOS["two_sources"], f"{root}/{seed}", seed, faults, settings=MODE)
        values = [str(value) for page in simulation.observers[0].output.pages().values() for value in page]
        doubled += len(values) - len(set(values))
    assert doubled > 0


def test_from_one_mode_to_the_other(root: str) -> None:
    """Files that an exactly-once job has open are ended by the first round; what its checkpoint promised is committed once."""
    for seed in range(1, 4):
        Outside.forget_all()
        first = Simulation(SCENARIOS["states"], f"{root}/{seed}", seed)
        assert first.live([Fault(0, "C7.subsumed", 1, Kind.CRASH)]).crashed
        then = Simulation(SCENARIOS["states"], f"{root}/{seed}", seed + 100, settings=MODE)
        life = then.live()
        assert life.finished and life.restored is not None
        then.check_end()
