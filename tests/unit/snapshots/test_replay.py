"""A round that failed in user code runs again, here, and stops where it failed: record, key and state at hand, nothing touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.snapshots.replay_jobs import BAD, build, environment
from tidegate.base.errors import CorruptFileError, JobFailedError, NewerFormatError, SnapshotError
from tidegate.base.files import Files
from tidegate.cli.main import app
from tidegate.runtime.failed_round import FILES, PATH, FailedRound
from tidegate.runtime.replay import Failure, LocalRounds, replay
from tidegate.state_reader import SavepointReader


def fail(tmp_path: Path, kind: str = "record", parallelism: int = 2, **more: Any) -> Path:
    """The directory of a job that has failed."""
    env = environment(tmp_path / "jobs", parallelism, **more)
    build(env, kind, tmp_path / "touched")
    with pytest.raises(JobFailedError):
        env.execute("totals of numbers")
    [job] = (tmp_path / "jobs").iterdir()
    return job


def again(job: Path, tmp_path: Path) -> Failure:
    found: list[Failure] = []
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    touched = (tmp_path / "touched").read_text()
    assert replay(FailedRound.read(Files(str(job))), str(tmp_path / "work"), found.append)
    assert {path: path.stat().st_mtime_ns for path in job.rglob("*")} == before, "nothing of the job's has changed"
    assert (tmp_path / "touched").read_text() == touched, "no sink was touched"
    return found[0]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_at_a_record(tmp_path: Path, parallelism: int) -> None:
    found = again(fail(tmp_path, parallelism=parallelism), tmp_path)
    before = [x for x in range(BAD) if x % 7 == BAD % 7]
    assert (found.operator, found.record, found.key) == ("totals", BAD, BAD % 7)
    assert found.state == {"total": sum(before), "seen": {}, "last": before[-1:]}
    assert found.line is not None and found.line.endswith("in process_element")
    assert str(found.error) == f"cannot take {BAD}"


def test_at_a_timer(tmp_path: Path) -> None:
    found = again(fail(tmp_path, "timer"), tmp_path)
    assert not found.has_record and found.key == BAD % 7
    assert found.line is not None and found.line.endswith("in on_timer")
    assert found.state["total"] >= sum(x for x in range(BAD + 1) if x % 7 == BAD % 7)


def test_at_a_window(tmp_path: Path) -> None:
    found = again(fail(tmp_path, "window"), tmp_path)
    assert found.key == BAD % 7 and type(found.error) is IndexError


def test_functions_that_would_be_inlined_have_a_frame(tmp_path: Path) -> None:
    env = environment(tmp_path / "jobs", 1)
    from tests.unit.snapshots.replay_jobs import Touched, numbers

    numbers(env).map(lambda x: 10 // (x - BAD)).name("divided").add_sink(Touched(str(tmp_path / "touched")))
    with pytest.raises(JobFailedError):
        env.execute("divided")
    [job] = (tmp_path / "jobs").iterdir()
    found = again(job, tmp_path)
    assert (found.operator, found.record) == ("divided", BAD) and found.line is not None
    assert found.line.startswith(__file__) and found.line.endswith("in <lambda>")
    tb = found.error.__traceback__
    frames = []
    while tb is not None:
        frames.append(tb.tb_frame)
        tb = tb.tb_next
    assert frames[-1].f_locals["x"] == BAD


def test_only_the_latest_failure_is_kept_and_a_job_that_finishes_keeps_none(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "2",
        "restart-strategy.fixed-delay.delay": "1 ms",
    }
    job = fail(tmp_path, **more)
    assert again(job, tmp_path).record == BAD
    env = environment(tmp_path / "jobs", 2, **{"tidegate.job-id": job.name})
    build(env, "record", tmp_path / "touched", bad=-1)
    env.execute("totals of numbers")
    assert not (job / PATH).exists() and not (job / FILES).exists()


def test_what_the_next_attempt_sweeps_is_not_needed(tmp_path: Path) -> None:
    job = fail(tmp_path)
    kept = SavepointReader(str(job)).metadata.paths()
    swept = [path for path in (job / "shared").iterdir() if f"shared/{path.name}" not in kept]
    for path in swept:
        path.unlink()
    assert FailedRound.read(Files(str(job))).copied <= {f"shared/{path.name}" for path in swept}
    assert again(job, tmp_path).record == BAD


def test_a_directory_that_was_copied(tmp_path: Path) -> None:
    job = fail(tmp_path)
    assert again(job.rename(tmp_path / "elsewhere"), tmp_path).record == BAD


def test_files_that_are_gone_are_named(tmp_path: Path) -> None:
    job = fail(tmp_path)
    gone = sorted([*(job / "shared").iterdir(), *(job / FILES).glob("*")])
    for file in gone:
        file.unlink()
    with pytest.raises(SnapshotError, match="missing: ") as refused:
        again(job, tmp_path)
    assert any(str(file) in (refused.value.found or "") for file in gone)


def test_a_directory_without_a_failed_round(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no failed-round in it"):
        FailedRound.read(Files(str(tmp_path)))
    (tmp_path / PATH).write_bytes(b"something else")
    with pytest.raises(CorruptFileError):
        FailedRound.read(Files(str(tmp_path)))
    (tmp_path / PATH).write_bytes(b"TGROUND\x63")
    with pytest.raises(NewerFormatError, match="version 99"):
        FailedRound.read(Files(str(tmp_path)))


def test_storage_that_does_not_take_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, files: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(FailedRound, "keep", refuse)
    job = fail(tmp_path)  # with the error of the user's code
    assert not (job / PATH).exists()


PROGRAM = """
from pathlib import Path

from tests.unit.snapshots.replay_jobs import build, environment

env = environment(Path("{tmp_path}") / "other", 2, **{{"execution.target": ""}})
build(env, "record", Path("{tmp_path}") / "touched", bad={bad})
env.execute("again")
"""


# -- the command ---------------------------------------------------------------------------------------------------------


def test_record_prints_and_ends(tmp_path: Path) -> None:
    job = fail(tmp_path)
    result = CliRunner().invoke(app, ["debug", str(job), "--record"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "operator: totals" in lines and f"record: {BAD}" in lines and f"key: {BAD % 7}" in lines
    assert f"error: ValueError: cannot take {BAD}" in lines
    assert any(line.startswith("state 'total': ") for line in lines)
    result = CliRunner().invoke(app, ["debug", str(job), "--json"])
    assert json.loads(result.output)["record"] == BAD


def test_nothing_to_debug_has_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    result = CliRunner().invoke(app, ["debug", str(tmp_path)])
    assert result.exit_code == 15 and "no failed-round in it" in result.output


def test_what_is_behind_a_checkpoint(tmp_path: Path) -> None:
    job = fail(tmp_path)
    program = tmp_path / "job.py"
    program.write_text(PROGRAM.format(tmp_path=tmp_path, bad=BAD))
    touched = (tmp_path / "touched").read_text()
    result = CliRunner().invoke(app, ["debug", str(job), "--program", str(program), "--record"])
    assert result.exit_code == 0, result.output
    assert f"record: {BAD}" in result.output.splitlines()
    program.write_text(program.read_text().replace(f"bad={BAD}", "bad=-1"))
    result = CliRunner().invoke(app, ["debug", str(job), "--program", str(program), "--record", "--rounds", "500"])
    assert "no failure in" in result.output and "all sources have ended" in result.output, result.output
    assert (tmp_path / "touched").read_text() == touched


def test_of_a_job_whose_state_waits_on_the_host(tmp_path: Path) -> None:
    """The replay keeps away from where the driver's state waits, which may be running again."""
    more: dict[str, Any] = {"tidegate.state.upload": "behind", "tidegate.state.local-dir": f"{tmp_path}/local"}
    job = fail(tmp_path, **more)
    failed = FailedRound.read(Files(str(job)))
    spool = failed.spec.settings.spool
    assert spool is not None and spool.startswith(f"{tmp_path}/local/")
    before = sorted(Path(spool).rglob("*"))
    found = again(job, tmp_path)
    assert (found.operator, found.record) == ("totals", BAD)
    assert sorted(Path(spool).rglob("*")) == before
    rounds = LocalRounds(failed.spec, str(tmp_path / "work"), lambda failure: None)
    assert rounds._spec.settings.spool is None
