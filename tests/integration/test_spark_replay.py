"""A round that failed on Spark runs again without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import JobFailedError
from tidegate.base.files import Files
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.runtime.failed_round import FailedRound
from tidegate.runtime.replay import Failure, replay

BAD = 7_400


class Totals(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value == BAD:
            raise ValueError("bad")
        self.total.update((self.total.value() or 0) + 1)
        yield self.total.value()


@pytest.mark.usefixtures("spark")
def test_a_round_that_failed_on_spark_runs_again_here(tmp_path: Path) -> None:
    configuration = Configuration()
    settings = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(tmp_path / "jobs"),
        "tidegate.round.max-records": "1000",
        "restart-strategy.type": "none",
        "parallelism.default": "2",
    }
    for key, value in settings.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    source = NumberSequenceSource(0, 19_999)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    totals = numbers.key_by(lambda x: x % 5, key_type=Types.LONG()).process(Totals(), Types.LONG()).name("totals")
    with pytest.raises(JobFailedError):
        list(totals.execute_and_collect("fails"))
    [job] = (tmp_path / "jobs").iterdir()
    found: list[Failure] = []
    assert replay(FailedRound.read(Files(str(job))), str(tmp_path / "work"), found.append)
    assert (found[0].operator, found[0].record, found[0].key) == ("totals", BAD, BAD % 5)
    assert found[0].state["total"] > 100
    assert found[0].line is not None and found[0].line.startswith(__file__)
