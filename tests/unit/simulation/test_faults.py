"""Faults at every point: the driver crashes, a worker dies, an operation fails; then all invariants hold."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from pathlib import Path

import pytest

import tidegate
from tests import sinks
from tests.simulation.lives import Life
from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, seeded_tokens
from tests.unit.simulation.cases import FIRST_CRASH, INTERVAL, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tidegate.testing.simulation.driver import Fault, Kind

CAN_FAIL = ("storage.", "T2.", "K1.", "K3.")
"""Points where an operation outside is about to happen or has just happened."""

NOT_PASSED = {
    "C2.aborted": "only when a checkpoint fails",
    "C5.publish-failed": "only when a publish fails",
    **dict.fromkeys(
        ["K3.global.before-commit", "K3.global.committed"],
        "only of sinks with a committer for all subtasks: tests/unit/connectors/test_global_committer.py",
    ),
    **dict.fromkeys(
        ["K3.file-sink.before-marker", "K3.file-sink.marked"],
        "only with success markers: tests/unit/connectors/test_success_markers.py",
    ),
    "K3.two-phase.decided": "only at least once: test_at_least_once.py",
    **dict.fromkeys(
        ["C10.decided", "C10.settled", "C11.copied", "C11.published"],
        "only when a savepoint is taken: test_savepoint_faults.py",
    ),
    "T5.partly-rebuilt": "only for state files of many blocks",
    **dict.fromkeys(
        ["letters.rung", "letters.taken", "letters.begun"],
        "only when commands come as files: tests/unit/control/test_letters.py",
    ),
    "spark.opening": "only where there is a JVM: tests/crash/test_workers_killed.py",
}


@functools.cache
def second_life(
    scenario: str, seed: int = 1, interval: int = INTERVAL, repeats: int = 0, state: str = "hashmap-incremental"
) -> Life:
    """A life without faults after one that was killed early: the points it passes are those to inject faults at."""
    root = tempfile.mkdtemp(dir="/dev/shm")
    Outside.forget_all()
    with seeded_tokens(seed):
        settings = Case(scenario, seed, interval=interval, repeats=repeats, state=state).settings
        simulation = Simulation(SCENARIOS[scenario], root, seed, settings=settings)
        assert simulation.live([FIRST_CRASH]).crashed
        life = simulation.live()
        simulation.check_end()
    shutil.rmtree(root)
    return life


def passings(count: int, kind: Kind) -> list[int]:
    """The first, the last and, for crashes, one between."""
    return sorted({1, (count + 1) // 2, count} if kind is Kind.CRASH else {1, count})


def cases_of(scenario: str, kind: Kind, repeats: int = 0, state: str = "hashmap-incremental") -> list[Case]:
    life = second_life(scenario, repeats=repeats, state=state)
    points = [name for name in sorted(life.passed) if name != "*"]
    if kind is Kind.KILL:
        points = [name for name in points if name in life.in_tasks]
    elif kind is Kind.ERROR:
        points = [name for name in points if name.startswith(CAN_FAIL)]
    return [
        Case(scenario, 1, (FIRST_CRASH, Fault(1, name, passing, kind)), repeats=repeats, state=state)
        for name in points
        for passing in passings(life.passed[name], kind)
    ]


_OF_CONNECTORS = re.compile(r"\.(kafka|sql|jdbc|redis|table|write-ahead|for-each)\.|^socket\.")
"""Passed by tests of their own, most of them on real servers: tests/kafka, tests/servers, tests/unit/connectors."""


def points_in_the_code() -> set[str]:
    """Read from the sources, but for those of connectors."""
    root = Path(tidegate.__file__).parent
    files = [path for path in root.rglob("*.py") if path.parent.name != "testing"]
    texts = [path.read_text() for path in (*files, Path(sinks.__file__))]
    names = {name for text in texts for name in re.findall(r'faults\.point\(\s*"([^"]+)"', text)}
    return {name for name in names if not _OF_CONNECTORS.search(name)}


def test_every_point_in_the_code_is_passed() -> None:
    """A new fault point must be passed by some program here, or be explained."""
    names = points_in_the_code()
    passed = {name for scenario in SCENARIOS for name in second_life(scenario).passed}
    assert len(names) > 50
    assert names - passed == set(NOT_PASSED)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", Kind)
def test_fault_at_every_point(scenario: str, kind: Kind) -> None:
    run_all(cases_of(scenario, kind))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_driver_crashes_at_every_passing_of_every_point(scenario: str) -> None:
    total = second_life(scenario).passed["*"]
    crashes = [Fault(1, "*", number, Kind.CRASH) for number in range(1, total + 1)]
    run_all(Case(scenario, 1, (FIRST_CRASH, crash)) for crash in crashes)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_crash_again_while_restoring(scenario: str) -> None:
    """Fault C8: the third life dies where the second one was still restoring, the fourth finds the same."""
    points = [name for name in second_life(scenario).passed if name.startswith(("C8", "C9")) or "listed" in name]
    run_all(
        Case(scenario, seed, (FIRST_CRASH, Fault(1, "*", 200 + 60 * seed, Kind.CRASH), Fault(2, name, 1, Kind.CRASH)))
        for name in points
        for seed in (1, 2)
    )
