"""Faults at every point, for each backend and each kind of checkpoint: what is kept where makes no difference."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle

import pytest

from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, seeded_tokens
from tests.unit.simulation.cases import STATES, Case, run_all
from tests.unit.simulation.simulated_programs import SCENARIOS
from tests.unit.simulation.test_faults import cases_of
from tidegate.base.files import Files
from tidegate.checkpoint.locate import locate_own, read_lineage
from tidegate.testing.simulation.driver import Fault, Kind

BEHIND = [name for name in STATES if name.endswith("-behind")]
OTHERS = [name for name in STATES if name not in ("hashmap-incremental", *BEHIND)]
"""That one has test_faults.py; where state is stored behind rounds, points are passed another number of times."""


def every_point(scenario: str, state: str = "hashmap-incremental") -> list[Case]:
    """Each point and kind of fault once, at a passing of its own."""
    chosen: dict[tuple[str, Kind], Case] = {}
    cases = [case for kind in Kind for case in cases_of(scenario, kind, state=state)]
    random.Random(scenario).shuffle(cases)
    for case in cases:
        chosen.setdefault((case.faults[-1].point, case.faults[-1].kind), case)
    return list(chosen.values())


@pytest.mark.parametrize("kind", Kind)
def test_every_point_with_every_kind_of_fault_and_some_state(kind: Kind) -> None:
    """Pairs of point and way of keeping state, spread evenly: test_fault_with_every_state has all of them."""
    cases = [case for case in every_point("states") if case.faults[-1].kind is kind]
    run_all([replace(case, state=state) for case, state in zip(cases, cycle(OTHERS), strict=False)])


@pytest.mark.parametrize("kind", Kind)
def test_every_point_where_state_is_stored_behind_the_rounds(kind: Kind) -> None:
    run_all([case for case in every_point("states", "hashmap-behind") if case.faults[-1].kind is kind])


@pytest.mark.slow
@pytest.mark.parametrize("state", BEHIND)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", Kind)
def test_fault_where_state_is_stored_behind_the_rounds(scenario: str, kind: Kind, state: str) -> None:
    """What rocksdb passes is counted with hashmap: it has threads of its own, and this process forks."""
    run_all([replace(case, state=state) for case in cases_of(scenario, kind, state="hashmap-behind")])


@pytest.mark.slow
@pytest.mark.parametrize("state", OTHERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_fault_with_every_state(scenario: str, state: str) -> None:
    counted = state.replace("rocksdb", "hashmap")  # as above; full checkpoints pass some points less often
    run_all([replace(case, state=state) for case in every_point(scenario, counted)])


@pytest.mark.parametrize("state", STATES)
def test_without_faults_and_rescaled(state: str) -> None:
    run_all([Case("states", 3, parallelism=(1, 3), state=state)])


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_full_checkpoints_share_no_file_and_incremental_ones_do(root: str, backend: str) -> None:
    assert not shared_between_retained(f"{root}/full", f"{backend}-full")
    assert shared_between_retained(f"{root}/incremental", f"{backend}-incremental")


def shared_between_retained(root: str, state: str) -> set[str]:
    """Files that two retained checkpoints of a run refer to."""
    Outside.forget_all()
    with seeded_tokens(3):
        simulation = Simulation(SCENARIOS["states"], root, 3, settings=STATES[state])
        assert simulation.live([Fault(0, "*", 700, Kind.CRASH)]).crashed
    files = Files(simulation.place.job)
    kept = [locate_own(files, point).metadata for point in read_lineage(files).retained]
    assert len(kept) == 2
    older, newer = ({file.path for file in metadata.state_files()} for metadata in kept)
    assert older and newer
    return older & newer
