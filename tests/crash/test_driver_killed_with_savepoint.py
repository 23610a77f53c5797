"""The driver is killed around a savepoint: behind a stop that was decided (C10), and beside a job that continues (C11)."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from tests.crash.crash_run import KILLED, CrashRun
from tidegate.checkpoint.locate import locate

Crash = Callable[..., CrashRun]


def test_killed_between_the_savepoint_and_the_end_of_a_stop(crash: Crash) -> None:
    """Every start does the next bit of the end, the last one ends the job. Then it is resumed, moved, at another parallelism and
    on another machine."""
    plan = ["C10.decided@1=self", "C11.published@1=self", "C10.settled@1=self"]
    run = crash(*plan, command="stop").run()
    assert run.exit_codes == [KILLED, KILLED, KILLED, 0]
    [path] = (run.directory / "savepoints").iterdir()
    assert f"was asked to end with the savepoint {path}" in run.last_log()
    run.check_nothing_left()
    done = run.observer.count
    moved = run.directory / "elsewhere"
    shutil.move(path, moved)
    assert not any(operator.committables for operator in locate(str(moved)).metadata.operators)
    run.lose_machine()
    assert run.resume(moved, parallelism=3) == 0, run.last_log()
    assert run.observer.count > done
    run.check()


def test_killed_before_a_stop_is_decided(crash: Crash) -> None:
    """Nothing has happened but copies, which are gone with the next start; the stop that comes then is carried out."""
    run = crash("C11.copied@1=self", command="stop").run()
    assert run.exit_codes == [KILLED, 0]
    [path] = (run.directory / "savepoints").iterdir()
    assert f"savepoint: {path}" in run.last_log()
    assert run.resume(path, parallelism=1) == 0, run.last_log()
    run.check()


def test_killed_after_a_savepoint_of_a_job_that_continues(crash: Crash) -> None:
    """It has committed nothing, and recovery does not look at it: the output is that of a run without."""
    rarely = {"execution.checkpointing.interval": "1 h"}
    run = crash("C11.published@1=self", keys=rarely, command="savepoint")
    assert run.wait(run.start()) == KILLED
    assert run.observer.count == 0
    [path] = (run.directory / "savepoints").iterdir()
    assert any(operator.committables for operator in locate(str(path)).metadata.operators)
    run.run()
    run.check([KILLED, 0])
    locate(str(path)).check_files()
