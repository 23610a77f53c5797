"""Python workers and the JVM are killed below a driver that lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.crash_run import CrashRun
from tests.crash.test_driver_killed import IN_TASKS

Crash = Callable[..., CrashRun]


def test_a_worker_killed_in_a_task_is_replaced_and_the_task_tried_again(crash: Crash) -> None:
    plan = ["T1.before-state@6=self", "T2.after-segment@13=self", "K2.prepared@21=self", "T2.before-ack@30=self"]
    crash(*plan, "K1.two-phase.begun@9=self").run().check([0])


def test_all_workers_killed_between_two_rounds_and_during_one(crash: Crash) -> None:
    """With RocksDB: each worker has stores of its own open."""
    keys = {"state.backend.type": "rocksdb", "tidegate.state.cache-size": "0 b"}
    crash("C3.acks-in@2=workers", "C2.cut@7=workers", keys=keys).run().check([0])


def test_the_jvm_killed_is_replaced_by_a_new_one_in_the_same_driver(crash: Crash) -> None:
    run = crash("C2.cut@4=jvm", "C3.acks-in@7=jvm").run()
    assert "The Spark context was lost while the job ran" in run.last_log()
    assert "its JVM has ended or the context was stopped" in run.last_log()
    run.check([0])


def test_the_jvm_killed_in_a_round_without_restarts_ends_the_driver_with_a_clear_error(crash: Crash) -> None:
    run = crash("T1.before-state@14=above", keys={"restart-strategy.type": "none"})
    assert run.wait(run.start()) == 1
    log = run.last_log()
    assert "The Spark context was lost while the job ran" in log
    assert "cure: start the program again" in log
    assert "its latest checkpoint is retained" in log
    run.run().check([1, 0])


def test_the_jvm_killed_while_spark_starts(crash: Crash) -> None:
    run = crash()
    driver = run.start()
    run.watch(driver, until=lambda: bool(run.kill_jvms(driver.pid)) or driver.poll() is not None)
    assert run.wait(driver) == 0, run.last_log()
    assert "Spark does not start\n  found: start 1 of at most 3 in a row failed" in run.last_log()
    run.check([0])


def test_a_jvm_that_never_comes_up_ends_the_driver_and_frees_the_lease(crash: Crash) -> None:
    run = crash()
    driver = run.start()

    def kill_until_the_end() -> bool:
        run.kill_jvms(driver.pid)
        return driver.poll() is not None

    run.watch(driver, until=kill_until_the_end)
    assert run.wait(driver) == 1
    assert "found: start 3 of at most 3 in a row failed" in run.last_log()
    assert run.wait(run.start()) == 0, run.last_log()
    run.check([1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_TASKS)
def test_workers_killed_in_many_rounds_at(crash: Crash, point: str) -> None:
    crash(*(f"{point}@{n}=self" for n in (2, 9, 14, 20))).run().check([0])


@pytest.mark.slow
def test_the_jvm_killed_in_the_middle_of_commits(crash: Crash) -> None:
    plan = ["C6.before-commit@3=jvm", "C6.completed@6=jvm", "C7.recorded@8=jvm"]
    crash(*plan).run().check([0])
