"""Five hundred checkpoints: state files do not pile up, neither on storage nor on the host, and each stores few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tests.unit.runtime.small_jobs import SlowRounds
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.files import Files
from tidegate.graph.transformation import Input, Partitioning, Program, Ship
from tidegate.graph.transformation import Transformation as Step
from tidegate.operators.contracts.specs import ReduceSpec, SinkSpec, SourceSpec
from tidegate.runtime.master import JobMaster
from tidegate.state.materialize import FAN_IN

CHECKPOINTS, SUBTASKS = 500, 2
pytestmark = pytest.mark.slow


def run(place: Path, settings: dict[str, Any]) -> None:
    # Not every round may carry a checkpoint
    numbers = ScriptedSource([[number % 10, number] for number in range(2 * CHECKPOINTS + 200)])
    numbers.initial_limit = numbers.maximum_limit = 2
    by_digit = Partitioning(Ship.HASH, lambda pair: pair[0])
    steps = (
        Step(1, "numbers", SourceSpec(numbers)),
        Step(2, "sums", ReduceSpec(lambda a, b: [a[0], a[1] + b[1]]), (Input(1, by_digit),)),
        Step(3, "ledger", SinkSpec(LedgerSink(f"{place}/ledger")), (Input(2),)),
    )
    defaults = {
        "execution.checkpointing.interval": 10,
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "tidegate.job-id": "job",
        "tidegate.state.map-size": 1 << 20,
        "parallelism.default": SUBTASKS,
        "restart-strategy.type": "none",
    }
    clock = ManualClock()
    program = Program("job", steps, {**defaults, **settings})
    JobMaster(program, SlowRounds(clock, 10), clock=clock, local_root=f"{place}/local").run()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tidegate.state.upload": "behind"},
    ],
    ids=["hashmap", "behind"],
)
def test_files_stay_few(tmp_path: Path, settings: dict[str, Any]) -> None:
    storage = Files(f"{tmp_path}/checkpoints/job")
    piled, written = [], [0]

    def look(name: str, where: dict[str, Any]) -> None:
        if name == "storage.written" and where["path"].startswith(f"{storage.root}/shared/"):
            written[0] += 1
        if name == "C7.subsumed":
            piled.append(len(storage.list("shared")))

    faults.install(look)
    run(tmp_path, settings)
    assert len(piled) >= CHECKPOINTS
    # Of a list at most one run in the making, a merged file below it, and what the kept checkpoint had before the merge.
    assert 2 <= max(piled) <= SUBTASKS * 2 * (FAN_IN + 1)
    assert written[0] <= 2 * SUBTASKS * len(piled), "a segment for each subtask, and now and then a merged file"
    assert storage.list("shared") == []
