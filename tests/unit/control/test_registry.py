"""The registry of jobs: what is written, who lives, what is forgotten, and that it never breaks a job."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import msgspec
import pytest

from tidegate.base.errors import AmbiguousJobError, ConfigurationError, UnknownJobError
from tidegate.checkpoint.owner import this_process
from tidegate.common import Configuration
from tidegate.control import registry
from tidegate.control.client import find
from tidegate.control.registry import DriverLife, JobRecord, folder
from tidegate.datastream import StreamExecutionEnvironment

DAY_MS = 86_400_000


def record(job_id: str, state: str = "RUNNING", at_ms: int = 0, **fields: object) -> JobRecord:
    made = JobRecord(
        run=f"{at_ms:014d}-{job_id}", job_id=job_id, name="n", program="/p.py", owner=this_process(), started_ms=at_ms
    )
    ended = at_ms if state in ("FINISHED", "FAILED", "CANCELED") else None
    return msgspec.structs.replace(made, state=state, ended_ms=ended, **fields)


def run_job(keys: dict[str, object], values: list[int]) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({"execution.target": "simulated", **keys})
    ).set_parallelism(1)
    env.from_collection(values).map(lambda value: 1 // value).add_sink(lambda value: None)
    env.execute("divides")


def test_a_job_is_registered_with_its_end(home: Path) -> None:
    run_job({}, [1, 2])
    [found] = registry.records()
    assert (found.name, found.state, found.life(), found.error) == ("divides", "FINISHED", DriverLife.ENDED, None)
    assert found.ended_ms is not None and found.ended_ms >= found.started_ms
    assert found.owner == this_process()


def test_a_failed_job_has_its_error(home: Path) -> None:
    with pytest.raises(Exception, match="failed"):
        run_job({"restart-strategy.type": "none"}, [1, 0])
    [found] = registry.records()
    assert found.state == "FAILED"
    assert found.error is not None and "ZeroDivisionError" in found.error


def test_only_the_user_can_read_it(home: Path) -> None:
    before = os.umask(0)
    try:
        run_job({}, [1])
    finally:
        os.umask(before)
    [path] = (home / "jobs").iterdir()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (home, home / "jobs", path)] == [0o700, 0o700, 0o600]


def test_it_can_be_switched_off(home: Path) -> None:
    run_job({"tidegate.control.enabled": False}, [1])
    assert not home.exists()


def test_a_home_that_cannot_be_written_is_a_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.write_text("a file")
    run_job({}, [1])
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "it is not registered, so no commands find it: " in warning


def test_a_home_others_can_write_to_is_not_believed(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(
        ConfigurationError,
        match=r"which says where your jobs take commands\n.*\n  found: owner .*, mode 777\n  cure: chmod 700",
    ):
        folder("jobs")
    with pytest.raises(ConfigurationError):
        registry.records()


def test_a_process_that_is_gone_has_died_also_if_its_pid_lives_again(home: Path) -> None:
    me = this_process()
    assert record("a").life() is DriverLife.LIVE
    assert record("a", owner=msgspec.structs.replace(me, started="1")).life() is DriverLife.DIED
    assert record("a", owner=msgspec.structs.replace(me, host="elsewhere")).life() is DriverLife.UNKNOWN
    assert record("a", "FAILED", owner=msgspec.structs.replace(me, started="1")).life() is DriverLife.ENDED


def test_damaged_and_newer_records_are_left_out(home: Path) -> None:
    registry.write(record("good"))
    (home / "jobs" / "00000000000001-x.json").write_text("{")
    (home / "jobs" / "00000000000002-y.json").write_bytes(b"\xff\x00")
    registry.write(record("newer", version=99))
    registry.write(record("odd", state="DANCING"))
    assert [found.job_id for found in registry.records()] == ["good"]


def test_the_oldest_that_are_over_are_forgotten_and_never_one_that_lives(home: Path) -> None:
    now = 100 * DAY_MS
    gone = msgspec.structs.replace(this_process(), started="1")
    registry.write(record("lives", at_ms=1))
    registry.write(record("old", "FINISHED", at_ms=now - 31 * DAY_MS))
    for number in range(5):
        registry.write(record(f"j{number}", "FINISHED", at_ms=now - 1000 + number))
    registry.write(record("died", at_ms=now, owner=gone, driver="1-x"))
    (home / "tokens").mkdir()
    (home / "tokens" / "1-x").write_text("secret")
    registry.prune(now, most=3)
    assert [found.job_id for found in registry.records()] == ["lives", "j3", "j4", "died"]
    assert not (home / "tokens" / "1-x").exists()


def test_logs_go_with_the_last_run_that_is_listed(home: Path) -> None:
    now = 100 * DAY_MS
    registry.write(record("listed", "FINISHED", at_ms=now, launch="l1"))
    registry.write(record("old", "FINISHED", at_ms=now - 31 * DAY_MS, launch="l2"))
    (home / "logs").mkdir()
    ages = {"l1.log": 9, "l2.log": 9, "l2.error": 9, "never-came-to-a-job.log": 2, "has-just-been-started.log": 0}
    for name, days in ages.items():
        (home / "logs" / name).write_text("")
        os.utime(home / "logs" / name, ((now - days * DAY_MS) / 1000,) * 2)
    registry.prune(now)
    assert sorted(path.name for path in (home / "logs").iterdir()) == ["has-just-been-started.log", "l1.log"]


def test_ids_may_be_shortened_and_the_run_that_lives_is_meant(home: Path) -> None:
    for number, (job, state) in enumerate(
        [("abc1", "RUNNING"), ("abc1", "FAILED"), ("abd2", "FINISHED"), ("ab", "RUNNING")]
    ):
        registry.write(record(job, state, at_ms=number))
    assert find("abc").state == "RUNNING"
    assert find("abd").job_id == "abd2"
    assert find("ab").job_id == "ab"  # the whole id
    with pytest.raises(AmbiguousJobError) as many:
        find("a")
    assert str(many.value) == (
        "Several job ids start with this text\n  where: a\n  found: \n    abc1  n, FAILED\n"
        "    abd2  n, FINISHED\n    ab  n, RUNNING\n  cure: give more characters of the id"
    )
    for unknown in ("x", ""):
        with pytest.raises(UnknownJobError, match="3 registered jobs, none of them"):
            find(unknown)


def test_a_job_on_another_host_that_takes_commands_from_storage_is_not_forgotten_with_age(home: Path) -> None:
    """Its record says what was seen last: such a job may have run for months."""
    now = 100 * DAY_MS
    far = msgspec.structs.replace(this_process(), host="far")
    for number in range(4):
        registry.write(record(f"j{number}", at_ms=number, owner=far, place="hdfs:///jobs/j"))
    registry.write(record("unreachable", at_ms=5, owner=far))
    registry.prune(now, most=3)
    assert [found.job_id for found in registry.records()] == ["j1", "j2", "j3"]
