"""The driver is killed after each step of the protocol, and the program started again: the output is that of a run without."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.crash_run import KILLED, CrashRun

Crash = Callable[..., CrashRun]

# A round carries a checkpoint and has two levels of two subtasks: a point in a task is passed four times a round.


def test_killed_after_step_1_trigger(crash: Crash) -> None:
    crash("C1.id-taken@2=self", "C1.triggered@5=self").run().check([KILLED, KILLED, 0])


def test_killed_after_step_2_cut(crash: Crash) -> None:
    crash("C2.cut@3=self").run().check([KILLED, 0])


def test_killed_in_step_3_run(crash: Crash) -> None:
    crash("T1.before-state@10=driver").run().check([KILLED, 0])


def test_killed_after_step_4_align(crash: Crash) -> None:
    crash("T2.before-segment@13=driver").run().check([KILLED, 0])


def test_killed_after_step_5_snapshot(crash: Crash) -> None:
    crash("T2.after-segment@11=driver", "K2.prepared@23=driver").run().check([KILLED, KILLED, 0])


def test_killed_after_step_6_acknowledge(crash: Crash) -> None:
    crash("C3.acks-in@3=self").run().check([KILLED, 0])


def test_killed_after_step_7_complete(crash: Crash) -> None:
    plan = ["storage.publish.before-link[_metadata]@3=self", "C6.published@4=self", "C6.completed@6=self"]
    crash(*plan).run().check([KILLED, KILLED, KILLED, 0])


def test_killed_in_step_8_commit(crash: Crash) -> None:
    plan = ["K3.file-sink.after-rename@5=self", "K3.two-phase.committed@9=self", "C6.all-committed@6=self"]
    crash(*plan).run().check([KILLED, KILLED, KILLED, 0])


def test_killed_in_step_9_subsume(crash: Crash) -> None:
    crash("C7.metadata-deleted@2=self", "C7.file-deleted@3=self").run().check([KILLED, KILLED, 0])


def test_killed_while_restoring_once_and_again(crash: Crash) -> None:
    # The first kill leaves a checkpoint that is complete and not committed, the others meet the restore of it.
    plan = ["C6.completed@4=self", "C8.deciding@2=self", "C8.before-record@2=self", "K3.file-sink.before-rename@7=self"]
    run = crash(*plan, "C8.recorded@3=self").run()
    run.check([KILLED] * 5 + [0])


def test_killed_while_aborting_what_was_prepared(crash: Crash) -> None:
    plan = ["C3.acks-in@4=self", "K2.file-sink.before-delete@1=self", "K2.two-phase.aborted@1=self"]
    crash(*plan).run().check([KILLED, KILLED, KILLED, 0])


def test_killed_at_the_end_of_the_job(crash: Crash) -> None:
    # All output is committed and the checkpoints are going: the next start finds a finished job and does nothing.
    run = crash("C7.discard-recorded@1=self").run()
    run.check([KILLED, 0])


EVERY_POINT = [
    *("C1.before-trigger", "C1.id-taken", "C1.triggered", "C2.cut", "C3.acks-in", "C4.before-publish"),
    *("storage.publish.before-link[_metadata]", "storage.publish.after-link[_metadata]"),
    *("C6.published", "C6.recorded", "C6.completed", "C6.before-commit", "C6.sink-committed", "C6.all-committed"),
    *("K3.file-sink.before-rename", "K3.file-sink.after-rename"),
    *("K3.two-phase.before-commit", "K3.two-phase.committed"),
    *("C7.recorded", "C7.metadata-deleted", "C7.directory-deleted", "C7.file-deleted", "C7.subsumed", "C9.checked"),
]
IN_TASKS = [
    *("T1.before-state", "T2.apply", "T2.before-segment", "T2.after-segment", "K1.before-prepare", "K2.prepared"),
    *("K1.file-sink.flush", "K1.file-sink.flushed", "K1.two-phase.begun", "K1.two-phase.pre-commit", "T2.before-ack"),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", EVERY_POINT)
def test_killed_three_times_at(crash: Crash, point: str) -> None:
    crash(*(f"{point}@{n}=self" for n in (2, 5, 9))).run().check([KILLED] * 3 + [0])


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_TASKS)
def test_driver_killed_three_times_while_a_task_is_at(crash: Crash, point: str) -> None:
    crash(*(f"{point}@{n}=driver" for n in (3, 11, 18))).run().check([KILLED] * 3 + [0])
