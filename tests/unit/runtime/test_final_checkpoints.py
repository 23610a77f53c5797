"""Sources that end: checkpoints continue beside them, a last one commits the rest; and what a job does without."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import Fail, ScriptedSource
from tests.unit.runtime.small_jobs import SETTINGS
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, ProgramError, RefusedError
from tidegate.base.faults import Killed
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, read_history
from tidegate.checkpoint.policy import CheckpointPolicy
from tidegate.graph.transformation import Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import ReduceSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import Command, StopWithSavepoint, TriggerCheckpoint, TriggerSavepoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.guarantee import guarantee_of
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

SWITCH = "execution.checkpointing.checkpoints-after-tasks-finish"
OFF: dict[str, Any] = {SWITCH: False}
RESTARTS: dict[str, Any] = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 5}
SHORT, LONG = range(3), range(3, 24)


class Rounds(SimulatedEngine):
    """Rounds take 6 ms, so every second one carries a checkpoint. ``tell``: commands by the round they come with."""

    def __init__(self, clock: ManualClock, tell: dict[int, Command[Any]]) -> None:
        super().__init__(1)
        self.clock, self.tell, self.rounds = clock, tell, list[RoundPlan]()
        self.master: JobMaster

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.rounds.append(plan)
        self.clock.advance(6)
        if len(self.rounds) in self.tell:
            self.master.submit(self.tell[len(self.rounds)])
        return super().run(plan)


def program(
    directory: Path, *extra: Any, short: range = SHORT, ends: bool = True, parallelism: int = 1, **settings: Any
) -> Program:
    """A source of three numbers and one of twenty-one, three in a round each. A number that came twice would add up."""
    sources = []
    for number, (name, source) in enumerate(
        [("short", ScriptedSource(list(short))), ("long", ScriptedSource([*range(short.stop, 24), *extra], ends=ends))],
        start=1,
    ):
        source.initial_limit = source.maximum_limit = 3
        sources.append(Transformation(number, name, SourceSpec(source), parallelism=parallelism, uid=name))
    by_itself = Partitioning(Ship.HASH, lambda value: value)
    counted = Transformation(
        3, "sum", ReduceSpec(lambda a, b: a + b), (Input(1, by_itself), Input(2, by_itself)), parallelism, uid="sum"
    )
    sink = Transformation(
        4, "ledger", SinkSpec(LedgerSink(f"{directory}/ledger")), (Input(3),), parallelism, uid="sink"
    )
    where = {"execution.checkpointing.dir": f"{directory}/checkpoints"}
    return Program("small", (*sources, counted, sink), {**SETTINGS, **where, **settings})


def master_of(made: Program, directory: Path, tell: dict[int, Command[Any]] | None = None) -> JobMaster:
    clock = ManualClock()
    engine = Rounds(clock, tell or {})
    engine.master = JobMaster(made, engine, clock=clock, local_root=f"{directory}/local", liveness=lambda owner: False)
    return engine.master


def committed(directory: Path) -> list[int]:
    return sorted(value for page in ledger_pages(f"{directory}/ledger").values() for value in page)


def completed_ids(directory: Path) -> list[int]:
    entries = read_history(Files(f"{directory}/checkpoints/small"))
    return [entry.checkpoint_id for entry in entries if entry.status is CheckpointStatus.COMPLETED]


# -- on ----------------------------------------------------------------------------------------------------------------------


def test_checkpoints_continue_beside_a_source_that_has_ended(tmp_path: Path) -> None:
    master_of(program(tmp_path), tmp_path).run()
    assert committed(tmp_path) == [*SHORT, *LONG]
    assert len(completed_ids(tmp_path)) >= 2


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_restored_from_a_checkpoint_with_a_finished_source(tmp_path: Path, parallelism: int) -> None:
    """Killed long after the end of the short one, and started again, maybe wider: its numbers are not read again."""
    master = master_of(program(tmp_path), tmp_path)

    def die(name: str, where: dict[str, Any]) -> None:
        if name == "C6.all-committed" and where["checkpoint_id"] == 1:
            raise Killed

    faults.install(die)
    with pytest.raises(Killed):
        master.run()
    faults.install(None)
    before = committed(tmp_path)
    assert set(SHORT) <= set(before) and len(before) < 24
    second = master_of(program(tmp_path, parallelism=parallelism), tmp_path)
    second.run()
    assert second.view().attempts[0].restored > 0
    assert committed(tmp_path) == [*SHORT, *LONG]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_restarted_after_the_end_of_a_source(tmp_path: Path, parallelism: int) -> None:
    fails = Fail(str(tmp_path))
    made = program(tmp_path, fails, 24, 25, 26, parallelism=parallelism, **RESTARTS)
    master = master_of(made, tmp_path)
    master.run()
    assert len(master.view().attempts) == 2
    assert committed(tmp_path) == [*SHORT, *LONG, 24, 25, 26]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_bounded_source_beside_one_without_end(tmp_path: Path, parallelism: int) -> None:
    """Stopped with a savepoint long after the end of the short one, and resumed, maybe wider."""
    stop = StopWithSavepoint(f"{tmp_path}/savepoint")
    master_of(program(tmp_path, ends=False), tmp_path, {4: stop}).run()
    assert set(SHORT) <= set(committed(tmp_path)) < {*SHORT, *LONG}
    settings: dict[str, Any] = {"execution.state-recovery.path": stop.answer.result(), "tidegate.job-id": "resumed"}
    again = master_of(program(tmp_path, parallelism=parallelism, **settings), tmp_path)
    again.run()
    assert again.view().attempts[0].restored > 0
    assert committed(tmp_path) == [*SHORT, *LONG]


# -- off ---------------------------------------------------------------------------------------------------------------------


def test_without_it_none_is_taken_after_the_end_of_a_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    master = master_of(program(tmp_path, **OFF), tmp_path)
    master.run()
    assert completed_ids(tmp_path) == []  # the short one has ended in the first round
    assert committed(tmp_path) == []
    assert "output of LedgerSink 'sink' since the last checkpoint is not committed but aborted" in caplog.text
    assert "execution.checkpointing.checkpoints-after-tasks-finish is false" in caplog.text
    assert list((tmp_path / "ledger").rglob("*prepared*")) == []


def test_without_it_what_was_committed_before_stays(tmp_path: Path) -> None:
    """Checkpoints until the first source ends, whole ones, and nothing of what comes after."""
    master_of(program(tmp_path, short=range(12), **OFF), tmp_path).run()
    assert completed_ids(tmp_path) == [1]
    there = committed(tmp_path)
    assert there and set(there) < {*range(24)}
    assert [number for number in there if number >= 12] == list(range(12, 12 + len(there) // 2))


def test_without_it_a_job_that_had_finished_is_not_run_again(tmp_path: Path) -> None:
    master_of(program(tmp_path, **OFF), tmp_path).run()
    again = master_of(program(tmp_path, **OFF), tmp_path)
    again.run()
    assert again.view().finished_before
    assert committed(tmp_path) == []


def test_without_it_a_failure_after_the_end_reads_all_again(tmp_path: Path) -> None:
    made = program(tmp_path, Fail(str(tmp_path)), 24, **OFF, **RESTARTS)
    master = master_of(made, tmp_path)
    master.run()
    assert [attempt.restored for attempt in master.view().attempts] == [0, 0]
    assert committed(tmp_path) == []


def test_without_it_nobody_gets_a_checkpoint_or_a_savepoint_after_the_end(tmp_path: Path) -> None:
    checkpoint, savepoint = TriggerCheckpoint(), TriggerSavepoint(f"{tmp_path}/savepoint")
    master_of(program(tmp_path, **OFF), tmp_path, {2: checkpoint, 3: savepoint}).run()
    with pytest.raises(CheckpointError, match=r"a source has ended, and execution\.checkpointing\.checkpoints-after"):
        checkpoint.answer.result()
    with pytest.raises(RefusedError, match=r"a source has ended, and execution\.checkpointing\.checkpoints-after"):
        savepoint.answer.result()


def test_without_it_at_least_once_loses_nothing(tmp_path: Path) -> None:
    """Output does not wait for checkpoints."""
    mode: dict[str, Any] = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}
    master_of(program(tmp_path, **OFF, **mode), tmp_path).run()
    assert committed(tmp_path) == [*SHORT, *LONG]


def test_the_guarantee_says_so_and_may_be_asked_for(tmp_path: Path) -> None:
    master = master_of(program(tmp_path, **OFF), tmp_path)
    found = guarantee_of(master.graph, CheckpointPolicy(100, after_finish=False))
    assert str(found).startswith("at-most-once (execution.checkpointing.checkpoints-after-tasks-finish is false")
    assert found.cure == "execution.checkpointing.checkpoints-after-tasks-finish: true"
    required: dict[str, Any] = {"tidegate.require-guarantee": "exactly-once"}
    with pytest.raises(ProgramError, match="never committed"):
        master_of(program(tmp_path, **OFF, **required), tmp_path).prepare()
