"""A failure and a restart on Spark, for every pair of mode, backend, kind of checkpoint, changelog and storage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_tools import Count, committed_lines, file_sink, hidden_files

from tidegate.common import Configuration, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.testing.sources import Fail, ScriptedSource

PREFIX = "execution.checkpointing."
CHOICES: dict[str, list[dict[str, Any]]] = {
    "mode": [{PREFIX + "mode": "EXACTLY_ONCE"}, {PREFIX + "mode": "AT_LEAST_ONCE"}],
    "backend": [{"state.backend.type": "hashmap"}, {"state.backend.type": "rocksdb"}],
    "incremental": [{PREFIX + "incremental": True}, {PREFIX + "incremental": False}],
    "changelog": [
        {"state.changelog.enabled": False},
        {"state.changelog.enabled": True, "state.changelog.periodic-materialize.interval": "100 ms"},
    ],
    "storage": [{PREFIX + "storage": "filesystem"}, {PREFIX + "storage": "jobmanager", PREFIX + "dir": None}],
}
Row = tuple[int, ...]


def pairs(row: Row) -> set[tuple[int, int, int, int]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2)}


def cover() -> Iterator[Row]:
    """Few rows with all pairs of choices in them: always the one with most that are new."""
    every = list(itertools.product(*(range(len(choices)) for choices in CHOICES.values())))
    left = set().union(*map(pairs, every))
    while left:
        best = max(every, key=lambda row: (len(pairs(row) & left), row))
        left -= pairs(best)
        yield best


ROWS = list(cover())
ALWAYS = ROWS[:1]
"""With ``make test``; the others are slow."""


def settings(row: Row) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for choices, index in zip(CHOICES.values(), row, strict=True):
        merged |= choices[index]
    return merged


def name(row: Row) -> str:
    return "-".join(
        str(next(iter(choices[index].values()))) for choices, index in zip(CHOICES.values(), row, strict=True)
    )


def test_the_rows_hold_every_pair() -> None:
    every = itertools.product(*(range(len(choices)) for choices in CHOICES.values()))
    assert set().union(*map(pairs, ROWS)) == set().union(*map(pairs, every))
    assert len(ROWS) <= 8


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row in ALWAYS else pytest.mark.slow, id=name(row)) for row in ROWS]
)
def test_a_failure_in_the_middle(spark: Any, tmp_path: Path, row: Row) -> None:
    keys = settings(row)
    configuration = {
        PREFIX + "dir": str(tmp_path / "checkpoints"),
        PREFIX + "interval": "30 ms",
        "tidegate.round.max-records": 40,
        "tidegate.state.local-dir": str(tmp_path / "local"),
        "state.backend.rocksdb.localdir": str(tmp_path / "local"),
        "tidegate.state.cache-size": "0 b",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 3,
        "restart-strategy.fixed-delay.delay": "10 ms",
        **keys,
    }
    given = Configuration.from_dict({key: value for key, value in configuration.items() if value is not None})
    env = StreamExecutionEnvironment.get_execution_environment(given).set_parallelism(2)
    numbers = [number % 10 for number in range(200)]
    script = [*numbers[:120], Fail(str(tmp_path / "failed")), *numbers[120:]]
    stream = env.from_source(ScriptedSource(script), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    stream.key_by(lambda number: number).process(Count()).uid("count").sink_to(file_sink(tmp_path / "out")).uid("sink")
    env.execute()
    found, expected = committed_lines(tmp_path / "out"), [str((n, c)) for n in range(10) for c in range(1, 21)]
    assert (tmp_path / "failed").exists()  # I13
    if keys[PREFIX + "mode"] == "EXACTLY_ONCE":
        assert sorted(found) == sorted(expected)
    else:
        assert set(found) == set(expected)
    assert hidden_files(tmp_path / "out") == []
