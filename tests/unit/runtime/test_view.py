"""What a face may show of a job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.runtime.small_jobs import FailsOnce, SlowRounds, SmallJob
from tidegate.base import faults, secrets
from tidegate.base.clock import ManualClock
from tidegate.base.errors import UserCodeError
from tidegate.common.job_status import JobStatus
from tidegate.control.flink import checkpoints, metrics
from tidegate.control.flink.job import JobNow
from tidegate.control.jobs import JobDetails
from tidegate.operators.flow.rows import Ack
from tidegate.runtime import view
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.prometheus import prometheus_text
from tidegate.runtime.statistics import MetricView
from tidegate.runtime.view import Outcome
from tidegate.testing.simulation.engine import SimulatedEngine

RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 5}


def master_of(job: SmallJob, **settings: Any) -> JobMaster:
    clock = ManualClock()
    return JobMaster(job.program(**settings), SlowRounds(clock, 20), clock=clock, local_root=job.local)


def test_before_it_starts_the_graph_is_there(tmp_path: Path) -> None:
    view = master_of(SmallJob(tmp_path)).view()
    assert (view.job_id, view.name, view.status, view.ended_ms) == ("small", "small", JobStatus.CREATED, None)
    assert [(o.name, o.parallelism, o.inputs) for o in view.operators] == [
        ("numbers", 1, ()),
        ("mapped", 1, (1,)),
        ("ledger", 1, (2,)),
    ]
    assert (view.attempts, view.rounds, view.checkpoints, view.exceptions) == ((), (), (), ())


def test_of_a_job_that_has_finished(tmp_path: Path) -> None:
    master = master_of(SmallJob(tmp_path))
    master.run()
    view = master.view()
    assert view.status is JobStatus.FINISHED
    assert view.ended_ms is not None
    assert [(a.number, a.restored, a.reason) for a in view.attempts] == [(1, 0, None)]
    assert view.attempts[0].ended_ms is not None
    assert [r.records_in for r in view.rounds] == [3, 3, 3, 1]
    assert [round(r.records_per_second) for r in view.rounds] == [150, 150, 150, 50]
    assert [c.status for c in view.checkpoints] == [Outcome.COMPLETED] * len(view.checkpoints)
    assert [c.checkpoint_id for c in view.checkpoints] == list(range(1, len(view.checkpoints) + 1))
    for checkpoint in view.checkpoints:
        assert list(checkpoint.passed_ms) == [1, 6, 7, 8, 9]
        assert list(checkpoint.passed_ms.values()) == sorted(checkpoint.passed_ms.values())
        assert checkpoint.size > 0


def test_records_are_counted_where_they_enter_a_chain(tmp_path: Path) -> None:
    master = master_of(SmallJob(tmp_path))
    master.run()
    source, mapped, _ = master.view().operators
    assert source.records_in == 10
    assert source.records_in_per_second == pytest.approx(50)  # the last round: one record in 20 ms
    assert mapped.records_in is None, "it is fused behind the source"


def test_it_is_seen_while_the_job_runs_and_never_changes(tmp_path: Path) -> None:
    job, views = SmallJob(tmp_path), []
    master = master_of(job)
    faults.install(lambda name, where: views.append(master.view()) if name == "C6.published" else None)
    master.run()
    faults.install(None)
    first = views[0]
    assert first.status is JobStatus.RUNNING
    assert [c.status for c in first.checkpoints] == [Outcome.IN_PROGRESS]
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.status = JobStatus.FAILED  # type: ignore[misc]
    assert views[-1].rounds[: len(first.rounds)] == first.rounds


def test_failures_and_restarts_are_shown(tmp_path: Path) -> None:
    FailsOnce.failures = 0
    master = master_of(SmallJob(tmp_path, function=FailsOnce()), **RESTARTS)
    master.run()
    view = master.view()
    assert [a.number for a in view.attempts] == [1, 2]
    assert str(view.attempts[0].reason).startswith("UserCodeError: ")
    assert view.attempts[1].reason is None
    assert view.attempts[1].restored > 0
    (failure,) = view.exceptions
    assert (failure.attempt, failure.kind) == (1, UserCodeError.__name__)
    assert "seven" in failure.message


class FailsOften:
    failures = 0

    def __call__(self, value: Any) -> Any:
        if value == 7 and FailsOften.failures < 5:
            FailsOften.failures += 1
            raise ValueError("seven" * FailsOften.failures)
        return value


def test_attempts_restores_and_savepoints_are_counted_although_only_the_latest_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_ATTEMPTS", 2)
    FailsOften.failures = 0
    master = master_of(
        SmallJob(tmp_path, function=FailsOften()), **RESTARTS, **{"restart-strategy.fixed-delay.attempts": 9}
    )
    master.run()
    shown = master.view()
    assert [a.number for a in shown.attempts] == [5, 6]
    assert (shown.attempts_so_far, shown.totals.restored) == (6, 5)
    assert 'tidegate_job_attempts_total{job_id="small",job_name="small"} 6.0' in prometheus_text(shown)
    nobody: Any = None
    now = JobNow(nobody, JobDetails.of(shown, 0), 0, 0)
    assert metrics.of_job(now)["numRestarts"] == 5
    assert checkpoints.checkpointing(now)["counts"]["restored"] == 5


def test_a_failed_checkpoint_says_why(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    master = master_of(job, **{"execution.checkpointing.tolerable-failed-checkpoints": 3})
    failed: list[str] = []

    def full_once(name: str, where: dict[str, Any]) -> None:
        if name == "storage.publish.before-link" and "_metadata" in where["path"] and not failed:
            failed.append(name)
            raise OSError(28, "No space left on device")

    faults.install(full_once)
    master.run()
    faults.install(None)
    first, *rest = master.view().checkpoints
    assert first.status is Outcome.FAILED
    assert "ENOSPC" in str(first.message)
    assert list(first.passed_ms) == [1, 6]
    assert {c.status for c in rest} == {Outcome.COMPLETED}


# -- stories -------------------------------------------------------------------------------------------------------------


def test_the_story_of_a_checkpoint_has_all_its_stages(tmp_path: Path) -> None:
    master = master_of(SmallJob(tmp_path))
    master.run()
    story = master.story("checkpoint", 1)
    assert [note.what for note in story] == ["Triggered", "Cut", "Stored", "Committed", "Subsumed"]
    assert [note.at_ms for note in story] == sorted(note.at_ms for note in story)
    assert {note.attempt for note in story} == {1}


def test_the_story_of_a_round_says_what_it_carried_and_why_it_failed(tmp_path: Path) -> None:
    FailsOnce.failures = 0
    master = master_of(SmallJob(tmp_path, function=FailsOnce()), **RESTARTS)
    master.run()
    stories = [master.story("round", number) for number in range(1, master.view().rounds[-1].round + 1)]
    assert all(story[0].what == "begun" and story[1].what in ("accepted", "failed") for story in stories)
    [failed] = [note for story in stories for note in story if note.what == "failed"]
    assert "seven" in failed.more
    carried = [story[0].more for story in stories if story[0].more]
    assert carried == [str(c.checkpoint_id) for c in master.view().checkpoints]


def test_stories_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_NOTES", 10)
    master = master_of(SmallJob(tmp_path))
    master.run()
    remembered = [
        note for number in range(100) for kind in ("checkpoint", "round") for note in master.story(kind, number)
    ]
    assert len(remembered) == 10
    assert master.story("round", 1) == []


# -- what is known of a failure, of the configuration, of the driver -----------------------------------------------------


def fails_at_seven(value: Any) -> Any:
    if value == 7:
        raise ValueError("seven")
    return value


def test_failure_of_user_code_has_traceback_record_operator_and_checkpoint(tmp_path: Path) -> None:
    master = master_of(SmallJob(tmp_path, function=fails_at_seven))
    with pytest.raises(UserCodeError):
        master.run()
    (failure,) = master.view().exceptions
    assert "fails_at_seven" in failure.traceback
    assert 'raise ValueError("seven")' in failure.traceback
    assert (failure.operator, failure.subtask, failure.record, failure.key) == ("mapped", 0, "7", None)
    completed = [c.checkpoint_id for c in master.view().checkpoints if c.status is Outcome.COMPLETED]
    assert failure.checkpoint_id is not None
    assert failure.checkpoint_id >= max(completed)
    assert failure.debug_command == "tidegate debug small"


def fails_with_half_a_character(value: Any) -> Any:
    raise ValueError("no such file: \udcff, password hidden-of-the-test")


def test_text_of_an_error_can_be_written_and_has_no_secret(tmp_path: Path) -> None:
    secrets.hide(["hidden-of-the-test"])
    master = master_of(SmallJob(tmp_path, function=fails_with_half_a_character))
    with pytest.raises(UserCodeError):
        master.run()
    view = master.view()
    assert "no such file: \\udcff, password ***" in view.exceptions[0].message
    assert "password ***" in str(view.attempts[0].reason)
    content = msgspec.json.encode(JobDetails.of(view, 0))
    assert b"hidden-of-the-test" not in content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_gauge_that_is_no_number_of_json_does_not_hide_the_job(tmp_path: Path, value: float) -> None:
    master = master_of(SmallJob(tmp_path))
    master.run()
    metrics = [MetricView(1, 0, (), name, "gauge", of) for name, of in (("odd", value), ("even", 2.0))]
    shown = dataclasses.replace(master.view(), metrics={(m.operator, m.subtask, m.groups, m.name): m for m in metrics})
    read = msgspec.json.decode(msgspec.json.encode(JobDetails.of(shown, 0)), type=JobDetails)
    assert [metric.name for metric in read.metrics] == ["even"]


def test_failure_outside_of_user_code_names_no_subtask(tmp_path: Path) -> None:
    class Broken(SimulatedEngine):
        def run(self, plan: RoundPlan) -> list[Ack]:
            raise OSError("no network")

    job = SmallJob(tmp_path)
    master = JobMaster(job.program(), Broken(1), clock=ManualClock(), local_root=job.local)
    with pytest.raises(OSError, match="no network"):
        master.run()
    (failure,) = master.view().exceptions
    assert (failure.operator, failure.subtask, failure.record, failure.debug_command) == (None, None, None, None)
    assert "OSError: no network" in failure.traceback


def test_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    keys = {
        "spark.hadoop.fs.s3a.secret.key": "s3cret",
        "spark.hadoop.fs.s3a.endpoint": "https://me:s3cret@host/",
        "pipeline.global-job-parameters": {"db.password": "s3cret", "table": "orders"},
        "spark.executor.extraJavaOptions": "-Dtoken=s3cret -Dx=1",
        "metrics.reporter.prom.token-file": "/etc/scraper",
    }
    shown = master_of(SmallJob(tmp_path), **keys).view().configuration
    assert "s3cret" not in repr(shown)
    assert shown["pipeline.global-job-parameters"] == "db.password:***,table:orders"
    assert shown["spark.hadoop.fs.s3a.endpoint"] == "https://me:***@host/"
    assert shown["spark.executor.extraJavaOptions"] == "-Dtoken=*** -Dx=1"
    assert shown["metrics.reporter.prom.token-file"] == "/etc/scraper"
    assert shown["execution.checkpointing.interval"] == "10"


def test_environment_names_versions_host_and_command_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", "job.py", "--password", "s3cret", "--table=orders", "--api-token=s3cret"]
    monkeypatch.setattr("sys.orig_argv", command)
    shown = master_of(SmallJob(tmp_path)).view().environment
    assert shown["command"] == "python job.py --password *** --table=orders --api-token=***"
    assert {"tidegate", "python", "spark", "host", "pid", "user", "directory"} <= shown.keys()
