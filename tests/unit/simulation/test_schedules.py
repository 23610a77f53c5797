"""Seeded random schedules: drivers and workers die, storage fails, zombies haunt, hosts lose their state, jobs rescale."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.simulation.simulation import Simulation
from tests.unit.simulation.cases import INTERVAL, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_faults import second_life
from tidegate.base.files import Files
from tidegate.state import materialize
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances

KINDS = (Kind.CRASH, Kind.CRASH, Kind.KILL, Kind.ERROR)


def random_case(seed: int) -> Case:
    dice = random.Random(seed)
    scenario = list(SCENARIOS)[seed % len(SCENARIOS)]
    faults = []
    for life in range(dice.randrange(4)):
        faults.append(Fault(life, "*", dice.randrange(1, 700), dice.choice(KINDS)))
        if dice.random() < 0.3:
            faults.append(Fault(life, "*", dice.randrange(1, 700), Kind.ERROR))
    names = ("die", "zombie", "late", "rerun", "lose_store")
    rates = {name: dice.choice((0, 0.02, 0.06)) for name in names}
    widths = tuple(dice.choice((1, 2, 3)) for _ in range(4))
    chances = Chances(**rates, hang=dice.choice((0, 0, 0.03)), share=0.5)
    concurrent, interval = dice.choice((1, 1, 2, 3)), dice.choice((10, 40, INTERVAL))
    fan_in = dice.choice((2, materialize.FAN_IN))
    chances = replace(chances, rerun_whole=dice.choice((0, 0.05)))
    state = dice.choice(("hashmap-incremental", "hashmap-uncached"))  # small states stay in memory, and open no store
    return Case(scenario, seed, tuple(faults), chances, widths, concurrent, interval, fan_in, state=state)


def paused_cases(scenario: str, every: int) -> list[Case]:
    total = second_life(scenario).passed["*"]
    dice = random.Random(every)
    crash = Fault(0, "*", 250, Kind.CRASH)
    later = [(), (Fault(2, "*", 300, Kind.CRASH),)]
    return [
        Case(scenario, point, (crash, *dice.choice(later)), parallelism=(2, dice.choice((1, 2, 3))), pause=point)
        for point in range(1 + dice.randrange(every), total // 2, every)
    ]


FOUND = """
keyed_count 25 0:*@16=crash 1:*@313=error 1:*@262=error 2:*@36=kill zombie=0.06 rerun=0.06 lose_store=0.06 parallelism=3,1,3,3
states 172 0:*@199=crash 0:*@361=error 1:*@51=error die=0.02 late=0.06 rerun=0.06 lose_store=0.06 parallelism=1,2,2,3
two_sources 50101 0:*@493=error die=0.06 zombie=0.02 late=0.02 rerun=0.06 parallelism=2,3,3,2
"""
"""Schedules that found something once."""


def test_schedules_that_found_something() -> None:
    run_all(Case.parse(line.split()) for line in FOUND.split("\n") if line)


def test_state_files_are_merged_in_a_short_life(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: of the schedules with a small ``fan_in``."""
    monkeypatch.setattr(materialize, "FAN_IN", 2)
    simulation = Simulation(SCENARIOS["states"], root, 1)
    simulation.live([Fault(0, "*", 450, Kind.CRASH)])
    assert [path for path in Files(simulation.place.job).list("shared") if path.endswith(".base")]


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_random_schedules(first: int) -> None:
    run_all(random_case(seed) for seed in range(first, first + 100))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 21_000, 1_000))
def test_random_schedules_by_the_thousand(first: int) -> None:
    run_all(random_case(seed) for seed in range(first, first + 1_000))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_old_driver_wakes_up(scenario: str) -> None:
    """Fault C9: at any point it is fenced, and nothing it does is seen."""
    run_all(paused_cases(scenario, every=9))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_old_driver_wakes_up_at_every_point(scenario: str) -> None:
    run_all(paused_cases(scenario, every=1))
