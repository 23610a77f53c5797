"""Python workers and the JVM are killed below a driver that lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash_run import CrashRun
from test_driver_killed import IN_TASKS

Crash = Callable[..., CrashRun]


def test_a_worker_killed_in_a_task_is_replaced_and_the_task_tried_again(crash: Crash) -> None:
    plan = ["T1.before-state@6=self", "T2.after-segment@13=self", "K2.prepared@21=self", "T2.before-ack@30=self"]
    crash(*plan, "K1.two-phase.begun@9=self").run().check([0])


def test_all_workers_killed_between_two_rounds_and_during_one(crash: Crash) -> None:
    crash("C3.acks-in@2=workers", "C2.cut@7=workers").run().check([0])


def test_the_jvm_killed_ends_the_driver_with_a_clear_error(crash: Crash) -> None:
    run = crash("C2.cut@4=jvm", "C3.acks-in@7=jvm")
    assert run.wait(run.start()) == 1
    log = run.last_log()
    assert "Spark must stay as long as a job runs" in log
    assert "its JVM or context is gone" in log
    assert "start the program again: with a fixed tidegate.job-id it goes on from its last checkpoint" in log
    assert "its latest checkpoint is kept" in log
    run.run().check([1, 1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_TASKS)
def test_workers_killed_in_many_rounds_at(crash: Crash, point: str) -> None:
    crash(*(f"{point}@{n}=self" for n in (2, 9, 14, 20))).run().check([0])


@pytest.mark.slow
def test_the_jvm_killed_in_the_middle_of_commits(crash: Crash) -> None:
    plan = ["C6.before-commit@3=jvm", "C6.completed@6=jvm", "C7.recorded@8=jvm"]
    crash(*plan).run().check([1, 1, 1, 0])
