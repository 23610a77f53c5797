"""Every fault point with every mode and backend: it fires in each of them, and all invariants hold."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.unit.simulation import savepoint_cases
from tests.unit.simulation.cases import FIRST_CRASH, STATES, Case, fails, run_all, run_case
from tests.unit.simulation.savepoint_cases import SavepointCase
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_faults import CAN_FAIL, NOT_PASSED, points_in_the_code, second_life
from tests.unit.simulation.test_savepoint_faults import passed_behind
from tidegate.state.stores import close_removed_stores
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances

MODES: dict[str, dict[str, int]] = {"aligned": {}, "unaligned": {"unaligned": 1}, "at-least-once": {"repeats": 1}}
BACKENDS = ("hashmap", "rocksdb")
CELLS = [(mode, backend) for mode in MODES for backend in BACKENDS]

BEHIND_AN_ERROR = {
    "C2.aborted": Fault(1, "storage.publish.before-link", 4, Kind.ERROR),
    "C5.publish-failed": Fault(1, "storage.publish.before-link", 4, Kind.ERROR),
    "K3.file-sink.before-delete": Fault(1, "T2.before-segment", 1, Kind.ERROR),
}
"""Points that some lives pass only when something else has failed: where."""
OF_SAVEPOINTS = {"C10.decided": "stop", "C10.settled": "stop", "C11.copied": "savepoint", "C11.published": "savepoint"}
"""And the command that leads to them."""
ELSEWHERE = {
    name for name in NOT_PASSED if name.startswith(("K3.global", "K3.file-sink", "T5.partly", "spark.", "letters."))
}
"""``NOT_PASSED`` says where."""
NEVER = {True: "K3.file-sink.retiring", False: "K3.two-phase.decided"}
"""At least once, parts of files end with their round, and nothing of them is kept; else checkpoints are the decisions."""
CHANCES = ("die", "zombie", "late", "rerun", "rerun_whole", "lose_store", "hang")
"""What happens to tasks and rounds without a point: T1, T3, T4 and T5."""


def state_of(backend: str) -> str:
    return f"{backend}-incremental"


def cases(mode: str, backend: str) -> Iterator[Case]:
    """Each point and kind of fault once, in the first program that passes it: of states, if there is a choice."""
    shape: dict[str, Any] = {**MODES[mode], "state": state_of(backend)}
    seen: set[tuple[str, Kind]] = set()
    for seed, scenario in product((1, 2), ("states", *SCENARIOS)):
        life = second_life(scenario, seed, repeats=shape.get("repeats", 0))
        for name, count in sorted(life.passed.items()):
            kinds = {Kind.CRASH: True, Kind.KILL: name in life.in_tasks, Kind.ERROR: name.startswith(CAN_FAIL)}
            for kind in [kind for kind, fits in kinds.items() if fits and name != "*" and (name, kind) not in seen]:
                seen.add((name, kind))
                yield Case(scenario, seed, (FIRST_CRASH, Fault(1, name, (count + 1) // 2, kind)), **shape)
    for name in [name for name in BEHIND_AN_ERROR if (name, Kind.CRASH) not in seen]:
        yield Case("states", 1, (FIRST_CRASH, BEHIND_AN_ERROR[name], Fault(1, name, 1, Kind.CRASH)), **shape)


def savepoints(mode: str, backend: str) -> Iterator[SavepointCase]:
    settings = Case("states", 1, **MODES[mode], state=state_of(backend)).settings  # type: ignore[arg-type]
    for name, command in OF_SAVEPOINTS.items():
        passing = passed_behind("states", command)[name][0]
        yield SavepointCase("states", command, fault=Fault(0, name, passing, Kind.CRASH), settings=settings)


def chances(mode: str, backend: str) -> Iterator[tuple[str, Case]]:
    for name in CHANCES:
        rate = Chances(**{name: 0.15})
        yield name, Case("states", 4, (FIRST_CRASH,), rate, **MODES[mode], state=state_of(backend))  # type: ignore[arg-type]


def fails_by_chance(chosen: tuple[str, Case]) -> str | None:
    """As ``fails``, for a case of ``chances``: I13 is asked of the engine."""
    name, case = chosen
    root = tempfile.mkdtemp(dir="/dev/shm")
    try:
        lives = run_case(case, root).lives
        return None if any(life.engine.fired.get(name) for life in lives) else f"{case}\n    I13: no {name}"
    except BaseException:
        return fails(case)  # with how to run it again
    finally:
        shutil.rmtree(root, ignore_errors=True)
        close_removed_stores()


@pytest.mark.parametrize("mode", MODES)
def test_every_point_is_in_the_matrix(mode: str) -> None:
    inside = {case.faults[-1].point for case in cases(mode, "hashmap")} | set(OF_SAVEPOINTS)
    assert points_in_the_code() - inside == ELSEWHERE | {NEVER[mode == "at-least-once"]}


def test_some_cell_for_every_point() -> None:
    """Cells and kinds of faults take turns; the slow tests below have all of them."""
    by_point: dict[str, dict[tuple[str, str], list[Case]]] = defaultdict(lambda: defaultdict(list))
    for cell in CELLS:
        for case in cases(*cell):
            by_point[case.faults[-1].point][cell].append(case)
    chosen = []
    for number, (_, by_cell) in enumerate(sorted(by_point.items())):
        listed = list(by_cell.values())[number % len(by_cell)]
        chosen.append(listed[number // len(CELLS) % len(listed)])
    assert {(case.unaligned, case.repeats, case.state) for case in chosen} == {
        (MODES[mode].get("unaligned", 0), MODES[mode].get("repeats", 0), state_of(backend)) for mode, backend in CELLS
    }
    run_all(chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "backend"), CELLS)
def test_every_point(mode: str, backend: str) -> None:
    run_all(cases(mode, backend))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "backend"), CELLS)
def test_every_point_of_savepoints(mode: str, backend: str) -> None:
    run_all(savepoints(mode, backend), savepoint_cases.fails)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "backend"), CELLS)
def test_every_fault_of_tasks_and_rounds(mode: str, backend: str) -> None:
    run_all(chances(mode, backend), fails_by_chance)


def test_backends_are_those_of_the_cases() -> None:
    assert {state_of(backend) for backend in BACKENDS} <= set(STATES)
