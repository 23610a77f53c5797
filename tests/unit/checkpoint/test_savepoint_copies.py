"""The files of a savepoint are copied several at a time, and nothing is written any more when that has ended, however it did."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files
from tidegate.base.hashing import content_hash
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.checkpoint.savepoint import Copied, NewSavepoint
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot

COUNT = 12


class Meeting(Files):
    """Whoever reads waits until so many read at the same time."""

    def __init__(self, root: str, readers: int) -> None:
        super().__init__(root)
        self._all_here = threading.Barrier(readers)

    def open_stream(self, path: str, expected: str = "what the checkpoint refers to") -> Any:
        self._all_here.wait(timeout=60)
        return super().open_stream(path, expected)


def cut_in(job: Path, damaged: int | None = None) -> CheckpointMetadata:
    groups = range_for(0, 1, 128)
    files = []
    for n in range(COUNT):
        content = bytes([n]) * (n + 1)
        (job / "shared").mkdir(parents=True, exist_ok=True)
        (job / "shared" / f"{n}.seg").write_bytes(b"?" if n == damaged else content)
        files.append(StateFile(f"shared/{n}.seg", len(content), content_hash(content), str(n), groups))
    subtask = OperatorSnapshot({KEYED: KeyedPart(groups, tuple(files))})
    state = OperatorState(uid_hash="a", name="a", parallelism=1, max_parallelism=128, subtasks=[subtask])
    return CheckpointMetadata(
        checkpoint_id=1,
        job_id="j",
        job_name="n",
        token=1,
        trigger_ms=0,
        complete_ms=0,
        round=1,
        operators=[state],
    )


def copiers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tidegate-savepoint")]


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_so_many_at_a_time(tmp_path: Path, threads: int) -> None:
    cut, target = cut_in(tmp_path / "job"), tmp_path / "savepoint"
    savepoint = NewSavepoint(Meeting(str(tmp_path / "job"), threads), str(target), cut)
    told = list(savepoint.copy(threads))
    assert [copied.files for copied in told] == list(range(1, COUNT + 1))
    size = sum(range(1, COUNT + 1))
    assert told[-1] == Copied(COUNT, COUNT, size, size)
    assert sorted(copied.bytes for copied in told) == [copied.bytes for copied in told]
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        f"{n}.seg": bytes([n]) * (n + 1) for n in range(COUNT)
    }
    assert copiers() == []


@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_that_is_not_what_was_written(tmp_path: Path, threads: int) -> None:
    cut = cut_in(tmp_path / "job", damaged=5)
    savepoint = NewSavepoint(Files(str(tmp_path / "job")), str(tmp_path / "savepoint"), cut)
    with pytest.raises(CorruptFileError, match=r"5\.seg"):
        list(savepoint.copy(threads))
    assert copiers() == []
    savepoint.discard()
    assert not (tmp_path / "savepoint").exists()


@pytest.mark.parametrize("threads", [1, 4])
def test_given_up_nothing_is_written_after_it(tmp_path: Path, threads: int) -> None:
    cut = cut_in(tmp_path / "job")
    savepoint = NewSavepoint(Files(str(tmp_path / "job")), str(tmp_path / "savepoint"), cut)
    copies = savepoint.copy(threads)
    next(copies)
    copies.close()
    assert copiers() == []
    savepoint.discard()
    assert not (tmp_path / "savepoint").exists()
