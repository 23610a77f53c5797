"""The figures of a job on real Spark, while it runs and from storage after its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.integration.job_tools import file_sink
from tidegate.base.files import Files
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.runtime.stored_view import read_view

COUNT = 20_000


class Counts(KeyedProcessFunction):
    """Slow for every record: the subtask with the hot key has most of them."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + min(1, sum(range(1000))))
        yield f"{ctx.get_current_key()} {self.count.value()}"


def test_figures_of_a_skewed_job_name_the_subtask_and_the_key(make_env: Any, tmp_path: Path) -> None:
    env = make_env({"execution.checkpointing.interval": "1 s", "tidegate.round.max-records": COUNT // 4})
    numbers = env.from_source(NumberSequenceSource(1, COUNT), WatermarkStrategy.no_watermarks(), "numbers")
    names = numbers.map(lambda n: "hot" if n % 5 else f"key {n}", Types.STRING())
    names.key_by(lambda name: name, Types.STRING()).process(Counts(), Types.STRING()).name("counts").sink_to(
        file_sink(tmp_path / "out")
    )
    job = env._start("figures")
    job.result()
    view = job.view()

    assert {subtask.host for subtask in view.subtasks} == {os.uname().nodename}
    sources, counts = ([s for s in view.subtasks if s.chain == chain] for chain in (0, 1))
    assert sum(s.records_in for s in sources) == sum(s.records_in for s in counts) == COUNT
    assert sum(s.bytes_out for s in sources) == sum(s.bytes_in for s in counts) > COUNT
    assert [s.lag for s in (*sources, *counts)] == [0, 0, None, None]
    assert all(abs(s.busy + s.back_pressured + s.idle - 1) < 1e-6 and s.idle > 0 for s in view.subtasks)

    operator = next(o for o in view.operators if o.name == "counts")
    (hot,) = operator.heavy_keys
    assert hot.key == "'hot'"
    assert 0.7 < hot.share < 0.9
    busy, waiting = counts[hot.subtask], counts[1 - hot.subtask]
    assert busy.records_in > 3 * waiting.records_in
    assert busy.busy > waiting.busy
    assert busy.back_pressured < waiting.back_pressured
    assert list(operator.states) == ["count"]
    assert operator.state_bytes == sum(s.state_bytes for s in counts) > 0

    rounds = [round.parts for round in view.rounds]
    assert all(parts["user"] > parts["pack"] for parts in rounds), "the function is slow"
    assert all(parts["schedule"] > 0 and parts["accept"] > 0 for parts in rounds)
    figures = [each for each in view.checkpoints[-1].subtasks if each.operator == operator.id]
    assert [each.subtask for each in figures] == [0, 1]
    assert all(each.run_ms > 0 and each.acknowledged_ms for each in figures)

    stored = read_view(Files(job.directory))
    assert stored is not None
    assert stored.view.subtasks == view.subtasks
    assert stored.view.checkpoints[-1].subtasks == view.checkpoints[-1].subtasks
    assert stored.view.environment == view.environment
    assert view.environment["master"].startswith("local")
