"""Unaligned checkpoints (C5 to C7): a slow operator and a backlog, in simulated time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.slow_jobs import UNALIGNED, Slow, SlowJob, Time, numbers
from tidegate.base import faults
from tidegate.base.errors import RestoreError
from tidegate.checkpoint.history import HistoryEntry
from tidegate.checkpoint.locate import locate_own, read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata
from tidegate.operators.flow.packing import PLAIN
from tidegate.state import in_flight

IGNORED = "execution.checkpointing.recover-without-channel-state.checkpoint-id"
TIMEOUT = "execution.checkpointing.aligned-checkpoint-timeout"


def behind_a_shuffle(env: Any) -> Any:
    return numbers(env, range(2000)).key_by(lambda v: v % 7).map(Slow())


def behind_a_source(env: Any) -> Any:
    return numbers(env, range(2000), splits=3).map(Slow())


def two_in_a_row(env: Any) -> Any:
    """The second one begins when the time of the first is over."""
    return (
        numbers(env, range(1000))
        .rebalance()
        .map(Slow())
        .rebalance()
        .map(Slow())
        .key_by(lambda v: v % 3)
        .map(lambda v: v)
    )


PROGRAMS = [behind_a_shuffle, behind_a_source, two_in_a_row]


def unaligned_of(job: SlowJob) -> list[HistoryEntry]:
    return [entry for entry in job.history() if entry.in_flight_records]


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_checkpoint_does_not_wait_for_the_backlog(build: Any, tmp_path: Path) -> None:
    aligned, unaligned = SlowJob(tmp_path / "aligned", build), SlowJob(tmp_path / "unaligned", build)
    aligned.run()
    unaligned.run(**UNALIGNED)
    assert unaligned.written() == aligned.written()
    assert max(entry.duration_ms for entry in aligned.history()) >= 9_900, "as long as the backlog"
    assert max(entry.duration_ms for entry in unaligned.history()) <= 2_000
    assert not unaligned_of(aligned)
    assert len(unaligned_of(unaligned)) >= 5
    first = unaligned_of(unaligned)[0]
    assert first.in_flight_bytes >= first.in_flight_records > 500


@pytest.mark.parametrize("timeout", [0, 700, 3_000])
def test_it_turns_unaligned_once_the_time_is_over(timeout: int, tmp_path: Path) -> None:
    """Checkpoints are due every second; each is there within the timeout and two seconds of it."""
    job = SlowJob(tmp_path, behind_a_shuffle)
    settings: dict[str, Any] = {TIMEOUT: timeout}
    job.run(**UNALIGNED, **settings)
    ends = [entry.end_ms for entry in job.history()]
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    assert max(gaps) <= 1_000 + timeout + 2_000
    assert max(gaps[1:-1]) >= timeout
    assert job.written() == list(range(2000))


def test_a_quick_job_has_nothing_in_flight(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, lambda env: numbers(env, range(2000), limit=50).key_by(lambda v: v % 7).map(lambda v: v))
    job.run(**UNALIGNED)
    assert job.written() == list(range(2000))
    assert not unaligned_of(job)


def test_the_planner_admits_nothing_while_there_is_more_than_a_round_to_work_off(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, lambda env: numbers(env, range(900), limit=300).rebalance().map(Slow()))
    job.run(**UNALIGNED)
    read = [round.records_in for round in job.rounds]
    assert read[0] == 300
    assert read[1:3] == [0, 0], "three seconds of work wait, and a round is one"
    assert sum(read) == 900
    assert job.written() == list(range(900))


def test_records_are_processed_in_their_order_and_once(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, lambda env: numbers(env, range(1000)).key_by(lambda v: 1).map(Slow()))
    job.run(**UNALIGNED)
    assert Time.seen == list(range(1000))


def test_the_last_checkpoint_has_nothing_in_flight_and_the_job_ends_after_it(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, behind_a_shuffle)
    job.run(**UNALIGNED)
    assert unaligned_of(job)
    assert job.history()[-1].in_flight_records == 0
    assert job.files.list("shared") == []


def test_without_checkpoints_or_in_batch_mode_nothing_is_cut(tmp_path: Path) -> None:
    off: list[dict[str, Any]] = [{"execution.checkpointing.interval": None}, {"execution.runtime-mode": "BATCH"}]
    for number, settings in enumerate(off):
        job = SlowJob(tmp_path / str(number), behind_a_shuffle)
        job.run(**(UNALIGNED | settings))
        assert job.written() == list(range(2000))
        assert len(job.rounds) <= 2


# -- failures and restores ---------------------------------------------------------------------------------------------------


class _Crash(BaseException):
    """The driver ends here."""


def crash_behind(job: SlowJob, checkpoints: int, **settings: Any) -> CheckpointMetadata:
    """Runs it until so many checkpoints are complete; gives the last one, which has records in flight."""
    passed = 0

    def hook(name: str, where: dict[str, Any]) -> None:
        nonlocal passed
        passed += name == "C7.subsumed"
        if passed == checkpoints:
            raise _Crash

    faults.install(hook)
    with pytest.raises(_Crash):
        job.run(**UNALIGNED, **settings)
    faults.install(None)
    latest = read_lineage(job.files).latest
    assert latest is not None
    metadata = locate_own(job.files, latest).metadata
    assert metadata.is_unaligned
    return metadata


def waiting_in(job: SlowJob, metadata: CheckpointMetadata) -> list[Any]:
    """The records in flight, read from storage."""
    found: list[Any] = []
    for log in (log for o in metadata.operators for part in o.in_flight() for log in part.logs):
        first, taken = log.first, log.taken
        for file in log.files:
            for row in in_flight.read(job.files, file)[first:]:
                if log.split in (None, row.channel):
                    found += PLAIN.unpack_list(row.values)[taken:]
                taken = 0
            first = 0
    assert len(found) == metadata.in_flight_records
    return found


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_in_flight_are_processed_first_after_a_restore(build: Any, parallelism: int, tmp_path: Path) -> None:
    job = SlowJob(tmp_path, build)
    waiting = waiting_in(job, crash_behind(job, 3))
    job.run(parallelism, **UNALIGNED)
    assert job.written() == list(range(len(job.written())))
    assert len(job.written()) == (1000 if build is two_in_a_row else 2000)
    if build is behind_a_shuffle and parallelism == 1:
        assert Time.seen[: len(waiting)] == waiting


def test_they_are_processed_also_if_checkpoints_are_aligned_now(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, behind_a_shuffle)
    crash_behind(job, 3)
    job.run(2)
    assert job.written() == list(range(2000))


@pytest.mark.parametrize("build", [behind_a_shuffle, behind_a_source])
def test_exactly_the_records_in_flight_are_dropped_if_the_user_says_so(build: Any, tmp_path: Path) -> None:
    job = SlowJob(tmp_path, build)
    metadata = crash_behind(job, 3)
    dropped = waiting_in(job, metadata)
    job.run(**UNALIGNED, **{IGNORED: metadata.checkpoint_id})
    assert len(dropped) > 1000
    assert job.written() == sorted(set(range(2000)) - set(dropped))


def test_those_of_another_checkpoint_are_not_dropped(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, behind_a_shuffle)
    metadata = crash_behind(job, 3)
    job.run(**UNALIGNED, **{IGNORED: metadata.checkpoint_id - 1})
    assert job.written() == list(range(2000))


def test_a_program_without_the_input_they_came_by_is_refused(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, lambda env: numbers(env, range(2000)).rebalance().map(Slow()).uid("slow"))
    metadata = crash_behind(job, 3)
    changed = SlowJob(
        tmp_path,
        lambda env: numbers(env, range(2000)).map(lambda v: v).set_parallelism(2).rebalance().map(Slow()).uid("slow"),
    )
    with pytest.raises(
        RestoreError, match="Records in flight cannot be restored: the program has other inputs"
    ) as caught:
        changed.run(**UNALIGNED)
    assert f"{metadata.in_flight_records:,} records in flight, some from an input that does not exist now" in str(
        caught.value
    )


def test_batch_mode_has_nothing_to_put_them_into(tmp_path: Path) -> None:
    job = SlowJob(tmp_path, behind_a_shuffle)
    path = f"{job.files.root}/chk-{crash_behind(job, 3).checkpoint_id}"
    other = SlowJob(tmp_path / "other", behind_a_shuffle)
    with pytest.raises(RestoreError, match="cannot restore records in flight"):
        other.run(**{"execution.runtime-mode": "BATCH", "execution.state-recovery.path": path})


def test_another_job_continues_from_them_and_copies_what_is_left(tmp_path: Path) -> None:
    """Its own checkpoints refer to no file of the other's directory."""
    job = SlowJob(tmp_path, behind_a_shuffle)
    path = f"{job.files.root}/chk-{crash_behind(job, 3).checkpoint_id}"
    before = sorted(job.files.list("shared"))
    other = SlowJob(tmp_path, behind_a_shuffle, "other")
    other.run(**UNALIGNED, **{"execution.state-recovery.path": path})
    assert other.written() == list(range(2000))
    assert len(unaligned_of(other)) > 3
    assert sorted(job.files.list("shared")) == before


# -- what stays aligned ------------------------------------------------------------------------------------------------------


def custom(env: Any) -> Any:
    return numbers(env, range(600)).partition_custom(lambda key, n: key % n, lambda v: v).map(Slow())


def test_what_a_partitioner_spreads_is_in_flight_only_if_forced(tmp_path: Path) -> None:
    aligned = SlowJob(tmp_path / "aligned", custom)
    aligned.run(2, **UNALIGNED)
    assert not unaligned_of(aligned)
    forced = SlowJob(tmp_path / "forced", custom)
    crash_behind(forced, 3, **{"execution.checkpointing.unaligned.forced": True, "parallelism.default": 2})
    with pytest.raises(RestoreError, match="forward, rescale or custom connections cannot follow"):
        forced.run(3, **UNALIGNED)
    forced.run(2, **UNALIGNED)
    assert forced.written() == aligned.written() == list(range(600))


def forward(env: Any) -> Any:
    return numbers(env, range(600), limit=150).key_by(lambda v: v % 10).map(lambda v: v).map(Slow()).start_new_chain()


@pytest.mark.parametrize("parallelism", [2, 3])
def test_records_of_a_key_stay_in_order_over_a_rescale_after_a_forward_connection(
    parallelism: int, tmp_path: Path
) -> None:
    """New ones would come by another subtask than those in flight, so none are."""
    job = SlowJob(tmp_path, forward)
    job.run(parallelism, **UNALIGNED)
    assert not unaligned_of(job)
    forced = SlowJob(tmp_path / "forced", forward)
    crash_behind(forced, 2, **{"execution.checkpointing.unaligned.forced": True})
    with pytest.raises(RestoreError, match="forward, rescale or custom connections cannot follow"):
        forced.run(parallelism, **UNALIGNED)
    forced.run(**UNALIGNED)
    assert forced.written() == job.written() == list(range(600))
