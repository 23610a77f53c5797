"""A failure and a restart on Spark, for every pair of mode, backend, kind of checkpoint, changelog, storage, files and upload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.job_tools import Count, committed_lines, file_sink, hidden_files
from tests.sources import Fail, ScriptedSource
from tidegate.common import Configuration, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment

PREFIX = "execution.checkpointing."
CHOICES: dict[str, dict[str, dict[str, Any]]] = {
    "mode": {
        "exactly-once": {PREFIX + "mode": "EXACTLY_ONCE"},
        "at-least-once": {PREFIX + "mode": "AT_LEAST_ONCE"},
        "unaligned": {PREFIX + "mode": "EXACTLY_ONCE", PREFIX + "unaligned.enabled": True},
    },
    "backend": {name: {"state.backend.type": name} for name in ("hashmap", "rocksdb")},
    "incremental": {"incremental": {PREFIX + "incremental": True}, "full": {PREFIX + "incremental": False}},
    "changelog": {
        "plain": {"state.changelog.enabled": False},
        "changelog": {"state.changelog.enabled": True, "state.changelog.periodic-materialize.interval": "100 ms"},
    },
    "storage": {
        "filesystem": {PREFIX + "storage": "filesystem"},
        "memory": {PREFIX + "storage": "jobmanager", PREFIX + "dir": None},
    },
    "files": {name: {PREFIX + "snapshot-compression": name == "compressed"} for name in ("as-they-are", "compressed")},
    "upload": {name: {"tidegate.state.upload": name} for name in ("with-round", "behind")},
}
Row = tuple[str, ...]


def pairs(row: Row) -> set[tuple[int, str, int, str]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2)}


def cover() -> Iterator[Row]:
    """Few rows with all pairs of choices in them: always the one with most that are new."""
    every = list(itertools.product(*CHOICES.values()))
    left = set().union(*map(pairs, every))
    while left:
        best = max(every, key=lambda row: (len(pairs(row) & left), row))
        left -= pairs(best)
        yield best


ROWS = list(cover())
ALWAYS = [row for row in ROWS if row[0] == "exactly-once" and row[-1] == "behind"]
"""With ``make test``; the others are slow."""


def settings(row: Row) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for choices, name in zip(CHOICES.values(), row, strict=True):
        merged |= choices[name]
    return merged


def test_the_rows_hold_every_pair() -> None:
    every = itertools.product(*CHOICES.values())
    assert set().union(*map(pairs, ROWS)) == set().union(*map(pairs, every))
    assert len(ROWS) <= 8


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row in ALWAYS else pytest.mark.slow, id="-".join(row)) for row in ROWS]
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
    assert [path for path in (tmp_path / "local").rglob("*") if path.is_file()] == []
