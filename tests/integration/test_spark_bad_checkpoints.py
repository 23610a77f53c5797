"""Checkpoints that cannot be restored: the error names file, finding and cure, and nothing is lost or changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import Count, check_message, checkpoints, committed_lines, file_sink, files_below
from tests.sources import ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import (
    CorruptFileError,
    JobCancelledError,
    JobFailedError,
    LeaseError,
    RestoreError,
    TidegateError,
)
from tidegate.checkpoint.envelope import seal
from tidegate.common import JobStatus, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

NONE = WatermarkStrategy.no_watermarks()
RETAIN = {
    "execution.checkpointing.interval": "30 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


@pytest.fixture
def stopped(make_env: Any, tmp_path: Path) -> Path:
    """The directory of a job that was cancelled with a checkpoint."""
    out = tmp_path / "out"
    env = make_env({**RETAIN, "tidegate.job-id": "stopped"})
    job = counting(env, out).execute_async()
    eventually(lambda: len(committed_lines(out)) == 20)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.get_job_execution_result().result()
    return tmp_path / "checkpoints" / "stopped"


def counting(env: StreamExecutionEnvironment, out: Path, *, ends: bool = False, function: Any = None) -> Any:
    source = env.from_source(ScriptedSource(list(range(20)), ends=ends), NONE, "numbers").uid("source")
    counted = source.key_by(lambda v: v).process(function or Count()).uid("count").name("Counter")
    counted.sink_to(file_sink(out)).uid("sink")
    return env


def refused_restore(make_env: Any, stopped: Path, out: Path, **options: Any) -> TidegateError:
    """The error of a restore, after which everything but the leases is as it was."""
    watched = [stopped, out]
    before = [files_below(directory) for directory in watched]
    with pytest.raises(TidegateError) as refused:
        counting(make_env({**RETAIN, "tidegate.job-id": "stopped"}), out, ends=True, **options).execute()
    for directory, files in zip(watched, before, strict=True):
        now = files_below(directory)
        assert {n: c for n, c in now.items() if "lease" not in n} == {
            n: c for n, c in files.items() if "lease" not in n
        }
    return refused.value


def metadata_file(stopped: Path) -> Path:
    (number,) = checkpoints(stopped)
    return stopped / f"chk-{number}" / "_metadata"


def check_still_restores(make_env: Any, out: Path) -> None:
    counting(make_env({**RETAIN, "tidegate.job-id": "stopped"}), out, ends=True).execute()
    assert sorted(committed_lines(out)) == sorted(str((n, 1)) for n in range(20))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "newer", "missing"])
def test_damaged_metadata(make_env: Any, tmp_path: Path, stopped: Path, damage: str) -> None:
    path = metadata_file(stopped)
    good = path.read_bytes()
    damaged = {
        "truncated": good[: len(good) // 2],
        "flipped": good[:-40] + bytes([good[-40] ^ 1]) + good[-39:],
        "empty": b"",
        "newer": seal("tidegate-metadata", 99, {}),
        "missing": None,
    }[damage]
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    error = refused_restore(make_env, stopped, tmp_path / "out")
    assert isinstance(error, CorruptFileError | RestoreError)
    assert str(path) in str(error) or str(path.parent) in str(error)
    assert error.found and error.cure
    if damage == "newer":
        assert "version 99" in str(error)
    path.write_bytes(good)
    check_still_restores(make_env, tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_damaged_state_file(make_env: Any, tmp_path: Path, stopped: Path, damage: str) -> None:
    path = max((stopped / "shared").iterdir(), key=lambda p: p.stat().st_size)
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(good[:-7])
    else:
        path.write_bytes(good[:-7] + bytes([good[-7] ^ 1]) + good[-6:])
    if damage == "flipped":  # the size is right: found when the file is read, and the hash is compared
        with pytest.raises(JobFailedError) as failed:
            counting(make_env({**RETAIN, "tidegate.job-id": "stopped"}), tmp_path / "out", ends=True).execute()
        error = failed.value.__cause__
    else:
        error = refused_restore(make_env, stopped, tmp_path / "out")
    assert isinstance(error, CorruptFileError)
    found = {"missing": f"{path.name}: no such file", "short": f"{path.name}: {len(good) - 7} bytes", "flipped": "xxh3"}
    where = str(path if damage == "flipped" else metadata_file(stopped).parent)
    check_message(error, rule="A ", where=where, found=found[damage], cure="restore the file from a copy")
    assert f"expected {len(good)}" in str(error.found)
    path.write_bytes(good)
    check_still_restores(make_env, tmp_path / "out")


def test_a_path_that_is_no_checkpoint(make_env: Any, tmp_path: Path) -> None:
    env = make_env({**RETAIN, "execution.state-recovery.path": str(tmp_path / "nowhere")})
    counting(env, tmp_path / "out")
    with pytest.raises(RestoreError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="The path to restore from must be a checkpoint or a savepoint.",
        where=str(tmp_path / "nowhere"),
        found="no such file or directory",
        cure="give a savepoint, a chk-<n> directory",
    )


def test_a_directory_of_another_job(make_env: Any, tmp_path: Path, stopped: Path) -> None:
    shutil.copytree(stopped, stopped.parent / "mine")
    env = make_env({**RETAIN, "tidegate.job-id": "mine"})
    counting(env, tmp_path / "out", ends=True)
    with pytest.raises(LeaseError) as refused:
        env.execute()
    check_message(
        refused.value,
        rule="The checkpoint directory belongs to another job.",
        where=str(stopped.parent / "mine"),
        found="it belongs to job stopped, this is job mine",
        cure="set another execution.checkpointing.dir",
    )
    assert files_below(stopped) == files_below(stopped.parent / "mine")


class CountsInTexts(Count):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))


def test_a_state_whose_type_has_changed(make_env: Any, tmp_path: Path, stopped: Path) -> None:
    before = committed_lines(tmp_path / "out")
    env = make_env({**RETAIN, "tidegate.job-id": "stopped"})
    counting(env, tmp_path / "out", ends=True, function=CountsInTexts())
    with pytest.raises(TidegateError) as refused:
        env.execute()
    assert "'count'" in str(refused.value)
    assert re.search(r"(?i)long", str(refused.value))
    assert re.search(r"(?i)string", str(refused.value))
    assert committed_lines(tmp_path / "out") == before
    check_still_restores(make_env, tmp_path / "out")


def test_state_of_an_operator_that_is_gone(make_env: Any, tmp_path: Path, stopped: Path) -> None:
    def program(keys: dict[str, Any]) -> StreamExecutionEnvironment:
        env: StreamExecutionEnvironment = make_env({**RETAIN, "tidegate.job-id": "stopped", **keys})
        source = env.from_source(ScriptedSource(list(range(25)), ends=True), NONE, "numbers").uid("source")
        source.sink_to(file_sink(tmp_path / "out")).uid("sink")
        return env

    with pytest.raises(RestoreError) as refused:
        program({}).execute()
    check_message(
        refused.value,
        rule="The program does not fit the state that it restores.",
        where=str(stopped),
        found="operator 'Counter' (uid count; states: count) is not in the program",
        cure="execution.state-recovery.ignore-unclaimed-state: true",
    )
    program({"execution.state-recovery.ignore-unclaimed-state": True}).execute()
    assert sorted(committed_lines(tmp_path / "out"))[-5:] == ["20", "21", "22", "23", "24"]


def test_a_second_driver_on_the_same_job(make_env: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keys = {**RETAIN, "tidegate.job-id": "taken"}
    first = counting(make_env(keys), out).execute_async()
    eventually(lambda: checkpoints(tmp_path / "checkpoints" / "taken"))
    with pytest.raises(LeaseError) as refused:
        counting(make_env(keys), out).execute_async()
    check_message(
        refused.value,
        rule="A job's directory is used by one driver at a time.",
        where=str(tmp_path / "checkpoints" / "taken"),
        found="and is alive",
        cure="stop that driver",
    )
    eventually(lambda: len(committed_lines(out)) == 20)
    assert first.get_job_status().result() is JobStatus.RUNNING
    first.cancel()
