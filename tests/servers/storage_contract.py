"""What checkpoint storage must keep, on any server: exclusive names, whole files, a job that crashes and continues, savepoints."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, StorageError
from tidegate.base.files import Files, verified_copy
from tidegate.base.hashing import new_token
from tidegate.checkpoint.history import read_history
from tidegate.checkpoint.locate import locate
from tidegate.graph.transformation import Input, Partitioning, Program, Ship
from tidegate.graph.transformation import Transformation as Step
from tidegate.operators.contracts.specs import ReduceSpec, SinkSpec, SourceSpec
from tidegate.runtime.commands import StopWithSavepoint
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

PATIENCE_S = 300
PUBLISHERS = 8


class StorageContract:
    """Subclass it with a fixture ``storage``: an address below which the tests may do what they like."""

    @pytest.fixture
    def files(self, storage: str) -> Files:
        return Files(f"{storage}/{new_token()}")

    # -- files --

    def test_files(self, files: Files) -> None:
        files.check_writable()
        assert files.list() == []
        handle = files.write("shared/a", b"abc")
        assert files.read(handle) == b"abc"
        with pytest.raises(StorageError, match="cannot write"):
            files.write("shared/a", b"abd")
        assert files.read(handle) == b"abc", "the second one has not touched it"
        files.replace("live.json", b"1")
        files.replace("live.json", b"22")
        assert files.read_bytes("live.json") == b"22"
        assert (files.size("live.json"), files.size_if_exists("none"), files.read_if_exists("none")) == (2, None, None)
        files.rename("live.json", "deeper/moved")
        with pytest.raises(FileExistsError):
            files.rename("deeper/moved", "shared/a")
        assert (files.list(), files.list_names()) == (["deeper/moved", "shared/a"], ["deeper", "shared"])
        assert [(path, size) for path, size in files.find()] == [("deeper/moved", 2), ("shared/a", 3)]
        assert (files.is_directory("shared"), files.is_directory("shared/a"), files.exists("none")) == (
            True,
            False,
            False,
        )
        with pytest.raises(CorruptFileError, match="no such file"):
            files.read_bytes("none")
        assert files.read(files.write("empty", b"")) == b""
        files.delete("none")
        files.delete_tree("none")
        files.delete_tree("shared")
        assert files.list() == ["deeper/moved", "empty"]

    def test_a_stream_has_its_name_when_it_is_complete(self, files: Files) -> None:
        with files.create_stream("large") as stream:
            for number in range(7):
                stream.write(bytes([number]) * (1 << 20))
            assert not files.exists("large")
            handle = stream.close()
        assert (handle.size, files.size("large")) == (7 << 20, 7 << 20)
        with files.create_stream("dropped") as stream:
            stream.write(b"x" * (6 << 20))
        assert files.list() == ["large"]
        with files.open_stream("large") as found:
            found.seek((3 << 20) - 2)
            assert found.read(4) == b"\x02\x02\x03\x03"
            assert len(found.read()) == (4 << 20) - 2
        verified_copy(files, "large", files, "copy", size=handle.size, hash=handle.hash)
        assert files.size("copy") == 7 << 20

    @pytest.mark.parametrize("size", [10, 6 << 20])
    def test_of_many_publishers_one_wins(self, files: Files, size: int) -> None:
        """They pass any look before they write: what decides is the step itself."""
        together = threading.Barrier(PUBLISHERS)

        def meet(name: str, where: dict[str, Any]) -> None:
            if name == "storage.publish.before-link":
                together.wait(PATIENCE_S)

        def publish(number: int) -> bool:
            try:
                files.publish("claim", bytes([number]) * size)
            except FileExistsError:
                return False
            return True

        faults.install(meet)
        try:
            with ThreadPoolExecutor(PUBLISHERS) as pool:
                won = list(pool.map(publish, range(PUBLISHERS)))
        finally:
            faults.install(None)
        assert won.count(True) == 1
        assert files.read_bytes("claim") == bytes([won.index(True)]) * size
        with pytest.raises(FileExistsError):
            files.publish("claim", b"late")
        assert files.list() == ["claim"], "the others leave nothing"

    def test_what_is_replaced_is_read_whole(self, files: Files) -> None:
        contents = [bytes([number]) * 4096 for number in range(12)]
        files.replace("live", contents[0])
        ended = threading.Event()

        def look() -> set[bytes]:
            found = set()
            while not ended.is_set():
                found.add(files.read_bytes("live"))
            return found

        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(look)
            try:
                for content in contents[1:]:
                    files.replace("live", content)
            finally:
                ended.set()
            assert seen.result(PATIENCE_S) <= set(contents)
        assert files.list() == ["live"]

    # -- a job --

    @pytest.mark.parametrize("point", ["C4.before-publish", "C6.published"])
    def test_a_job_crashes_and_continues(self, storage: str, tmp_path: Path, point: str) -> None:
        directory = f"{storage}/{new_token()}"
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
        left = Files(f"{directory}/job").list()
        assert [path for path in left if not path.startswith(("lease/", "history.json", "view.json"))] == []
        assert len(read_history(Files(f"{directory}/job"))) > 2

    def test_a_job_continues_from_its_savepoint(self, storage: str, tmp_path: Path) -> None:
        """Stopped on this storage, resumed by another job, with another parallelism."""
        directory = f"{storage}/{new_token()}"
        job = Job(directory, tmp_path)
        started = StartedJob(job.master(source_ends=False), [])
        path = started.submit(StopWithSavepoint(f"{directory}/savepoints")).answer.result(PATIENCE_S)
        started.result(PATIENCE_S)
        assert path.startswith(f"{directory}/savepoints/savepoint-job-")
        locate(path).check_files()
        recovery: dict[str, Any] = {
            "execution.state-recovery.path": path,
            "tidegate.job-id": "other",
            "parallelism.default": 3,
        }
        job.master(**recovery).run()
        assert job.committed() == SUMS


class Crash(BaseException):
    """The driver's process ends here."""


class Job:
    """Sums of numbers by their last digit, into a ledger on the local disk."""

    def __init__(self, directory: str, local: Path) -> None:
        self._directory, self._local = directory, local

    def master(self, *, source_ends: bool = True, **more: Any) -> JobMaster:
        numbers = ScriptedSource([[number % 10, number] for number in range(40)], ends=source_ends)
        numbers.initial_limit = numbers.maximum_limit = 5
        by_digit = Partitioning(Ship.HASH, lambda pair: pair[0])
        steps = (
            Step(1, "numbers", SourceSpec(numbers), uid="numbers"),
            Step(2, "sums", ReduceSpec(lambda a, b: [a[0], a[1] + b[1]]), (Input(1, by_digit),), uid="sums"),
            Step(3, "ledger", SinkSpec(LedgerSink(f"{self._local}/ledger")), (Input(2),), uid="ledger"),
        )
        settings = {
            "execution.checkpointing.interval": 10,
            "execution.checkpointing.dir": self._directory,
            "tidegate.job-id": "job",
            "tidegate.state.map-size": 1 << 20,
            "parallelism.default": 2,
            "restart-strategy.type": "none",
        }
        return JobMaster(
            Program("job", steps, {**settings, **more}),
            SimulatedEngine(1),
            liveness=lambda owner: False,
            local_root=f"{self._local}/stores",
        )

    def committed(self) -> list[Any]:
        return sorted(value for page in ledger_pages(f"{self._local}/ledger").values() for value in page)


SUMS = sorted([digit, sum(range(digit, number + 1, 10))] for digit in range(10) for number in range(digit, 40, 10))
