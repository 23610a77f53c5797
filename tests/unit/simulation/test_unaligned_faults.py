"""Faults while records are in flight: at every point, with every way of keeping state, in rough schedules and over rescales."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from tests.unit.simulation.cases import STATES, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_schedules import paused_cases, random_case
from tests.unit.simulation.test_state_faults import every_point
from tidegate.testing.simulation.driver import Fault, Kind


def in_flight(case: Case) -> Case:
    return replace(case, unaligned=1, concurrent=1, repeats=0)


@pytest.mark.parametrize("kind", Kind)
def test_every_point_with_records_in_flight(kind: Kind) -> None:
    cases = [in_flight(case) for case in every_point("states") if case.faults[-1].kind is kind]
    run_all([replace(case, state=state) for case, state in zip(cases, cycle(STATES), strict=False)])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_point_of_every_program(scenario: str) -> None:
    run_all([in_flight(case) for case in every_point(scenario)])


def test_rough_schedules() -> None:
    run_all([in_flight(random_case(seed)) for seed in range(20)])


@pytest.mark.slow
def test_many_rough_schedules_and_two_drivers() -> None:
    run_all([in_flight(random_case(seed)) for seed in range(1000, 1300)])
    run_all([in_flight(case) for scenario in SCENARIOS for case in paused_cases(scenario, every=23)])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rescaled_with_records_in_flight(scenario: str) -> None:
    crashes = [Fault(life, "C7.subsumed", 1, Kind.CRASH) for life in range(2)]
    run_all([Case(scenario, seed, tuple(crashes), parallelism=(1, 3, 2), unaligned=1) for seed in range(2)])
