"""Savepoints, stop and cancel with one, with a fault at every point after the command: nothing is lost, nothing doubled."""

from __future__ import annotations

import functools
import shutil
import tempfile

import pytest

from tests.simulation.observer import Outside
from tests.simulation.simulation import seeded_tokens
from tests.unit.simulation.cases import run_all
from tests.unit.simulation.savepoint_cases import COMMANDS, SavepointCase, SavepointRun, fails
from tests.unit.simulation.simulated_programs import SCENARIOS
from tidegate.testing.simulation.driver import Fault, Kind

CAN_FAIL = ("storage.", "T2.", "K1.", "K3.")


@functools.cache
def passed_behind(scenario: str, command: str) -> dict[str, tuple[int, int]]:
    """Per point its first and last passing after the command, in a life without faults."""
    root = tempfile.mkdtemp(dir="/dev/shm")
    Outside.forget_all()
    with seeded_tokens(1):
        run = SavepointRun(SavepointCase(scenario, command), root)
        before: dict[str, int] = {}
        run.before_command = lambda: before.update(run.first.lives[0].passed)
        life = run.live()
    shutil.rmtree(root)
    assert run.commands[0].answer.exception() is None
    return {
        name: (before.get(name, 0) + 1, count)
        for name, count in life.passed.items()
        if count > before.get(name, 0) and name != "*"
    }


def cases(scenario: str, command: str, kind: Kind, *, same_job: bool = False) -> list[SavepointCase]:
    points = passed_behind(scenario, command)
    if kind is Kind.ERROR:
        points = {name: passings for name, passings in points.items() if name.startswith(CAN_FAIL)}
    return [
        SavepointCase(scenario, command, fault=Fault(0, name, passing, kind), same_job=same_job)
        for name, (first, last) in sorted(points.items())
        for passing in sorted({first, (first + last) // 2, last})
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("command", COMMANDS)
def test_without_faults(scenario: str, command: str) -> None:
    widths = [(1, 3), (3, 8), (8, 2), (2, 1)]
    run_all(
        [
            SavepointCase(scenario, command, round, seed=seed, parallelism=width, same_job=bool(seed % 2))
            for seed, width in enumerate(widths, start=1)
            for round in (1, 4)
        ],
        fails,
    )


QUICK = [
    ("keyed_count", "stop", Kind.CRASH),
    ("states", "cancel", Kind.CRASH),
    ("keyed_count", "savepoint", Kind.CRASH),
    ("two_sources", "stop", Kind.ERROR),
]
EVERY = [
    (scenario, command, kind) for scenario in SCENARIOS for command in COMMANDS for kind in (Kind.CRASH, Kind.ERROR)
]


@pytest.mark.parametrize(
    ("scenario", "command", "kind"),
    [pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in EVERY],
)
def test_fault_after_the_command(scenario: str, command: str, kind: Kind) -> None:
    run_all(cases(scenario, command, kind, same_job=command == "cancel"), fails)
