"""Stopped with drain: event time finishes before the savepoint, and who resumes from it has an event time of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import simulated_environment
from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import At, ScriptedSource
from tests.waiting import eventually
from tidegate.base.clock import MAX_WATERMARK
from tidegate.checkpoint.locate import locate
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.time import Duration, Time
from tidegate.datastream.window import TumblingEventTimeWindows

BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))


def summing(directory: Path, parallelism: int, steps: list[Any], *, ends: bool = False, path: str | None = None) -> Any:
    """Sums of windows of 10 ms by the number's parity."""
    keys: dict[str, Any] = {
        "execution.checkpointing.interval": "10 ms",
        "parallelism.default": parallelism,
        "execution.state-recovery.path": path,
    }
    env = simulated_environment(directory, **keys)
    numbers = env.from_source(ScriptedSource(steps, ends=ends), BOUNDED, "numbers").uid("numbers")
    pairs = numbers.map(lambda n: (n % 2, n), Types.TUPLE([Types.LONG(), Types.LONG()])).uid("pairs")
    windows = pairs.key_by(lambda pair: pair[0], Types.LONG()).window(
        TumblingEventTimeWindows.of(Time.milliseconds(10))
    )
    windows.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").sink_to(LedgerSink(f"{directory}/ledger")).uid("sink")
    return env.execute_async()


def committed(directory: Path) -> list[Any]:
    return sorted(tuple(value) for page in ledger_pages(f"{directory}/ledger").values() for value in page)


@pytest.mark.parametrize("widths", [(1, 3), (3, 2)])
@pytest.mark.parametrize("drain", [False, True])
def test_drain_fires_what_waits_and_a_resumed_job_continues(
    tmp_path: Path, widths: tuple[int, int], drain: bool
) -> None:
    steps = [At(n, n) for n in range(25)]
    job = summing(tmp_path, widths[0], steps)
    eventually(lambda: len(committed(tmp_path)) >= 2)  # the first window
    path = job.stop_with_savepoint(drain, str(tmp_path / "sp")).result()
    read = locate(path).metadata.operators[0].source[0]
    sums = {(parity, start): 0 for start in (0, 10, 20) for parity in (0, 1)}
    for n in range(read):
        sums[n % 2, n // 10 * 10] += n
    drained = sorted((parity, total) for (parity, _), total in sums.items() if total)
    if drain:
        assert read == 25  # all of it was in the round that the first window came of
        assert committed(tmp_path) == drained
    else:
        assert len(committed(tmp_path)) < len(drained)
    watermarks = [s.watermark for o in locate(path).metadata.operators for s in o.subtasks]
    assert MAX_WATERMARK not in watermarks
    more = [*steps, *(At(n, n) for n in range(40, 45))]
    summing(tmp_path, widths[1], more, ends=True, path=path).get_job_execution_result().result()
    behind = sorted([(0, 40 + 42 + 44), (1, 41 + 43)])
    assert committed(tmp_path) == sorted([*drained, *behind])
