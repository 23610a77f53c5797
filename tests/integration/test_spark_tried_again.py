"""Spark runs a stage again because shuffle files are lost: the round is good, and what the first run left outside is aborted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tidegate.base.hashing import new_token
from tidegate.common import WatermarkStrategy
from tidegate.datastream import MapFunction
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.operators.contracts.sink import Committer, CommitterContext, Prepared, Sink, SinkWriter, WriterContext

COUNT = 40_000


class LosesShuffleFiles(MapFunction):
    """Once, before the task has read them all; and it leaves a paper in the drawer, as a writer may have done by then."""

    def __init__(self, drawer: str) -> None:
        self._drawer = drawer

    def open(self, runtime_context: Any) -> None:
        done = Path(self._drawer).with_name("lost")
        if not done.exists():
            done.touch()
            Path(self._drawer, "forgotten").touch()
            for place in os.environ["SPARK_LOCAL_DIRS"].split(","):  # those of this JVM
                for path in Path(place).rglob("shuffle_*.data"):
                    path.unlink()

    def map(self, value: Any) -> Any:
        return value


class Drawer(Sink):
    """A writer leaves a paper in the drawer."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return Paper(Path(self.directory) / f"{context.round}-{new_token()}")

    def create_committer(self, context: CommitterContext) -> Committer:
        return Clerk(Path(self.directory))


class Paper(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        path.touch()

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._count += len(values)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared([[self._path.name, self._count]])


class Clerk(Committer):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _log(self, *what: Any) -> None:
        with open(self._directory.parent / "log", "a") as log:
            print(*what, file=log)

    def commit(self, committables: list[Any]) -> None:
        for name, count in committables:
            self._log("committed", name, count)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        kept = {name for name, _ in committables}
        for path in self._directory.iterdir():
            if path.name not in kept:
                self._log("aborted", path.name)
                path.unlink()


def test_a_stage_that_is_run_again_leaves_nothing(make_env: Any, tmp_path: Path) -> None:
    (tmp_path / "drawer").mkdir()
    env = make_env({"execution.checkpointing.interval": "1 h", "tidegate.chunk.records": 100})
    numbers = env.from_source(NumberSequenceSource(1, COUNT), WatermarkStrategy.no_watermarks(), "numbers")
    texts = numbers.map(lambda number: f"{number:0200}")  # more than fits into what lies between Spark and its worker
    lost = texts.map(LosesShuffleFiles(str(tmp_path / "drawer"))).set_parallelism(1)
    lost.sink_to(Drawer(tmp_path / "drawer")).set_parallelism(1)
    env.execute()
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert (tmp_path / "lost").exists()
    first = next(n for n, line in enumerate(log) if line[0] == "committed")
    aborted = {line[1] for line in log[:first]}
    assert "forgotten" in aborted  # before the round is committed: not at the end of the job
    assert aborted.isdisjoint(line[1] for line in log if line[0] == "committed")
    assert sum(int(line[2]) for line in log if line[0] == "committed") == COUNT
