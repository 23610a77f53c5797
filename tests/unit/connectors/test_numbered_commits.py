"""Sinks that commit under the number of a checkpoint, in whole jobs: barriers without records, rounds, another directory."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.connectors.table_contract import ROW, row
from tests.unit.connectors.test_for_each_checkpoint import written_by_id
from tests.unit.connectors.test_own_sinks import Journal, lines
from tidegate.base.errors import JobCancelledError, RoundError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.history import read_history
from tidegate.connectors.frames.for_each_checkpoint import ForEachCheckpointSink
from tidegate.connectors.functions.write_ahead import DatabaseCheckpointCommitter
from tidegate.connectors.staged_file import mark_for, mark_of, with_numbers, without_done
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.graph.transformation import Input, Program, Transformation
from tidegate.operators.contracts.sink import CommitterContext, Sink, WriterContext
from tidegate.operators.contracts.specs import FilterSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import TriggerCheckpoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

COUNT = 60

pytestmark = pytest.mark.usefixtures("lists_instead_of_frames")


class Engine(SimulatedEngine):
    """Run three records per round, with checkpoints in some rounds. A given round fails, or the job is cancelled in one."""

    def __init__(self, fails: int | None = None, stops: int | None = None) -> None:
        super().__init__(seed=1)
        self.rounds, self.fails, self.stops = 0, fails, stops
        self.master: JobMaster | None = None

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self.master is not None
        self.rounds += 1
        if self.rounds % 4 == 2:
            self.master.submit(TriggerCheckpoint())
        if self.rounds == self.stops:
            self.master.cancel()
        acks = super().run(plan)
        if self.rounds == self.fails:
            raise RoundError("The failure of this test")
        return acks


def sparse(number: int) -> bool:
    """Most rounds have no records for the sink, among them those that carry barriers."""
    return number // 3 % 4 == 0


def run_job(
    sink: Sink,
    directory: Path,
    *,
    fails: int | None = None,
    stops: int | None = None,
    mode: str = "EXACTLY_ONCE",
    own: dict[str, str] | None = None,
) -> None:
    numbers = Transformation(1, "numbers", SourceSpec(NumberSequenceSource(0, COUNT - 1)))
    some = Transformation(2, "some", FilterSpec(sparse), (Input(1),))
    written = Transformation(3, "sink", SinkSpec(sink), (Input(2),))
    keys: dict[str, Any] = {
        "execution.checkpointing.interval": 3_600_000,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": 0,
        "tidegate.round.max-records": 3,
        "tidegate.state.map-size": 1 << 20,
        "parallelism.default": 2,
        "tidegate.job-id": "numbered",
        "execution.checkpointing.mode": mode,
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **(own or {}),
    }
    engine = Engine(fails, stops)
    engine.master = JobMaster(
        Program("numbered", (numbers, some, written), keys), engine, local_root=f"{directory}/local"
    )
    with suppress(JobCancelledError):
        engine.master.run()
    assert engine.rounds >= 20 or stops is not None or own


EXPECTED = [number for number in range(COUNT) if sparse(number)]


def read_by_id(directory: Path) -> list[int]:
    return sorted(value for file in directory.glob("checkpoint-*") for value in json.loads(file.read_text()))


@pytest.mark.parametrize("fails", [None, 9, 13])
def test_a_barrier_may_come_without_records(tmp_path: Path, fails: int | None) -> None:
    sink = ForEachCheckpointSink(written_by_id(tmp_path), None, idempotent=True)
    run_job(sink, tmp_path, fails=fails)
    assert read_by_id(tmp_path) == EXPECTED
    assert fails or (tmp_path / "checkpoint-1").exists(), "an id is that of a checkpoint, not of a round"


@pytest.mark.parametrize("fails", [None, 9, 13])
def test_rounds_that_are_committed_at_once_lose_nothing(tmp_path: Path, fails: int | None) -> None:
    sink = ForEachCheckpointSink(written_by_id(tmp_path), None)
    run_job(sink, tmp_path, fails=fails, mode="AT_LEAST_ONCE")
    found = read_by_id(tmp_path)
    assert sorted(set(found)) == EXPECTED and (fails is not None or found == EXPECTED)


def check_a_job_that_begins_anew(
    make: Callable[[], Sink], read: Callable[[], list[int]], tmp_path: Path, mode: str
) -> None:
    run_job(make(), tmp_path, fails=13, mode=mode)
    found = read()
    assert sorted(set(found)) == EXPECTED and (mode == "AT_LEAST_ONCE" or sorted(found) == EXPECTED)
    shutil.rmtree(tmp_path / "checkpoints")
    run_job(make(), tmp_path, mode=mode)
    assert len(read()) == len(found) + len(EXPECTED), "what the first run has committed is not the second's"


@pytest.mark.slow  # as every test that loads deltalake
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_the_same_of_delta_tables_and_of_a_job_that_begins_anew(tmp_path: Path, mode: str) -> None:
    from tests.unit.connectors.test_delta_sink import delta
    from tidegate.connectors.tables.delta import DeltaSink

    class Rows(_ToRows, DeltaSink):
        pass

    def read() -> list[int]:
        return delta().DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["n"].to_pylist()  # type: ignore[no-any-return]

    check_a_job_that_begins_anew(lambda: Rows(str(tmp_path / "table"), ROW), read, tmp_path, mode)


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_the_same_of_iceberg_tables_and_of_a_job_that_begins_anew(tmp_path: Path, mode: str) -> None:
    from tests.unit.connectors.test_iceberg_sink import NAME, numbers_in, properties
    from tidegate.connectors.tables.iceberg import IcebergSink

    class Rows(_ToRows, IcebergSink):
        pass

    def make() -> Sink:
        return Rows("lake", NAME, ROW, catalog_properties=properties(tmp_path))

    check_a_job_that_begins_anew(make, lambda: numbers_in(tmp_path), tmp_path, mode)


class _ToRows:
    """The operators before a sink of tables."""

    def create_writer(self, context: WriterContext, state: list[Any]) -> Any:
        return _Rows(super().create_writer(context, state))  # type: ignore[misc]


class _Rows:
    """Turn numbers into rows."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.prepare_commit, self.abort, self.close = writer.prepare_commit, writer.abort, writer.close

    def write_batch(self, values: list[int], timestamps: Any) -> None:
        self._writer.write_batch([row(value) for value in values], timestamps)


def test_numbers_come_from_the_next_barrier() -> None:
    def item(round: int, checkpoint: int | None) -> dict[str, Any]:
        return {"round": round, "checkpoint": checkpoint}

    every = [item(1, None), item(2, 4), item(3, None), item(4, None), item(5, 6), item(5, 6)]
    numbered = with_numbers(every)
    assert [number for number, _ in numbered] == [4, 4, 6, 6, 6, 6]
    assert list(without_done(4, numbered)) == every[2:] and list(without_done(None, numbered)) == every
    assert [number for number, _ in with_numbers([item(7, None), item(9, None)])] == [9, 9]


def test_a_new_directory_gets_a_new_mark(tmp_path: Path) -> None:
    staging = str(tmp_path / "staging")
    committer = CommitterContext("job", "sink", staging)
    writer = WriterContext("job", "sink", 0, 1, 1, None, "a", 0, staging)
    with pytest.raises(StorageError, match="The mark of a sink's staging directory is missing"):
        mark_of(writer)
    first = mark_for(committer)
    assert first == mark_for(committer) == mark_of(writer)
    shutil.rmtree(staging)
    assert mark_for(committer) == mark_of(writer) != first


def test_a_database_distinguishes_a_job_that_begins_anew_from_the_former_job(tmp_path: Path) -> None:
    """The directory of the job was deleted, so its attempts and rounds have the former numbers again."""
    path = str(tmp_path / "confirmations.db")
    committer = DatabaseCheckpointCommitter(lambda: sqlite3.connect(path, timeout=60), "?")
    for times in (1, 2):
        run_job(Journal(tmp_path / "journal", committer), tmp_path)
        assert Counter(lines(tmp_path / "journal")) == dict.fromkeys(EXPECTED, times)
        shutil.rmtree(tmp_path / "checkpoints")


@pytest.mark.parametrize("fails", [None, 1, 9])
def test_a_job_that_continues_in_another_directory_reuses_no_id(tmp_path: Path, fails: int | None) -> None:
    """Output of the first job under an id is neither overwritten nor taken for output of the second job."""
    sink = ForEachCheckpointSink(written_by_id(tmp_path), None, idempotent=True)
    run_job(sink, tmp_path, stops=13)
    first = {int(file.name.partition("-")[2]): file.read_text() for file in tmp_path.glob("checkpoint-*")}
    [latest] = (tmp_path / "checkpoints" / "numbered").glob("chk-*")
    assert 0 < len(read_by_id(tmp_path)) < len(EXPECTED) and first
    own = {"execution.state-recovery.path": str(latest), "tidegate.job-id": "second"}
    run_job(sink, tmp_path, fails=fails, own=own)
    assert read_by_id(tmp_path) == EXPECTED
    assert {number: (tmp_path / f"checkpoint-{number}").read_text() for number in first} == first
    history = read_history(Files(str(tmp_path / "checkpoints" / "second")))
    assert min(entry.checkpoint_id for entry in history) > int(latest.name[4:])
