"""Where all output waits for checkpoints, a job with little to do makes no rounds between them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base.clock import ManualClock
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.operators.contracts.specs import SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.view import JobView
from tidegate.testing.simulation.engine import SimulatedEngine


class Timed(SimulatedEngine):
    """Rounds take 20 ms, of which each task is busy for ``busy_ms``."""

    def __init__(self, clock: ManualClock, busy_ms: float) -> None:
        super().__init__(seed=0)
        self._clock, self._busy_ms = clock, busy_ms

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._clock.advance(20)
        acks = super().run(plan)
        for ack in acks:
            ack.seconds = self._busy_ms / 1000
        return acks


def ended(directory: Path, *, sink: Any = None, busy_ms: float = 5, **settings: Any) -> JobView:
    """After 400 records at 100 a second, with a checkpoint a second."""
    program = SmallJob(directory, sink=sink).program(**{"execution.checkpointing.interval": 1000, **settings})
    paced = SourceSpec(DataGeneratorSource(lambda index: index, 400, records_per_second=100))
    source, *rest = program.transformations
    program = dataclasses.replace(program, transformations=(dataclasses.replace(source, spec=paced), *rest))
    clock = ManualClock()
    master = JobMaster(program, Timed(clock, busy_ms), clock=clock, local_root=f"{directory}/local")
    master.run()
    return master.view()


def test_every_round_is_that_of_a_checkpoint(tmp_path: Path) -> None:
    view = ended(tmp_path)
    assert sum(r.records_in for r in view.rounds) == 400
    between = [r for r in view.rounds if r.checkpoint_id is None]
    assert len(between) <= 1  # after the first, which had no round before it to be measured by
    assert 4 <= len(view.checkpoints) <= 7


@pytest.mark.parametrize(
    "other",
    [
        {"sink": DiscardingSink()},  # what it does could be seen at once
        {"busy_ms": 400},  # shared out, the work of the checkpoint's round is smaller
        {"tidegate.round.target-time": 50},  # the rest ends with the target time, whatever the interval is
    ],
)
def test_rounds_continue_otherwise(tmp_path: Path, other: dict[str, Any]) -> None:
    view = ended(tmp_path, **other)
    assert len([r for r in view.rounds if r.checkpoint_id is None]) > 10
