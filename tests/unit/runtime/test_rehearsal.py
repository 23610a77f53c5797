"""Functions declare their states as these are stored: found out before anything is touched, all misfits in one report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from misfit_jobs import OPENED, changed, files_below, original, resume, stopped_with_savepoint

from tidegate.common.errors import JobFailedError, RestoreError
from tidegate.state_reader import SavepointReader


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stopped_with_savepoint(tmp_path_factory.mktemp("original"))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_all_misfits_of_all_operators_are_told_at_once(savepoint: str, tmp_path: Path, parallelism: int) -> None:
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
    assert refused.value.cure == "declare it as it was, or give the changed state another name, which then begins empty"
    assert files_below(savepoint) == before


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
