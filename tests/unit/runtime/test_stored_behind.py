"""State files stored behind the rounds: rounds continue meanwhile, and whatever can be restored is on storage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tidegate.base import faults, spooled_files
from tidegate.base.errors import ConfigurationError, FencedError, TidegateError
from tidegate.base.files import Files
from tidegate.base.spooled_files import SpooledFiles
from tidegate.checkpoint.history import CheckpointStatus, read_history
from tidegate.checkpoint.locate import locate
from tidegate.graph.transformation import Input, Partitioning, Program, Ship
from tidegate.graph.transformation import Transformation as Step
from tidegate.operators.contracts.specs import ReduceSpec, SinkSpec, SourceSpec
from tidegate.runtime.commands import StopWithSavepoint
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.state import segments
from tidegate.testing.simulation.engine import SimulatedEngine

PATIENCE_S = 60
NUMBERS = 90
SUMS = sorted([digit, sum(range(digit, n + 1, 10))] for digit in range(10) for n in range(digit, NUMBERS, 10))
RARELY: dict[str, Any] = {"execution.checkpointing.interval": 3_600_000}
BEHIND: dict[str, Any] = {"tidegate.state.upload": "behind"}
RESTARTS: dict[str, Any] = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": 0,
    "restart-strategy.fixed-delay.attempts": 3,
}


class Elsewhere(SimulatedEngine):
    one_host = False


def master(
    place: Path, engine: SimulatedEngine | None = None, *, ends: bool = True, local: str = "", **settings: Any
) -> JobMaster:
    """Sums of numbers by their last digit."""
    numbers = ScriptedSource([[number % 10, number] for number in range(NUMBERS)], ends=ends)
    numbers.initial_limit = numbers.maximum_limit = 3
    by_digit = Partitioning(Ship.HASH, lambda pair: pair[0])
    steps = (
        Step(1, "numbers", SourceSpec(numbers), uid="numbers"),
        Step(2, "sums", ReduceSpec(lambda a, b: [a[0], a[1] + b[1]]), (Input(1, by_digit),), uid="sums"),
        Step(3, "ledger", SinkSpec(LedgerSink(f"{place}/ledger")), (Input(2),), uid="ledger"),
    )
    defaults = {
        "execution.checkpointing.interval": 10,
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "tidegate.job-id": "job",
        "tidegate.state.map-size": 1 << 20,
        "parallelism.default": 2,
        "restart-strategy.type": "none",
    }
    program = Program("job", steps, {**defaults, **settings})
    return JobMaster(
        program, engine or SimulatedEngine(1), local_root=local or f"{place}/local", liveness=lambda owner: False
    )


def committed(place: Path) -> list[Any]:
    return sorted(value for page in ledger_pages(f"{place}/ledger").values() for value in page)


def is_stored(name: str, where: dict[str, Any], place: Path) -> bool:
    """Whether a state file is about to be written to storage."""
    return name == "storage.write" and where["path"].startswith(f"{place}/checkpoints/job/shared/")


def test_rounds_continue_while_state_is_stored(tmp_path: Path) -> None:
    """Every state file waits, half stored, until two more rounds were accepted: had rounds to wait for it, none would be."""
    rounds = threading.Condition()
    accepted, waited = [0], [0]

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C3.acks-in":
            with rounds:
                accepted[0] += 1
                rounds.notify_all()
        elif is_stored(name, where, tmp_path):
            with rounds:
                # The last one waits until there is room for its checkpoint
                target = min(accepted[0] + 2, NUMBERS // 3 - 5)
                waited[0] += 1
                assert rounds.wait_for(lambda: accepted[0] >= target, PATIENCE_S)

    faults.install(hook)
    master(tmp_path, **BEHIND).run()
    assert waited[0] >= 2
    assert committed(tmp_path) == SUMS


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("upload", ["behind", "with-round"])
def test_a_job_of_the_same_id_with_another_directory_is_another_job(tmp_path: Path, upload: str, backend: str) -> None:
    """One starts, runs and ends while files of the other wait on the same host: it touches neither them nor its stores."""
    other, begun = tmp_path / "other", threading.Event()
    settings: dict[str, Any] = {"tidegate.state.upload": upload, "state.backend.type": backend}
    settings["tidegate.state.cache-size"] = 0
    one = master(tmp_path, **settings, **RARELY)

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == "C3.acks-in" and len(one.statistics()) >= 10 and not begun.is_set():
            begun.set()
            master(other, local=f"{tmp_path}/local", **settings, **RARELY).run()

    faults.install(hook)
    one.run()
    assert begun.is_set() and committed(other) == SUMS
    assert committed(tmp_path) == SUMS
    assert (len(one.view().attempts), one.view().totals.rebuilds) == (1, 0)


def test_a_fenced_driver_leaves_the_spool_of_the_driver_that_has_taken_over(tmp_path: Path) -> None:
    """It was about to sweep when it lost its lease, and does so while files of the other wait."""
    first, swept = master(tmp_path, ends=False, **BEHIND, **RARELY), threading.Event()
    second: list[JobMaster] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if name != "C3.acks-in":
            return
        if not second and len(first.statistics()) >= 10:
            second.append(master(tmp_path, **BEHIND, **RARELY))
            second[0].run()
        elif second and len(second[0].statistics()) >= 10 and not swept.is_set():
            swept.set()
            first._job.files.forget_others()

    faults.install(hook)
    with pytest.raises(FencedError):
        first.run()
    assert swept.is_set() and len(second[0].view().attempts) == 1
    assert committed(tmp_path) == SUMS
    assert list((tmp_path / "local").rglob("*.seg")) == []


def test_only_what_checkpoints_refer_to_is_stored(tmp_path: Path) -> None:
    written: list[str] = []
    faults.install(lambda name, where: written.append(where["path"]) if is_stored(name, where, tmp_path) else None)
    master(tmp_path, **BEHIND, **RARELY).run()
    files = len(written)
    assert 1 <= files <= 2 * 10, "the last checkpoint only: what thirty rounds have left, merged in tiers"
    assert committed(tmp_path) == SUMS
    left = Files(f"{tmp_path}/checkpoints/job").list()
    assert [path for path in left if path.startswith("shared/")] == []
    assert Files(f"{tmp_path}/local").list() == []


def test_storage_that_fails_is_a_failed_checkpoint_and_the_next_stores_it(tmp_path: Path) -> None:
    failed: list[str] = []

    def fail(name: str, where: dict[str, Any]) -> None:
        if is_stored(name, where, tmp_path) and len(failed) < 2:
            failed.append(where["path"])
            raise OSError("no storage today")

    faults.install(fail)
    tolerant: dict[str, Any] = {"execution.checkpointing.tolerable-failed-checkpoints": 5}
    master(tmp_path, **BEHIND, **tolerant).run()
    assert failed
    history = read_history(Files(f"{tmp_path}/checkpoints/job"))
    assert [
        entry for entry in history if entry.status is CheckpointStatus.FAILED and "no storage today" in entry.message
    ]
    assert committed(tmp_path) == SUMS


def test_a_savepoint_of_what_is_not_stored_yet(tmp_path: Path) -> None:
    job = StartedJob(master(tmp_path, ends=False, **BEHIND, **RARELY), [])
    path = job.submit(StopWithSavepoint(f"{tmp_path}/savepoints")).answer.result(PATIENCE_S)
    job.result(PATIENCE_S)
    locate(path).check_files()
    recovery: dict[str, Any] = {
        "execution.state-recovery.path": path,
        "tidegate.job-id": "other",
        "parallelism.default": 3,
    }
    master(tmp_path, **recovery).run()
    assert committed(tmp_path) == SUMS


def test_a_lost_spool_costs_what_came_after_the_last_checkpoint(tmp_path: Path) -> None:
    """Somebody deletes the files of a running job: the attempt fails, and the next one begins from storage."""
    lost: list[str] = []

    def lose(name: str, where: dict[str, Any]) -> None:
        if name == "C7.subsumed" and not lost:
            for path in (tmp_path / "local").rglob("shared/*"):
                path.unlink()
                lost.append(path.name)

    faults.install(lose)
    master(tmp_path, **BEHIND, **RESTARTS).run()
    assert lost
    assert committed(tmp_path) == SUMS


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"?" + data[1:], id="its head"),
        pytest.param(lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], id="a block"),
        pytest.param(lambda data: data[:-1] + b"?", id="its end"),
        pytest.param(lambda data: data[: len(data) // 2], id="it is cut off"),
    ],
)
def test_a_damaged_large_file_costs_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    """Large files are read as streams, and checked on the way: here all are."""
    monkeypatch.setattr(segments, "WHOLE_LIMIT", 0)
    monkeypatch.setattr(spooled_files, "KEPT_SIZE", 0)
    damaged: list[str] = []

    def spoil(name: str, where: dict[str, Any]) -> None:
        if name == "C7.subsumed" and not damaged:
            for path in (tmp_path / "local").rglob("shared/*"):
                path.write_bytes(damage(path.read_bytes()))
                damaged.append(path.name)

    faults.install(spoil)
    job = master(tmp_path, **BEHIND, **RESTARTS)
    job.run()
    assert damaged
    assert job.view().exceptions, "nobody has read or stored it"
    assert committed(tmp_path) == SUMS


@pytest.mark.parametrize(
    ("settings", "engine", "behind"),
    [
        ({}, SimulatedEngine, False),
        ({"execution.checkpointing.dir": "memory://somewhere"}, SimulatedEngine, False),
        (BEHIND, SimulatedEngine, True),
        ({**BEHIND, "execution.checkpointing.interval": None}, SimulatedEngine, False),
        ({"tidegate.state.upload": "with-round"}, SimulatedEngine, False),
        ({}, Elsewhere, False),
    ],
)
def test_when_it_is_behind(
    tmp_path: Path, settings: dict[str, Any], engine: type[SimulatedEngine], behind: bool
) -> None:
    files = master(tmp_path, engine(1), **settings)._job.files
    assert isinstance(files, SpooledFiles) is behind


def test_remote_storage_is_behind_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    address: dict[str, Any] = {"execution.checkpointing.dir": f"local://{tmp_path}/checkpoints"}
    assert isinstance(master(tmp_path, **address)._job.files, SpooledFiles)
    assert not isinstance(master(tmp_path, Elsewhere(1), **address)._job.files, SpooledFiles)


def test_so_many_threads_as_the_configuration_says(tmp_path: Path) -> None:
    seven: dict[str, Any] = {"state.backend.rocksdb.checkpoint.transfer.thread.num": 7}
    files = [master(tmp_path, **BEHIND, **settings)._job.files for settings in ({}, seven)]
    assert [f._threads for f in files if isinstance(f, SpooledFiles)] == [4, 7]


def test_not_on_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        master(tmp_path, Elsewhere(1), **BEHIND)
    assert error.value.rule == "State files cannot wait for a checkpoint: tasks and driver share no host"
    assert error.value.where == "tidegate.state.upload"
    assert error.value.cure == "remove the key: on a cluster state files are stored with their round"
    assert isinstance(error.value, TidegateError)
