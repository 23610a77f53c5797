"""A job that promises at-least-once: sinks with prepared transactions commit each round, and do not wait for a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.servers.sql_cases import Target
from tests.sources import ScriptedSource
from tidegate.base import faults
from tidegate.datastream.connectors.postgresql import Table
from tidegate.graph.transformation import Input, Program
from tidegate.graph.transformation import Transformation as Step
from tidegate.operators.contracts.sink import WriterContext
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine
from tidegate.testing.sink_run import Crash, SinkRun, crash_at

ROWS, ROUND = 60, 6
MODES = ("AT_LEAST_ONCE", "EXACTLY_ONCE")


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_there_before_the_first_checkpoint(target: Target, tmp_path: Path, mode: str) -> None:
    """It is the last one, after ten rounds: of these two at most are not committed yet."""
    table = target.new_table()
    numbers = ScriptedSource([(n, f"row {n}") for n in range(ROWS)])
    numbers.initial_limit = numbers.maximum_limit = ROUND
    steps = (
        Step(1, "numbers", SourceSpec(numbers), uid="numbers"),
        Step(2, "rows", SinkSpec(target.sink(Table(table, ["id", "label"], ["id"]))), (Input(1),), uid="rows"),
    )
    configuration = {
        "execution.checkpointing.mode": mode,
        "execution.checkpointing.interval": 3_600_000,
        "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
    }
    seen: list[int] = []
    faults.install(lambda name, where: seen.append(len(target.rows(table))) if name == "C1.triggered" else None)
    try:
        JobMaster(Program("rows", steps, configuration), SimulatedEngine(1), local_root=f"{tmp_path}/local").run()
    finally:
        faults.install(None)
    [before] = seen
    assert before >= ROWS - 3 * ROUND if mode == "AT_LEAST_ONCE" else before == 0
    assert target.rows(table) == [(n, f"row {n}") for n in range(ROWS)]
    assert target.prepared() == []


class PublishingRun(SinkRun):
    """Exactly once until ``publishes``."""

    publishes = False

    def writer_context(self, subtask: int, checkpoint_id: int | None) -> WriterContext:
        return replace(super().writer_context(subtask, checkpoint_id), publishes=self.publishes)


def new_run(target: Target, table: str, tmp_path: Path) -> PublishingRun:
    sink = target.sink(Table(table, ["id", "label"]))
    sink.validate()
    return PublishingRun(sink, str(tmp_path / "staging"), lambda n: (n, f"row {n}"), 2)


def test_what_an_exactly_once_job_has_staged_is_committed_with_the_first_round(target: Target, tmp_path: Path) -> None:
    """And again, if the checkpoint with the staged files is restored once more: they are still there."""
    table = target.new_table("id bigint, label varchar(200)")
    expected: list[tuple[Any, ...]] = [(n, f"row {n}") for n in range(8)]
    run = new_run(target, table, tmp_path)
    run.step(4)
    run.complete()
    assert target.rows(table) == []
    run.publishes = True
    run.step(4)
    run.commit()
    assert target.rows(table) == expected
    run.restore()
    run.step(4)
    run.commit()
    assert target.rows(table) == sorted([*expected, *expected]), "doubled, and none lost"
    run.finish()
    assert target.prepared() == []
    assert list(tmp_path.glob("staging/rows/*")) == []


def test_a_crash_between_the_commits_of_a_round_repeats_some_and_loses_none(target: Target, tmp_path: Path) -> None:
    table = target.new_table("id bigint, label varchar(200)")
    run = new_run(target, table, tmp_path)
    run.publishes = True
    run.step(4)
    fired = crash_at(0, "K3.sql.committed")
    with pytest.raises(Crash):
        run.commit()
    faults.install(None)
    assert fired()
    first = [(n, f"row {n}") for n in (0, 2)]
    assert target.rows(table) == first
    run.restore()
    assert target.prepared() == [], "the other subtask's is rolled back: its records are read again"
    run.step(4)
    run.commit()
    assert target.rows(table) == sorted([*first, *((n, f"row {n}") for n in range(4))])
    run.finish()
    assert target.prepared() == []
