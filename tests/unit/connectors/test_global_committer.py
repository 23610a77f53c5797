"""The global committer of a sink: called once for each checkpoint after the committer, and again after a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import CommitError, RetryableCommitError
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    GlobalCommitter,
    Prepared,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.operators.contracts.specs import SinkSpec, SourceSpec
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun


class Pages(Sink):
    """Values travel in the committables. Only the global committer writes the version of the "table". Every call is
    recorded. ``fails``: how often the global commit fails, and how."""

    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(
        self, directory: Path, fails: int = 0, error: Callable[[str], Exception] = RetryableCommitError
    ) -> None:
        self.directory, self.fails, self.error = str(directory), fails, error

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _Page(context.attempt)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _Noting(Path(self.directory))

    def create_global_committer(self, context: CommitterContext) -> GlobalCommitter:
        return _Table(self)


class _Page(SinkWriter):
    def __init__(self, name: str) -> None:
        self._page: dict[str, Any] = {"name": name, "values": []}

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._page["values"] += values

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared([self._page] if self._page["values"] else [])


class _Noting(Committer):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, committables: list[Any]) -> None:
        note(self._directory, f"own {len(committables)}")


class _Table(GlobalCommitter):
    def __init__(self, sink: Pages) -> None:
        self._sink, self._directory = sink, Path(sink.directory)

    def commit(self, committables: list[Any]) -> None:
        note(self._directory, f"global {len(committables)}")
        if self._sink.fails > 0:
            self._sink.fails -= 1
            raise self._sink.error("the table does not answer")
        table = read(self._directory)
        table.update({page["name"]: page["values"] for page in committables})
        (self._directory / "aside").write_text(json.dumps(table))
        (self._directory / "aside").rename(self._directory / "table")

    def close(self) -> None:
        note(self._directory, "closed")


def note(directory: Path, call: str) -> None:
    with open(directory / "calls", "a") as calls:
        calls.write(f"{call}\n")


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


def read(directory: Path) -> dict[str, list[int]]:
    path = directory / "table"
    return json.loads(path.read_text()) if path.exists() else {}


class TestPages(SinkContract):
    def make_sink(self, directory: Path) -> Pages:
        return Pages(directory)

    def visible(self, directory: Path) -> list[Any]:
        return [value for values in read(directory).values() for value in values]


def test_called_once_for_each_checkpoint_after_the_committer(tmp_path: Path) -> None:
    run = SinkRun(Pages(tmp_path), str(tmp_path / "s"), int, parallelism=3)
    run.step(6)
    run.step(6, checkpoint=True)
    run.step(3, checkpoint=True)
    run.step(0, checkpoint=True)
    run.committer.close()
    assert calls(tmp_path) == ["own 6", "global 6", "own 3", "global 3", "own 0", "closed"]


def test_an_error_of_the_global_committer_fails_the_commit(tmp_path: Path) -> None:
    run = SinkRun(Pages(tmp_path, fails=1), str(tmp_path / "s"), int, parallelism=1)
    run.accept(run.attempt(2, checkpoint=True), 2)
    with pytest.raises(RetryableCommitError):
        run.commit()
    assert read(tmp_path) == {}
    run.commit()
    assert calls(tmp_path) == ["own 1", "global 1"] * 2 and list(read(tmp_path).values()) == [[0, 1]]


@pytest.mark.parametrize(("error", "attempts"), [(RetryableCommitError, 1), (CommitError, 2)])
def test_a_job_that_retries_or_restarts_loses_nothing(
    tmp_path: Path, error: Callable[[str], Exception], attempts: int
) -> None:
    numbers = Transformation(1, "numbers", SourceSpec(NumberSequenceSource(0, 19)))
    written = Transformation(2, "sink", SinkSpec(Pages(tmp_path, fails=1, error=error)), (Input(1),))
    settings: dict[str, Any] = {
        "execution.checkpointing.interval": 3_600_000,
        "execution.checkpointing.dir": f"{tmp_path}/checkpoints",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": 0,
        "tidegate.commit.backoff": 1,
        "tidegate.round.max-records": 7,
        "parallelism.default": 2,
    }
    master = JobMaster(
        Program("pages", (numbers, written), settings), SimulatedEngine(seed=1), local_root=f"{tmp_path}/local"
    )
    master.run()
    assert len(master.view().attempts) == attempts
    assert sorted(value for values in read(tmp_path).values() for value in values) == list(range(20))
