"""Functions declare their states as these are stored: found out before anything is touched, all misfits in one report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.misfit_jobs import (
    OPENED,
    cancelled_in_rehearsal,
    changed,
    files_below,
    original,
    resume,
    stopped_with_savepoint,
    torn,
)
from tidegate.base.errors import JobFailedError, RestoreError
from tidegate.checkpoint.assign import CURE_OF_KEYS, CURE_OF_MAXIMUM, CURE_OF_REMOVED, CURE_OF_STATES
from tidegate.checkpoint.lease_records import AttemptStatus
from tidegate.state_reader import SavepointReader


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stopped_with_savepoint(tmp_path_factory.mktemp("original"))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_misfits_of_all_operators_are_reported_at_once(savepoint: str, tmp_path: Path, parallelism: int) -> None:
    before = files_below(savepoint)
    with pytest.raises(RestoreError) as refused:
        resume(changed(), savepoint, tmp_path, parallelism)
    found = re.findall(r"- (.*)", str(refused.value.found))
    assert found == [
        "operator 'HIGHEST' (uid highest): state 'highest' is stored as list of LONG and declared as list of STRING",
        "operator 'HIGHEST' (uid highest): state 'seen' is stored as union and declared as even-split",
        "operator 'totals' (uid totals): state '_reduce' is stored as value of TUPLE<LONG, LONG> "
        "and declared as value of TUPLE<LONG, DOUBLE>",
        "operator 'KEYED PROCESS' (uid states): state 'count' is stored as value of LONG and declared as value of STRING",
        "operator 'KEYED PROCESS' (uid states): state 'latest' is stored as list of LONG "
        "and declared as map of LONG to LONG",
        "operator 'KEYED PROCESS' (uid states): state 'short' is stored as value of LONG "
        "and declared as value of LONG with time to live",
        "operator 'rules' (uid rules): state 'rules' is stored as map of STRING to LONG "
        "and declared as map of STRING to STRING",
    ]
    assert refused.value.where == savepoint
    assert refused.value.cure == CURE_OF_STATES
    assert files_below(savepoint) == before


_READ = [
    "operator 'totals' (uid totals) is stored with keys of type LONG and now has STRING",
    "operator 'KEYED PROCESS' (uid states) is stored with maximum parallelism 16 and now has 32",
    "operator 'few' (uid few): The collection of a source is not the one it started with, so the source cannot continue: "
    "2 values now, 3 in the checkpoint",
    "operator 'rules' (uid rules; states: rules) is not in the program",
]
_CURES = [
    CURE_OF_KEYS,
    CURE_OF_MAXIMUM,
    "restore with the same values, or give the source another uid to start it anew",
    CURE_OF_REMOVED,
]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_reading_shows_and_what_functions_declare_is_one_report(
    savepoint: str, tmp_path: Path, parallelism: int
) -> None:
    with pytest.raises(RestoreError) as refused:
        resume(changed(torn=True), savepoint, tmp_path, parallelism)
    found = re.findall(r"- (.*)", str(refused.value.found))
    assert [line for line in found if line in _READ] == _READ
    assert [re.sub(r" is .*", "", line) for line in found if line not in _READ] == [
        "operator 'HIGHEST' (uid highest): state 'highest'",
        "operator 'HIGHEST' (uid highest): state 'seen'",
        "operator 'totals' (uid totals): state '_reduce'",
        "operator 'KEYED PROCESS' (uid states): state 'count'",
        "operator 'KEYED PROCESS' (uid states): state 'latest'",
        "operator 'KEYED PROCESS' (uid states): state 'short'",
    ]
    assert [line.split(" (")[0] for line in found] == [
        *["operator 'HIGHEST'"] * 2,
        *["operator 'totals'"] * 2,
        *["operator 'KEYED PROCESS'"] * 4,
        "operator 'few'",
        "operator 'rules'",
    ], "in the order of the program"
    assert re.findall(r"- (.*)", str(refused.value.cure)) == [CURE_OF_STATES, *_CURES]
    assert {path for path in files_below(tmp_path / "checkpoints") if "/lease/" not in path} == set()


def test_what_reading_shows_is_reported_where_the_states_fit(savepoint: str, tmp_path: Path) -> None:
    with pytest.raises(RestoreError) as refused:
        resume(torn(), savepoint, tmp_path)
    assert re.findall(r"- (.*)", str(refused.value.found)) == _READ
    assert re.findall(r"- (.*)", str(refused.value.cure)) == _CURES


def test_a_function_that_fails_to_open_hides_no_misfit(savepoint: str, tmp_path: Path) -> None:
    with pytest.raises(RestoreError) as refused:
        resume(changed(torn=True, fails=99), savepoint, tmp_path)
    found = str(refused.value.found)
    assert all(line in found for line in _READ)
    assert "state '_reduce' is stored as" in found
    assert "state 'count'" not in found, "its function has not come to declare it"


def test_nothing_was_touched_so_the_job_can_start_from_another_snapshot(savepoint: str, tmp_path: Path) -> None:
    """A decision that was recorded would bind the job's directory to the first path."""
    with pytest.raises(RestoreError):
        resume(changed(), savepoint, tmp_path)
    left = {path for path in files_below(tmp_path / "checkpoints") if "/lease/" not in path}
    assert left == set(), "a lease was claimed and given back, and that is all"
    assert files_below(tmp_path / "output") == {}
    other = stopped_with_savepoint(tmp_path / "other")
    rows = resume(original(), other, tmp_path)
    assert rows == resume(original(), other, tmp_path / "elsewhere")


def test_a_program_that_fits_opens_its_functions_once(savepoint: str, tmp_path: Path) -> None:
    OPENED.clear()
    resume(original(), savepoint, tmp_path, workers=1)
    assert OPENED == {"states": 1}


def test_no_state_no_rehearsal(tmp_path: Path) -> None:
    """Only functions of operators with something stored take part."""
    savepoint = stopped_with_savepoint(tmp_path / "first")
    OPENED.clear()
    with pytest.raises(RestoreError):
        resume(changed(also=True), savepoint, tmp_path)
    assert "new" not in OPENED


def test_what_user_code_raises_as_it_opens_is_a_failure_of_the_job_as_in_any_round(
    savepoint: str, tmp_path: Path
) -> None:
    with pytest.raises(JobFailedError, match=r"(?s)open\(\) of operator 'KEYED PROCESS'.*no database"):
        resume(original(fails=99), savepoint, tmp_path)


def test_a_restart_before_anything_was_taken_over_starts_from_the_path_again(savepoint: str, tmp_path: Path) -> None:
    """Else it would begin with nothing."""
    expected = resume(original(), savepoint, tmp_path / "straight")
    strategy: dict[str, Any] = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "1 ms",
        "restart-strategy.fixed-delay.attempts": 9,
    }
    assert resume(original(fails=2), savepoint, tmp_path / "failing", **strategy) == expected


def test_cancelled_meanwhile_it_is_over_for_good(savepoint: str, tmp_path: Path) -> None:
    lineage = cancelled_in_rehearsal(savepoint, tmp_path)
    assert lineage.status is AttemptStatus.CANCELLED


def test_a_state_that_is_declared_only_with_a_record_fails_its_round(savepoint: str, tmp_path: Path) -> None:
    with pytest.raises(
        JobFailedError, match="state 'count' is stored as value of LONG and declared as value of STRING"
    ):
        resume(changed(late=True), savepoint, tmp_path)


def test_the_snapshot_of_the_test_has_all_kinds(savepoint: str) -> None:
    found = SavepointReader(savepoint)
    assert {o.uid for o in found.operators} >= {"highest", "totals", "states", "rules"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[Any]:
    yield
    OPENED.clear()
