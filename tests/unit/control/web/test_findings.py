"""Findings: each from figures that have the cause, and none from figures just below its threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tidegate.base.hashing import stable_hash
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, OperatorFigures
from tidegate.checkpoint.metadata import CHECKPOINT
from tidegate.control.jobs import JobDetails
from tidegate.control.registry import DriverLife
from tidegate.control.shown import Finding, Severity
from tidegate.control.web import findings as of
from tidegate.control.web.findings import findings, why
from tidegate.operators.flow.rows import MIN_WATERMARK
from tidegate.runtime.commits import CommitRetry
from tidegate.runtime.figures import SubtaskView
from tidegate.runtime.statistics import RoundStatistics
from tidegate.runtime.view import (
    AttemptView,
    CheckpointView,
    ExceptionView,
    HeavyKey,
    OperatorView,
    Outcome,
    SubtaskFigures,
    Totals,
)

NOW = 1_000_000_000
SOURCE = OperatorView(0, "orders", "KafkaSource 'orders'", "orders", 4, 128, 0, ())
TOTALS = OperatorView(1, "totals", "totals", "totals", 4, 128, 1, (0,))


def subtasks(chain: int, **lists: list[Any]) -> tuple[SubtaskView, ...]:
    count = len(next(iter(lists.values())))
    return tuple(SubtaskView(chain, n, **{name: every[n] for name, every in lists.items()}) for n in range(count))


def job(**changes: Any) -> JobDetails:
    """A job that is well."""
    details = JobDetails(
        job_id="one",
        name="one",
        state="RUNNING",
        started_ms=NOW - 600_000,
        ended_ms=None,
        directory="/checkpoints/one",
        is_temporary=False,
        checkpoint_interval_ms=10_000,
        guarantee="exactly-once",
        paths=(),
        finished_before=False,
        totals=Totals(),
        records_per_second=100.0,
        operators=(SOURCE, TOTALS),
        attempts=(AttemptView(1, NOW - 600_000, 0),),
        rounds=(),
        checkpoints=checkpoints(),
        exceptions=(),
        subtasks=(
            *subtasks(0, busy=[0.1] * 4, watermark=[NOW] * 4, records_in_per_second=[100.0] * 4),
            *subtasks(1, busy=[0.1] * 4, records_in_per_second=[100.0] * 4),
        ),
    )
    return msgspec.structs.replace(details, **changes)


def checkpoint(
    number: int,
    *,
    took: float = 100.0,
    steps: dict[str, float] | None = None,
    incremental: int = 1_000_000,
    operators: dict[str, OperatorFigures] | None = None,
    figures: tuple[SubtaskFigures, ...] = (),
    end_ms: int | None = None,
) -> CheckpointView:
    end = NOW - 1000 if end_ms is None else end_ms
    entry = HistoryEntry(
        checkpoint_id=number,
        token=1,
        kind=CHECKPOINT,
        status=CheckpointStatus.COMPLETED,
        trigger_ms=end - round(took),
        end_ms=end,
        duration_ms=took,
        incremental=incremental,
        steps_ms=steps or {"run": took},
        operators={stable_hash(uid): each for uid, each in (operators or {}).items()},
    )
    passed = {1: end - round(took), 6: end, 7: end, 8: end, 9: end}
    return CheckpointView(number, CHECKPOINT, 1, Outcome.COMPLETED, passed, 5000, None, entry, None, figures)


def failed(number: int, message: str) -> CheckpointView:
    return CheckpointView(number, CHECKPOINT, 1, Outcome.FAILED, {1: NOW - 1000}, message=message)


def checkpoints(**more: Any) -> tuple[CheckpointView, ...]:
    return tuple(checkpoint(number, **more) for number in range(1, 13))


def kinds(details: JobDetails, **more: Any) -> list[str]:
    return [found.kind for found in findings(details, NOW, **more)]


def only(details: JobDetails, **more: Any) -> Finding:
    [found] = findings(details, NOW, **more)
    return found


def test_job_that_is_well_has_no_finding() -> None:
    assert not kinds(job())


# -- work ----------------------------------------------------------------------------------------------------------------


def hot(share: float = 0.72, busy: list[float] | None = None) -> JobDetails:
    keyed = replace(TOTALS, heavy_keys=(HeavyKey("'customer 4711'", share, 2),))
    own = subtasks(1, busy=busy or [0.1, 0.1, 0.91, 0.1], records_in_per_second=[10.0, 10.0, 100.0, 10.0])
    return job(operators=(SOURCE, keyed), subtasks=own)


def test_hot_key_names_key_share_and_subtask() -> None:
    found = only(hot())
    assert (found.kind, found.operator, found.subtask, found.key) == ("hot-key", 1, 2, "'customer 4711'")
    assert found.sentence == (
        "Key 'customer 4711' has 72 % of the records of 'totals': subtask 3/4 is busy 91 % of the time, the others 10 %."
    )


@pytest.mark.parametrize(
    "well",
    [hot(share=0.3), hot(busy=[0.1, 0.1, 0.39, 0.1]), hot(busy=[0.9, 0.9, 0.91, 0.9])],
    ids=["little of the records", "time left", "all are busy"],
)
def test_heavy_key_that_slows_nothing_is_no_finding(well: JobDetails) -> None:
    assert "hot-key" not in kinds(well)


def slow(
    *,
    user: float = 0.9,
    busy: tuple[float, ...] = (0.9, 0.9, 0.9, 0.9),
    rate: float = 100.0,
    share_of_keys: float = 0.0,
) -> JobDetails:
    parts = {"plan": 0.01, "schedule": 0.1, "read": 0.02, "user": user, "pack": 0.03, "snapshot": 0.05}
    keys = (HeavyKey("'a'", share_of_keys, 2),) if share_of_keys else ()
    return job(
        operators=(SOURCE, replace(TOTALS, heavy_keys=keys)),
        rounds=tuple(RoundStatistics(n, None, NOW, 1.0, 100, 100, 0.0, parts=parts) for n in range(5)),
        subtasks=subtasks(1, busy=list(busy), records_in_per_second=[rate] * 4),
    )


def test_slow_function_names_operator_and_cost() -> None:
    found = only(slow())
    assert (found.kind, found.operator, found.subtask, found.step) == ("slow-function", 1, None, "user")
    assert found.sentence == (
        "The function of 'totals' takes 9.0 ms for each record: 4 subtasks are busy 90 % of the time, and user code is 90 % of "
        "the work."
    )


def test_slow_function_of_one_subtask_names_the_subtask() -> None:
    found = only(slow(busy=(0.1, 0.9, 0.1, 0.1)))
    assert found.subtask == 1 and "subtask 2/4 is busy" in found.sentence


@pytest.mark.parametrize(
    "well",
    [slow(user=0.1), slow(busy=(0.5, 0.5, 0.5, 0.5)), slow(rate=100_000.0)],
    ids=["other work", "waits", "many records"],
)
def test_function_that_is_not_slow_is_no_finding(well: JobDetails) -> None:
    assert not kinds(well)


def test_hot_key_explains_the_slow_function_of_its_chain() -> None:
    assert kinds(slow(busy=(0.1, 0.1, 0.9, 0.1), share_of_keys=0.7)) == ["hot-key"]


def skewed(rates: list[float], records: int = 1_000_000) -> JobDetails:
    busy = [0.8 if rate == max(rates) else 0.1 for rate in rates]
    return job(subtasks=subtasks(1, busy=busy, records_in_per_second=rates, records_in=[records] * 4))


def test_skew_names_the_subtask() -> None:
    found = only(skewed([5000.0, 10.0, 10.0, 10.0]))
    assert (found.kind, found.subtask) == ("skew", 0) and "4.0 times" in found.sentence


def test_uneven_but_ordinary_subtasks_are_no_finding() -> None:
    assert not kinds(skewed([200.0, 100.0, 100.0, 100.0]))
    assert not kinds(skewed([5000.0, 10.0, 10.0, 10.0], records=100))


# -- sources -------------------------------------------------------------------------------------------------------------


def marks(*times: int, rates: tuple[float, ...], operator: int | None = None, began: int = 60_000) -> JobDetails:
    head = replace(SOURCE, watermark=min(times) if operator is None else operator)
    return job(
        operators=(head, TOTALS),
        attempts=(AttemptView(1, NOW - began, 0),),
        subtasks=subtasks(0, watermark=list(times), records_in_per_second=list(rates)),
    )


def test_stuck_watermark_names_the_subtask_without_records() -> None:
    found = only(marks(NOW, MIN_WATERMARK, rates=(100.0, 0.0)))
    assert (found.kind, found.operator, found.subtask) == ("stuck-watermark", 0, 1)
    assert (
        "Subtask 2/4 of KafkaSource 'orders' holds the watermark back" in found.sentence
        and "with_idleness" in found.sentence
    )
    behind = only(marks(NOW - 300_000, NOW, rates=(0.0, 100.0)))
    assert "the others are 5 min" in behind.sentence


@pytest.mark.parametrize(
    "well",
    [
        marks(NOW, NOW - 59_000, rates=(100.0, 0.0)),
        marks(NOW, MIN_WATERMARK, rates=(100.0, 1.0)),
        marks(NOW, MIN_WATERMARK, rates=(0.0, 0.0)),
        marks(NOW, MIN_WATERMARK, rates=(100.0, 0.0), operator=NOW),
        marks(NOW, MIN_WATERMARK, rates=(100.0, 0.0), began=9_000),
        marks(MIN_WATERMARK, MIN_WATERMARK, rates=(100.0, 0.0)),
    ],
    ids=["small gap", "has records", "nobody reads", "idle", "just begun", "no event time"],
)
def test_watermark_that_waits_for_nothing_wrong_is_no_finding(well: JobDetails) -> None:
    assert not kinds(well)


def lagging(behind: list[int], lags: list[int], rate: float = 10.0) -> JobDetails:
    views = tuple(
        checkpoint(n, operators={"orders": OperatorFigures(name="orders", behind=each)})
        for n, each in enumerate(behind, 1)
    )
    own = subtasks(0, lag=lags, records_in_per_second=[rate] * 4, watermark=[NOW] * 4)
    return job(checkpoints=views, subtasks=own)


def test_lagging_partition_names_the_subtask_and_the_growth() -> None:
    found = only(lagging([100, 200, 300, 400, 5000], [10, 4900, 40, 50]))
    assert (found.kind, found.subtask) == ("lagging-partition", 1)
    assert "98 % of the lag, 4,900 records" in found.sentence and "from 100 to 5,000" in found.sentence


def test_lag_of_all_subtasks_names_the_source() -> None:
    found = only(lagging([100, 200, 300, 400, 5000], [1250] * 4))
    assert (found.kind, found.subtask, found.operator) == ("growing-lag", None, 0)


@pytest.mark.parametrize(
    "well",
    [
        lagging([100, 200, 300, 250, 5000], [10, 4900, 40, 50]),
        lagging([4900, 4910, 4920, 4930, 4990], [10, 4900, 40, 50]),
        lagging([200, 300, 400, 5000], [10, 4900, 40, 50]),
        lagging([100, 200, 300, 400, 5000], [10, 4900, 40, 50], rate=1000.0),
    ],
    ids=["a burst", "hardly grows", "too early", "read in a moment"],
)
def test_lag_that_is_no_problem_is_no_finding(well: JobDetails) -> None:
    assert not kinds(well)


# -- checkpoints ---------------------------------------------------------------------------------------------------------


def test_slow_storage_names_the_step() -> None:
    views = checkpoints(took=4600.0, steps={"run": 400.0, "complete": 4200.0})
    found = only(job(checkpoints=views))
    assert (found.kind, found.step, found.checkpoint_id) == ("slow-storage", "complete", 12)
    assert "step 7 (complete) takes 4.2 s of 4.6 s" in found.sentence
    slow_subtask = (SubtaskFigures(1, 0, snapshot_ms=100), SubtaskFigures(1, 2, snapshot_ms=4000))
    views = checkpoints(took=4600.0, steps={"run": 4500.0, "snapshot": 4000.0}, figures=slow_subtask)
    found = only(job(checkpoints=views))
    assert (found.step, found.subtask) == ("snapshot", 2) and "subtask 3/4 of 'totals'" in found.sentence


@pytest.mark.parametrize(
    ("took", "steps", "incremental"),
    [
        (1500.0, {"run": 600.0, "complete": 900.0}, 1000),
        (9000.0, {"run": 6000.0, "complete": 3000.0}, 1000),
        (4600.0, {"run": 400.0, "complete": 4200.0}, 200_000_000),
    ],
    ids=["quick", "not the cause", "many bytes"],
)
def test_storage_that_is_not_slow_is_no_finding(took: float, steps: dict[str, float], incremental: int) -> None:
    assert "slow-storage" not in kinds(job(checkpoints=checkpoints(took=took, steps=steps, incremental=incremental)))


def test_one_slow_upload_is_no_finding() -> None:
    views = (*checkpoints(), checkpoint(13, took=4600.0, steps={"run": 400.0, "complete": 4200.0}))
    assert not kinds(job(checkpoints=views))


def growing(sizes: list[int]) -> JobDetails:
    views = tuple(
        checkpoint(n, operators={"totals": OperatorFigures(name="totals", size=size)})
        for n, size in enumerate(sizes, 1)
    )
    return job(checkpoints=views, operators=(SOURCE, replace(TOTALS, states={"seen": 9, "other": 1})))


def test_growing_state_names_operator_and_state() -> None:
    found = only(growing([(n + 10) * 1_000_000 for n in range(12)]))
    assert (found.kind, found.severity, found.operator) == ("growing-state", Severity.NOTE, 1)
    assert (
        "'totals' grows with every checkpoint: from 12.0 MB to 21.0 MB" in found.sentence and "'seen'" in found.sentence
    )


@pytest.mark.parametrize(
    "sizes",
    [
        [(n + 10) * 1_000_000 for n in range(9)],
        [(n + 100) * 1_000_000 for n in range(12)],
        [(n + 10) * 1_000 for n in range(12)],
        [*((n + 10) * 1_000_000 for n in range(11)), 1_000_000],
    ],
    ids=["too early", "little", "small", "shrinks"],
)
def test_state_that_does_not_grow_for_ever_is_no_finding(sizes: list[int]) -> None:
    assert not kinds(growing(sizes))


def test_checkpoints_slower_than_their_interval_say_where_the_time_goes() -> None:
    figures = tuple(SubtaskFigures(1, n, run_ms=500.0 if n != 2 else 24_000.0) for n in range(4))
    views = checkpoints(took=25_000.0, steps={"run": 24_500.0, "complete": 300.0}, figures=figures)
    found = only(job(checkpoints=views))
    assert found.kind == "slow-checkpoints"
    assert "take 25 s, with an interval of 10 s: subtask 3/4 of 'totals' took 24 s of 25 s" in found.sentence
    assert not kinds(job(checkpoints=checkpoints(took=19_000.0)))
    assert not kinds(job(checkpoints=checkpoints(took=1_900.0), checkpoint_interval_ms=100))


def test_no_checkpoint_for_long_says_since_when() -> None:
    old = (checkpoint(7, end_ms=NOW - 70_000),)
    assert only(job(checkpoints=old)).sentence.startswith("No checkpoint is complete since checkpoint 7: 1 min 10 s")
    assert not kinds(job(checkpoints=(checkpoint(7, end_ms=NOW - 59_000),)))
    assert not kinds(job(checkpoints=old, attempts=(AttemptView(2, NOW - 5_000, 0),))), "it has just restarted"
    assert not kinds(job(checkpoints=old, checkpoint_interval_ms=None))
    assert not kinds(job(checkpoints=old, checkpoint_interval_ms=60_000))
    paused = {"execution.checkpointing.min-pause": "10 min"}
    assert not kinds(job(checkpoints=old, configuration=paused)), "the user asked for the pause"
    assert kinds(job(checkpoints=old, configuration={"execution.checkpointing.min-pause": "***"})) == ["no-checkpoint"]


def test_checkpoints_that_fail_give_the_reason() -> None:
    bad = tuple(failed(n, "storage is full.\nmore") for n in (13, 14, 15))
    found = only(job(checkpoints=(*checkpoints(), *bad)))
    assert (found.kind, found.checkpoint_id) == ("failing-checkpoints", 15)
    assert found.sentence == "The last 3 checkpoints failed; checkpoint 15: storage is full."
    assert not kinds(job(checkpoints=(*checkpoints(), *bad[:2])))


def test_commit_that_is_retried_names_sink_checkpoint_and_error() -> None:
    waiting = replace(checkpoint(13), passed_ms={1: NOW, 6: NOW, 7: NOW})
    retry = CommitRetry(5, "orders-db", 4, 10, NOW - 34_000, "The database refuses connections\n  where: here")
    found = only(job(checkpoints=(*checkpoints(), waiting), commit_retry=retry))
    assert (found.kind, found.checkpoint_id, found.step, found.operator) == ("commit-retried", 13, "commit", 5)
    assert found.sentence == (
        "Step 8 (commit) of checkpoint 13 fails in 'orders-db' for 34 s: attempt 4 of 10 failed with The database refuses "
        "connections."
    )
    assert not kinds(job(commit_retry=replace(retry, attempt=1)))
    assert not kinds(job(commit_retry=replace(retry, since_ms=NOW - 2_000)))


# -- failures ------------------------------------------------------------------------------------------------------------


def met(attempt: int, message: str = "bad price at 0x7f12 in record 12", **more: Any) -> ExceptionView:
    return ExceptionView(NOW - 1000, attempt, "ValueError", message, operator="totals", subtask=2, key="'k7'", **more)


def test_restart_loop_names_operator_subtask_and_key() -> None:
    errors = tuple(met(n, f"bad price at 0x{n:x} in record {n}") for n in (1, 2, 3))
    found = only(job(exceptions=errors))
    assert (found.kind, found.operator, found.subtask, found.key) == ("restart-loop", 1, 2, "'k7'")
    assert found.sentence.startswith(
        "The job has restarted 3 times in a row with the same error: ValueError: bad price"
    )
    assert found.sentence.endswith("in subtask 3/4 of 'totals', at key 'k7'.")


def test_restart_loop_that_is_longer_than_the_shown_exceptions_says_at_least() -> None:
    errors = tuple(met(n) for n in (98, 99, 100))
    found = only(job(exceptions=errors, attempts=(AttemptView(101, NOW - 60_000, 5),)))
    assert found.sentence.startswith("The job has restarted at least 3 times in a row")
    found = only(job(exceptions=errors, attempts=(AttemptView(4, NOW - 60_000, 5),)))
    assert found.sentence.startswith("The job has restarted 3 times in a row")


def test_failures_that_are_no_loop_are_no_finding() -> None:
    assert not kinds(job(exceptions=(met(1), met(2))))
    assert not kinds(job(exceptions=(met(1), met(2), met(3, "another"), met(4))))
    long_ago = tuple(replace(met(n), at_ms=NOW - of.RESTARTS_WITHIN_MS - 1) for n in (1, 2, 3))
    assert not kinds(job(exceptions=long_ago))
    weekly = tuple(replace(met(n), at_ms=NOW - 1000 - (3 - n) * 604_800_000) for n in (1, 2, 3))
    assert not kinds(job(exceptions=weekly)), "it ran well for a week after each"


def test_ended_died_and_silent_jobs_say_only_that() -> None:
    busy = {"subtasks": hot().subtasks, "operators": hot().operators}
    assert not kinds(job(state="FINISHED", ended_ms=NOW, **busy), life=DriverLife.ENDED)
    assert not kinds(job(state="CANCELED", ended_ms=NOW, **busy), life=DriverLife.ENDED)
    over = job(state="FAILED", ended_ms=NOW, exceptions=(met(1),), **busy)
    assert only(over, life=DriverLife.ENDED).kind == "failed"
    assert "ValueError: bad price" in only(over, life=DriverLife.ENDED).sentence
    assert only(job(**busy), life=DriverLife.DIED, answers=False).kind == "driver-died"
    silent = only(job(**busy), answers=False, as_of_ms=NOW - 20_000)
    assert silent.kind == "driver-silent" and "for 20 s" in silent.sentence
    assert kinds(job(**busy), answers=False, as_of_ms=NOW - 14_000) == ["hot-key"], "it may answer in a moment"


def test_most_urgent_finding_comes_first() -> None:
    both = job(exceptions=tuple(met(n) for n in (1, 2, 3)), subtasks=hot().subtasks, operators=hot().operators)
    assert kinds(both) == ["restart-loop", "hot-key"]


# -- one checkpoint ------------------------------------------------------------------------------------------------------


def test_why_of_a_slow_checkpoint_names_the_subtask_and_its_share_of_bytes() -> None:
    figures = tuple(
        SubtaskFigures(1, n, snapshot_ms=4100.0 if n == 2 else 300.0, incremental=61 if n == 2 else 13)
        for n in range(4)
    )
    one = checkpoint(13, took=4600.0, steps={"run": 4300.0, "snapshot": 4100.0, "complete": 200.0}, figures=figures)
    text = why(one, (*checkpoints(), one), job())
    assert text == (
        "The checkpoint took 4.6 s, the others about 100 ms: subtask 3/4 of 'totals' took 4.1 s of 4.6 s: it stored 61 % of the "
        "bytes."
    )


def test_why_of_slow_steps_of_the_driver_and_of_late_barriers() -> None:
    one = checkpoint(13, took=4600.0, steps={"run": 300.0, "complete": 4200.0})
    assert "step 7 (complete) took 4.2 s of 4.6 s to store 1.0 MB" in str(why(one, checkpoints(), job()))
    late = (SubtaskFigures(1, 1, align_ms=3000.0), SubtaskFigures(1, 0, align_ms=10.0))
    one = checkpoint(13, took=3600.0, steps={"run": 3300.0, "align": 3000.0}, figures=late)
    assert "subtask 2/4 of 'totals' took 3 s of 3.6 s until all barriers arrived" in str(why(one, checkpoints(), job()))


def test_why_is_silent_about_an_ordinary_checkpoint_and_tells_the_reason_of_a_failed_one() -> None:
    assert why(checkpoint(13), checkpoints(), job()) is None
    assert why(checkpoint(13, took=900.0), checkpoints(), job()) is None
    usual = checkpoints(took=3000.0)
    assert why(checkpoint(13, took=3100.0), usual, job()) is None
    assert why(failed(13, "storage is full"), checkpoints(), job()) == "The checkpoint failed: storage is full."
