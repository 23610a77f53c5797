"""Checkpoint storage on S3: files, exclusive publication by conditional put, and a job that crashes and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from object_storage import s3

from tidegate.checkpoint.history import read_history
from tidegate.common import faults
from tidegate.common.errors import CorruptFileError, StorageError
from tidegate.common.files import Files
from tidegate.common.ids import new_token
from tidegate.graph.transformation import Input, Partitioning, Program, ReduceSpec, Ship, SinkSpec, SourceSpec
from tidegate.graph.transformation import Transformation as Step
from tidegate.runtime.master import JobMaster
from tidegate.testing.observer import ledger_pages
from tidegate.testing.simulated_engine import SimulatedEngine
from tidegate.testing.sinks import LedgerSink
from tidegate.testing.sources import ScriptedSource

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    for needed in ("moto", "s3fs"):
        pytest.importorskip(needed, reason="make s3 installs it")
    with s3() as address:
        yield address


@pytest.fixture
def files(bucket: str) -> Files:
    return Files(f"{bucket}/{new_token()}")


def test_files(files: Files) -> None:
    files.check_writable()
    assert files.list() == []
    handle = files.write("shared/a", b"abc")
    assert files.read(handle) == b"abc"
    with pytest.raises(StorageError, match="must be able to write"):
        files.write("shared/a", b"abd")
    files.replace("live.json", b"1")
    files.replace("live.json", b"22")
    assert files.read_bytes("live.json") == b"22"
    assert (files.size("live.json"), files.size_if_exists("none"), files.read_if_exists("none")) == (2, None, None)
    files.rename("live.json", "moved")
    with pytest.raises(FileExistsError):
        files.rename("moved", "shared/a")
    assert (files.list(), files.list_names()) == (["moved", "shared/a"], ["moved", "shared"])
    with pytest.raises(CorruptFileError, match="no such file"):
        files.read_bytes("none")
    files.delete("none")
    files.delete_tree("shared")
    assert files.list() == ["moved"]


def test_a_stream_shows_nothing_before_its_end(files: Files) -> None:
    with files.create_stream("large") as stream:
        for _ in range(7):
            stream.write(b"x" * (1 << 20))
        assert files.list() == []
        handle = stream.close()
    assert (handle.size, files.size("large")) == (7 << 20, 7 << 20)
    with files.create_stream("dropped") as stream:
        stream.write(b"x" * (6 << 20))
    assert files.list() == ["large"]


@pytest.mark.parametrize("size", [10, 6 << 20])
def test_the_condition_of_the_put_refuses_a_second_one(files: Files, size: int) -> None:
    """Not a look before it: between that and the put another publisher may come."""
    files.publish("claim", b"1" * size)
    with pytest.raises(FileExistsError):
        files._system._create_exclusively(files.location("claim"), b"2" * size)  # type: ignore[union-attr]
    with pytest.raises(FileExistsError):
        files.publish("claim", b"3" * size)
    assert files.read_bytes("claim") == b"1" * size


# -- a job -------------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The driver's process ends here."""


class Job:
    """Sums of numbers by their last digit, into a ledger on the local disk."""

    def __init__(self, directory: str, local: Path) -> None:
        self._directory, self._local = directory, local

    def master(self) -> JobMaster:
        numbers = ScriptedSource([[number % 10, number] for number in range(40)])
        numbers.initial_limit = numbers.maximum_limit = 5
        by_digit = Partitioning(Ship.HASH, lambda pair: pair[0])
        steps = (
            Step(1, "numbers", SourceSpec(numbers)),
            Step(2, "sums", ReduceSpec(lambda a, b: [a[0], a[1] + b[1]]), (Input(1, by_digit),)),
            Step(3, "ledger", SinkSpec(LedgerSink(f"{self._local}/ledger")), (Input(2),)),
        )
        settings = {
            "execution.checkpointing.interval": 10,
            "execution.checkpointing.dir": self._directory,
            "tidegate.job-id": "on-s3",
            "tidegate.state.map-size": 1 << 20,
            "parallelism.default": 2,
            "restart-strategy.type": "none",
        }
        return JobMaster(
            Program("on-s3", steps, settings),
            SimulatedEngine(1),
            liveness=lambda owner: False,
            local_root=f"{self._local}/stores",
        )

    def committed(self) -> list[Any]:
        return sorted(value for page in ledger_pages(f"{self._local}/ledger").values() for value in page)


SUMS = sorted([digit, sum(range(digit, number + 1, 10))] for digit in range(10) for number in range(digit, 40, 10))


@pytest.mark.parametrize("point", ["C4.before-publish", "C6.published"])
def test_a_job_crashes_and_goes_on(bucket: str, tmp_path: Path, point: str) -> None:
    directory = f"{bucket}/{new_token()}"
    job = Job(directory, tmp_path)
    passed: list[str] = []

    def crash(name: str, where: dict[str, Any]) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == 2:
                raise Crash

    faults.install(crash)
    try:
        with pytest.raises(Crash):
            job.master().run()
    finally:
        faults.install(None)
    assert len(passed) == 2
    job.master().run()
    assert job.committed() == SUMS
    left = Files(f"{directory}/on-s3").list()
    assert [path for path in left if not path.startswith(("lease/", "history.json"))] == []
    assert len(read_history(Files(f"{directory}/on-s3"))) > 2
