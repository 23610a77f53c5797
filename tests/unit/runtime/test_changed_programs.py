"""A job is resumed elsewhere by a program that has changed, with other settings: from a savepoint and from a copy of its directory.

What it was before is gone: its checkpoint directory, its local stores, its driver."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.executor import simulated_environment
from tests.sources import ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import JobCancelledError, RestoreError
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.runtime.commands import TriggerCheckpoint

BEFORE, ALL, KEYS = 30, 60, 4
PATIENCE_S = 120


class Adding(KeyedProcessFunction):
    """Adds to each record what its key has come to: how many there were, or their sum."""

    def __init__(self, counts: bool) -> None:
        self._counts = counts

    def open(self, runtime_context: Any) -> None:
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        total = (self._total.value() or 0) + (1 if self._counts else value[0])
        self._total.update(total)
        yield (*value, total)


@dataclass(frozen=True)
class Shape:
    """How the program is built. ``steps``: name, whether it counts; in their order."""

    steps: tuple[tuple[str, bool], ...] = (("count", True), ("sum", False))
    names: str = ""
    chains: bool = True
    plain: bool = True
    """With an operator that has no state."""
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    parallelism: int = 2


COUNT, SUM, NEW = ("count", True), ("sum", False), ("new", True)
SHAPES = {
    "the same": Shape(),
    "renamed": Shape(names="other "),
    "chained otherwise": Shape(chains=False),
    "an operator more": Shape(steps=(COUNT, NEW, SUM)),
    "one without state less": Shape(plain=False),
    "moved": Shape(steps=(SUM, COUNT)),
    "another backend": Shape(settings={"state.backend.type": "rocksdb"}),
    "with a changelog": Shape(settings={"state.changelog.enabled": True}),
    "all at once": Shape((SUM, NEW, COUNT), "other ", False, False, {"state.backend.type": "rocksdb"}, 3),
    **{f"parallelism {n}": Shape(parallelism=n) for n in (1, 3, 8)},
}


def build(env: StreamExecutionEnvironment, shape: Shape, numbers: range, *, ends: bool) -> Any:
    source = ScriptedSource(list(numbers), ends=ends)
    source.initial_limit = source.maximum_limit = 7
    stream: Any = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).uid("numbers")
    if shape.plain:
        stream = stream.map(lambda n: n).uid("plain")
    stream = stream.map(lambda n: (n,)).uid("tuples")
    for name, counts in shape.steps:
        keyed = stream.key_by(lambda v: v[0] % KEYS, Types.LONG())  # the same keys: their order is promised
        stream = keyed.process(Adding(counts)).uid(name).name(f"{shape.names}{name}")
        stream = stream if shape.chains else stream.disable_chaining()
    return stream


def expected(shape: Shape) -> list[tuple[int, ...]]:
    """What the resumed job puts out: steps it has from before continue, new ones begin with nothing."""
    totals: Counter[tuple[str, int]] = Counter()
    rows: list[tuple[int, ...]] = []
    for n in range(ALL):
        row: tuple[int, ...] = (n,)
        for step in shape.steps:
            name, counts = step
            if n >= BEFORE or step is not NEW:
                totals[name, n % KEYS] += 1 if counts else n
            row = (*row, totals[name, n % KEYS])
        rows.append(row)
    return sorted(rows[BEFORE:])


def environment(directory: Path, job_id: str, **keys: Any) -> StreamExecutionEnvironment:
    configuration = {
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "tidegate.job-id": job_id,
        "pipeline.max-parallelism": 16,
        "parallelism.default": 2,
        **keys,
    }
    return simulated_environment(directory, workers=2, **configuration)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``savepoint`` and ``job/chk-<n>`` of a job that was cancelled after thirty numbers, in a directory of their own."""
    first, kept = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("kept")
    env = environment(first, "first")
    build(env, Shape(), range(BEFORE), ends=False).print()
    job: Any = env.execute_async("first")._job
    eventually(lambda: job.view().totals.records == BEFORE)
    job.submit(TriggerCheckpoint()).answer.result(PATIENCE_S)
    savepoint = job.trigger_savepoint(f"{first}/savepoints").result(PATIENCE_S)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.result(PATIENCE_S)
    shutil.move(savepoint, kept / "savepoint")
    shutil.copytree(first / "checkpoints" / "first", kept / "job")
    shutil.rmtree(first)
    return kept


def from_savepoint(kept: Path) -> str:
    return str(kept / "savepoint")


def from_checkpoint(kept: Path) -> str:
    return str(max((kept / "job").glob("chk-*"), key=lambda path: int(path.name[4:])))


def resume(shape: Shape, path: str, directory: Path, **keys: Any) -> list[tuple[int, ...]]:
    keys = {
        **shape.settings,
        "execution.state-recovery.path": path,
        "parallelism.default": shape.parallelism,
        **keys,
    }
    with build(environment(directory, "second", **keys), shape, range(ALL), ends=True).execute_and_collect() as rows:
        return sorted(rows)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("where", [from_savepoint, from_checkpoint])
@pytest.mark.parametrize("name", SHAPES)
def test_resumed(name: str, where: Callable[[Path], str], left_behind: Path, tmp_path: Path) -> None:
    before = contents(left_behind)
    assert resume(SHAPES[name], where(left_behind), tmp_path) == expected(SHAPES[name])
    assert contents(left_behind) == before, "byte for byte"


@pytest.mark.parametrize("where", [from_savepoint, from_checkpoint])
def test_an_operator_with_state_is_removed(where: Callable[[Path], str], left_behind: Path, tmp_path: Path) -> None:
    less = Shape(steps=(COUNT,))
    with pytest.raises(RestoreError, match=r"operator 'sum' \(uid sum; states: total\) is not in the program"):
        resume(less, where(left_behind), tmp_path)
    allowed = {"execution.state-recovery.ignore-unclaimed-state": True}
    assert resume(less, where(left_behind), tmp_path, **allowed) == expected(less)
