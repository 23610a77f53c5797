"""A job in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.base.plain_text import duration
from tidegate.checkpoint.savepoint import Copied
from tidegate.cli.job_lines import copying_line, end_line, live_line, start_line
from tidegate.common.job_status import JobStatus
from tidegate.runtime.guarantee import JobGuarantee, Promise
from tidegate.runtime.statistics import RoundStatistics
from tidegate.runtime.view import AttemptView, CheckpointView, ExceptionView, JobView, Outcome, Totals

STARTED = 1_000_000


def view_of(**fields: object) -> JobView:
    view = JobView(
        "upper",
        "upper case",
        JobStatus.RUNNING,
        STARTED,
        guarantee=JobGuarantee(Promise.EXACTLY_ONCE),
        directory="/ck/upper",
    )
    return replace(view, checkpoint_interval_ms=1000, **fields)  # type: ignore[arg-type]


def round_of(started_ms: int, records: int) -> RoundStatistics:
    return RoundStatistics(1, None, started_ms, 0.5, records, records, 0.0)


def completed(number: int, at_ms: int) -> CheckpointView:
    return CheckpointView(number, "checkpoint", 1, Outcome.COMPLETED, {1: at_ms - 5, 7: at_ms})


def test_the_start_line_of_a_new_job() -> None:
    assert start_line(view_of(attempts=(AttemptView(1, STARTED, 0),))) == (
        "job 'upper case' (upper) starts from the beginning; exactly-once; a checkpoint every 1 s in /ck/upper"
    )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/ck/upper/chk-17", "checkpoint 17"),
        ("/ck/other/chk-3", "/ck/other/chk-3"),
        ("s3://b/x/chk-3", "s3://b/x/chk-3"),
    ],
)
def test_what_was_restored_is_named(address: str, shown: str) -> None:
    line = start_line(view_of(attempts=(AttemptView(1, STARTED, 40, address),)))
    assert line.startswith(f"job 'upper case' (upper) continues from {shown};")


def test_checkpoints_in_a_temporary_directory_are_said_to_be_of_no_later_use() -> None:
    assert start_line(view_of(is_temporary=True)).endswith(
        "/ck/upper (for this run only: set execution.checkpointing.dir)"
    )


def test_a_job_without_checkpoints_names_no_directory() -> None:
    none = JobGuarantee(Promise.NONE, "without checkpoints a failure ends the job")
    line = start_line(replace(view_of(), checkpoint_interval_ms=None, guarantee=none))
    assert line.endswith("starts from the beginning; no guarantee (without checkpoints a failure ends the job)")


def test_before_the_first_round_it_is_starting() -> None:
    line = live_line(view_of(status=JobStatus.CREATED), STARTED + 3_200)
    assert line == "STARTING 3 s · upper case · more in /ck/upper/history.json"


def test_the_live_line_has_state_rounds_rate_checkpoint_and_where_to_look() -> None:
    now = STARTED + 125_000
    view = view_of(
        totals=Totals(12, 12_000, 3),
        rounds=(round_of(now - 60_000, 5_000), round_of(now - 2_000, 3_000), round_of(now - 1_000, 1_000)),
        checkpoints=(completed(6, now - 9_000), completed(7, now - 4_900)),
    )
    assert live_line(view, now) == (
        "RUNNING 2 min 5 s · 12 rounds, 12,000 records, 2,000/s · checkpoint 7, 4 s ago · upper case · "
        "more in /ck/upper/history.json"
    )


def test_how_far_the_copying_of_a_savepoint_is() -> None:
    begun = CheckpointView(9, "savepoint", 1, Outcome.IN_PROGRESS, {1: STARTED}, copied=Copied(3, 12, 1024, 4096))
    line = "savepoint 9: 3 of 12 files copied, 1,024 of 4,096 bytes"
    assert line in live_line(view_of(checkpoints=(completed(7, STARTED), begun)), STARTED)
    assert copying_line([begun]) == line
    assert copying_line([replace(begun, status=Outcome.COMPLETED)]) is None


def test_a_failed_checkpoint_and_failures_are_seen() -> None:
    failed = CheckpointView(8, "checkpoint", 1, Outcome.FAILED, {1: STARTED}, message="disk full\nmore")
    met = ExceptionView(STARTED, 1, "UserCodeError", "A user function raised an exception\n  where: x")
    view = view_of(totals=Totals(1, 1), checkpoints=(completed(7, STARTED), failed), exceptions=(met,))
    line = live_line(replace(view, status=JobStatus.RESTARTING), STARTED)
    assert line.startswith("RESTARTING 0 s · 1 round, 1 record, 0/s · checkpoint 8 FAILED: disk full · ")
    assert "1 failure, the last: A user function raised an exception ·" in line


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (JobStatus.FINISHED, "has finished"),
        (JobStatus.FAILED, "has failed"),
        (JobStatus.CANCELED, "was cancelled"),
        (JobStatus.SUSPENDED, "was suspended and can continue"),
    ],
)
def test_the_end_line(status: JobStatus, words: str) -> None:
    view = view_of(status=status, ended_ms=STARTED + 4_250, totals=Totals(1, 1_200, 2))
    assert end_line(view) == f"job 'upper case' {words}: 1,200 records in 1 round, 2 checkpoints, 4.2 s"


def test_the_rate_counts_pauses_and_the_last_round_is_not_forgotten() -> None:
    now = STARTED + 60_000
    assert view_of(rounds=(round_of(now - 4_000, 400),)).records_per_second(now) == 100
    assert view_of(rounds=(round_of(now - 40_000, 400),)).records_per_second(now) == 10
    assert view_of().records_per_second(now) == 0


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1000, "1 s"),
        (1500, "1.5 s"),
        (60_000, "1 min"),
        (61_500, "1 min 1 s"),
        (7_260_000, "2 h 1 min"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text
