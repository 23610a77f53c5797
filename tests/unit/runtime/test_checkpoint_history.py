"""What a job leaves in its history, and what ``tidegate checkpoints`` and Prometheus make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ScriptedSource
from tests.unit.runtime.small_jobs import SETTINGS, SmallJob
from tidegate.base import faults
from tidegate.base.clock import ManualClock
from tidegate.base.errors import CheckpointError, RestoreError, StorageError
from tidegate.base.files import Files
from tidegate.checkpoint.history import STEPS, CheckpointStatus, HistoryEntry, read_history
from tidegate.cli.checkpoint_list import show
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.graph.transformation import Input, Partitioning, Program, Ship, Transformation
from tidegate.operators.contracts.specs import ReduceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.prometheus import prometheus_text
from tidegate.testing.simulation.engine import SimulatedEngine

TOLERABLE = "execution.checkpointing.tolerable-failed-checkpoints"


class Measuring(SimulatedEngine):
    """Rounds take 20 ms; of each subtask's 8 it has read for 5, waited 2 for barriers, and its state took 1."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(1)
        self._clock = clock

    def run(self, plan: RoundPlan) -> list[Ack]:
        self._clock.advance(20)
        acks = super().run(plan)
        for ack in acks:
            ack.seconds, ack.align_seconds = 0.008, 0.002
            ack.snapshot_seconds = dict.fromkeys(ack.snapshots, 0.001)
            ack.in_flight_bytes, ack.in_flight_records = 30, 3
        return acks


def keyed(job: SmallJob, **settings: Any) -> Program:
    """With a state for each number."""
    source, _, sink = job.program().transformations
    by_itself = Partitioning(Ship.HASH, lambda value: value)
    reduced = Transformation(2, "reduced", ReduceSpec(lambda a, b: a + b), (Input(1, by_itself),))
    where = {"execution.checkpointing.dir": f"{job.directory}/checkpoints"}
    return Program("small", (source, reduced, sink), {**SETTINGS, **where, **settings})


def run(job: SmallJob, **settings: Any) -> JobMaster:
    clock = ManualClock()
    master = JobMaster(keyed(job, **settings), Measuring(clock), clock=clock, local_root=job.local)
    master.run()
    return master


def entries(directory: Path) -> list[HistoryEntry]:
    return read_history(Files(f"{directory}/checkpoints/small"))


@contextmanager
def not_stored(number: int) -> Iterator[None]:
    """The metadata of one checkpoint cannot be written."""

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C4.before-publish" and where["path"] == f"chk-{number}/_metadata":
            raise StorageError("Not stored.", found="disk full")

    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)


@pytest.fixture
def job(tmp_path: Path) -> SmallJob:
    return SmallJob(tmp_path)


def test_every_step_and_operator_is_measured(job: SmallJob, tmp_path: Path) -> None:
    run(job)
    first, *_, last = entries(tmp_path)
    assert tuple(first.steps_ms) == tuple(last.steps_ms) == STEPS
    assert (last.steps_ms["run"], last.steps_ms["align"], last.steps_ms["snapshot"]) == (20, 2, 1)
    named = {figures.name: figures for figures in last.operators.values()}
    assert sorted(named) == ["LedgerSink 'ledger'", "ScriptedSource 'numbers'", "reduced"]
    assert (named["reduced"].run_ms, named["reduced"].align_ms, named["reduced"].snapshot_ms) == (8, 2, 1)
    assert named["LedgerSink 'ledger'"].run_ms == 0  # it runs in the loop of 'reduced'
    assert named["reduced"].in_flight_records == 3
    assert (last.in_flight_bytes, last.in_flight_records) == (60, 6)
    assert named["reduced"].size > 0 == named["ScriptedSource 'numbers'"].size


def test_bytes_of_all_and_of_what_is_new(job: SmallJob, tmp_path: Path) -> None:
    run(job)
    first, second, *_ = entries(tmp_path)
    assert 0 < first.incremental == first.size
    assert 0 < second.incremental < second.size
    assert sum(figures.size for figures in second.operators.values()) < second.size  # and the metadata


@pytest.mark.parametrize(
    ("source", "left"),
    [
        (NumberSequenceSource(1, 10), [7, 4, 1, 0]),
        (CollectionSource(list(range(7))), [4, 1, 0]),
        (DataGeneratorSource(lambda index: index, 8), [5, 2, 0]),
        (DataGeneratorSource(lambda index: index, records_per_second=1000), [0, 2, 9]),  # a record each millisecond
        (DataGeneratorSource(lambda index: index, None), [None]),
        (ScriptedSource([1, 2, 3]), [None]),
    ],
)
def test_sources_know_how_far_they_are_behind(source: Any, left: list[int | None]) -> None:
    enumerator, found = source.create_enumerator(1, None), []
    for now_ms in (0, 5, 15, 15)[: len(left)]:
        enumerator.plan(3, now_ms)
        found.append(enumerator.behind)
    assert found == left


def test_full_checkpoints_are_all_new(job: SmallJob, tmp_path: Path) -> None:
    run(job, **{"execution.checkpointing.incremental": False})
    assert all(entry.incremental == entry.size > 0 for entry in entries(tmp_path))


def test_compressed_state_is_smaller_on_storage(tmp_path: Path) -> None:
    sizes = []
    for compressed in (False, True):
        job = SmallJob(tmp_path / str(compressed), *(f"{number} and a long text" * 20 for number in range(10)))
        run(job, **{"execution.checkpointing.snapshot-compression": compressed})
        sizes.append(entries(tmp_path / str(compressed))[-1].size)
    assert 0 < 2 * sizes[1] < sizes[0]


def test_a_failed_one_has_its_reason_and_comes_before_the_next(job: SmallJob, tmp_path: Path) -> None:
    with not_stored(2):
        master = run(job, **{TOLERABLE: 1})
    failed = entries(tmp_path)[1]
    assert (failed.status, failed.reason) == (CheckpointStatus.FAILED, "STORAGE_FAILED")
    assert "disk full" in failed.message
    assert failed.steps_ms["run"] == 20 and "complete" not in failed.steps_ms
    assert master.view().totals.failed_checkpoints == {"STORAGE_FAILED": 1}


def test_for_prometheus(job: SmallJob) -> None:
    with not_stored(2):
        master = run(job, **{TOLERABLE: 1})
    text = prometheus_text(master.view())
    for line in (
        'tidegate_checkpoint_step_seconds{job_id="small",job_name="small",step="run"} 0.02',
        'tidegate_checkpoint_in_flight_records{job_id="small",job_name="small"} 6.0',
        'tidegate_checkpoints_failed_total{job_id="small",job_name="small",reason="STORAGE_FAILED"} 1.0',
    ):
        assert line in text
    for name in ("incremental_bytes", "operator_size_bytes", "operator_incremental_bytes", "operator_step_seconds"):
        assert f"\ntidegate_checkpoint_{name}{{" in text
    assert 'step="commit"' in text and 'operator="reduced"' in text


# -- tidegate checkpoints ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(job: SmallJob, tmp_path: Path) -> str:
    """A job that has failed for good: the second checkpoint could not be stored."""
    with not_stored(2), pytest.raises(CheckpointError):
        run(job)
    return f"{tmp_path}/checkpoints/small"


def test_as_a_table(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(ended, json=False)
    head, first, second = capsys.readouterr().out.splitlines()
    assert [w for w in head.split() if w not in ("IN", "FLIGHT")] == (
        ["ID", "KIND", "STATUS", "AT", "TOOK", "RUN", "ALIGN", "SNAPSHOT", "COMPLETE", "COMMIT", "BYTES", "NEW"]
    )
    assert first.startswith("1   checkpoint  completed") and first.endswith(f"{ended}/chk-1")
    assert "20 ms" in first
    assert "STORAGE_FAILED: Not stored." in second


def test_one_of_them_operator_by_operator(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(ended, json=False, only=1)
    lines = capsys.readouterr().out.splitlines()
    first = [line.partition("  ")[0] for line in lines if line]
    assert first == ["ID", "1", "OPERATOR", "ScriptedSource 'numbers'", "reduced", "LedgerSink 'ledger'"]
    with pytest.raises(RestoreError, match=r"no checkpoint 9; there are: 1 to 2"):
        show(ended, json=False, only=9)


def test_as_json(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(ended, json=True)
    first, second = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (first["checkpoint_id"], first["kept"]) == (1, f"{ended}/chk-1")
    assert set(first["steps_ms"]) >= {"run", "align", "snapshot", "complete", "commit"}
    assert {figures["name"] for figures in first["operators"].values()} == {
        "ScriptedSource 'numbers'",
        "reduced",
        "LedgerSink 'ledger'",
    }
    assert (second["reason"], second["kept"]) == ("STORAGE_FAILED", None)


def test_without_a_history_what_is_there_is_read(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The driver was killed after step 7: the history was not written."""
    Files(ended).delete("history.json")
    show(ended, json=True)
    [first] = json.loads(capsys.readouterr().out)["checkpoints"]
    assert first["checkpoint_id"] == 1 and first["size"] > 0 and first["trigger_ms"] > 0
