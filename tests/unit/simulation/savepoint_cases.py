"""A job that is told to take a savepoint, to stop or to cancel with one, while something goes wrong; then it is resumed from it."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.lives import Life
from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, seeded_tokens
from tests.unit.simulation.simulated_programs import SCENARIOS
from tidegate.base.errors import JobCancelledError, RestoreError
from tidegate.base.files import Files
from tidegate.checkpoint.locate import locate, read_lineage
from tidegate.runtime.commands import CancelWithSavepoint, SavepointCommand, StopWithSavepoint, TriggerSavepoint
from tidegate.state.stores import close_removed_stores
from tidegate.testing.simulation.driver import Fault, Kind

RECOVERY = "execution.state-recovery.path"
COMMANDS: dict[str, type[SavepointCommand]] = {
    "savepoint": TriggerSavepoint,
    "stop": StopWithSavepoint,
    "cancel": CancelWithSavepoint,
}


@dataclass(frozen=True)
class SavepointCase:
    """``round``: in which the command comes. ``parallelism``: before and after. ``same_job``: it is resumed under its own id."""

    scenario: str
    command: str
    round: int = 3
    fault: Fault | None = None
    again: Fault | None = None
    """Of the life that comes after a crash."""
    seed: int = 1
    parallelism: tuple[int, int] = (2, 3)
    same_job: bool = False
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        faults = [str(fault) for fault in (self.fault, self.again) if fault is not None]
        return (
            f"{self.scenario} {self.command}@{self.round} {' '.join(faults)} seed={self.seed} same_job={self.same_job}"
        )


class SavepointRun:
    """The first job's lives up to its end, whichever it is, and what it left."""

    def __init__(self, case: SavepointCase, root: str) -> None:
        self.case, self.root, self.target = case, root, f"{root}/savepoints"
        self.first = Simulation(SCENARIOS[case.scenario], root, case.seed, settings=dict(case.settings))
        self.commands: list[SavepointCommand] = []
        self.before_command: Callable[[], None] = lambda: None

    def live(self) -> Life:
        """The life that is told, with its fault, and those that come after it crashed."""
        planned = [fault for fault in (self.case.fault, self.case.again) if fault is not None]
        life = self.first.new_life(planned, self.case.parallelism[0])
        life.at_round[self.case.round] = self._tell
        self.first.run(life)
        self._check_answers(life)
        for _ in planned:
            if not life.crashed:
                break
            life = self.first.live(planned, self.case.parallelism[0])
        return life

    def _tell(self, master: Any) -> None:
        self.before_command()
        self.commands.append(master.submit(COMMANDS[self.case.command](self.target)))

    def _check_answers(self, life: Life) -> None:
        for command in self.commands:
            assert life.crashed or command.answer.done(), "a command without an answer"
            if command.answer.done() and command.answer.exception() is None:
                locate(command.answer.result()).check_files()

    def savepoints(self, *, all_complete: bool = True) -> list[str]:
        names = sorted(os.listdir(self.target)) if os.path.isdir(self.target) else []
        found = [f"{self.target}/{name}" for name in names]
        complete = [path for path in found if os.path.exists(f"{path}/_metadata")]
        assert not all_complete or found == complete, f"half-written savepoints: {set(found) - set(complete)}"
        for path in complete:
            locate(path).check_files()
        return complete

    def resume(self, path: str) -> Simulation:
        """From a savepoint that was moved away; the job's own directory is gone if another job continues."""
        moved = f"{self.root}/moved"
        shutil.move(path, moved)
        if not self.case.same_job:
            shutil.rmtree(self.first.place.checkpoints, ignore_errors=True)
        name = "simulated" if self.case.same_job else "resumed"
        other = Simulation(
            self.first.scenario,
            self.root,
            self.case.seed + 7,
            job_id=name,
            settings={**self.case.settings, RECOVERY: moved},
        )
        other.may_begin_anew = True
        other.history.coverage.update({-number: seen for number, seen in self.first.history.coverage.items()})
        other.history.settled = False
        before = _contents(moved)
        life = other.live(parallelism=self.case.parallelism[1])
        assert life.finished, f"the resumed job failed: {life.error!r}"
        assert before == _contents(moved), "not byte-identical"
        return other


def _contents(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def run_ending(case: SavepointCase, root: str) -> SavepointRun:
    """Stop or cancel: the job ends with a savepoint and is resumed from it; or it was not told in time and continues to its end."""
    run = SavepointRun(case, root)
    life = run.live()
    faults = [fault for life in run.first.lives for fault in life.fired]
    ended_with, told = read_lineage(Files(run.first.place.job)).savepoint, run.commands[0].answer
    if not ended_with and told.done() and told.exception() is None:
        # storage failed when the end was to be written down: the next start finds that the job was to end, and ends it again
        life = run.first.live((), case.parallelism[0])
        ended_with = read_lineage(Files(run.first.place.job)).savepoint
        assert ended_with == told.result()
    if not ended_with:
        if not life.finished:
            assert not isinstance(life.error, JobCancelledError), "cancelled without a savepoint"
            run.first.conclude(case.parallelism[0])
        assert (
            run.savepoints(all_complete=_deletes_worked(faults)) == []
            or life.crashed
            or any(fault.kind is Kind.ERROR for fault in faults)
        )
        return run
    ends = JobCancelledError if life.starts else (JobCancelledError, RestoreError)  # the second: cancelled before
    assert life.finished or (case.command == "cancel" and isinstance(life.error, ends)), f"ended as {life.error!r}"
    [path] = run.savepoints(all_complete=_deletes_worked(faults))
    assert path == ended_with
    assert not any(operator.committables for operator in locate(path).metadata.operators), "output to commit again"
    other = run.resume(path)
    for observer in other.observers:
        observer.check_records()
        # A cancelled job is not started again, so nobody sweeps what a crash left of it, or storage did not let go.
        if not faults or (case.command == "stop" and faults[0].kind is Kind.CRASH):
            observer.check_leftovers()
    return run


def run_beside(case: SavepointCase, root: str) -> SavepointRun:
    """Fault C11: a savepoint of a job that continues changes nothing for it, whatever happens."""
    run = SavepointRun(case, root)
    run.live()
    faults = [fault for life in run.first.lives for fault in life.fired]
    run.first.conclude(case.parallelism[0])
    run.savepoints(all_complete=_deletes_worked(faults))
    return run


def _deletes_worked(faults: list[Fault]) -> bool:
    return not any(fault.kind is Kind.ERROR and fault.point == "storage.delete" for fault in faults)


def fails(case: SavepointCase) -> str | None:
    root = tempfile.mkdtemp(prefix="tidegate-savepoints-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    Outside.forget_all()
    try:
        with seeded_tokens(case.seed):
            run = (run_beside if case.command == "savepoint" else run_ending)(case, root)
        fired = [fault for life in run.first.lives for fault in life.fired]
        missed = [fault for fault in (case.fault, case.again) if fault is not None and fault not in fired]
        return f"{case}\n    did not fire: {missed}" if missed and missed != [case.again] else None
    except BaseException as error:
        return f"{case}\n    {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
    finally:
        shutil.rmtree(root, ignore_errors=True)
        close_removed_stores()
