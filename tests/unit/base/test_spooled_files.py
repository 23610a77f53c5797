"""State files that wait on the host: stored when a checkpoint needs them, several at once, and by nobody else."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.base import faults
from tidegate.base.errors import CorruptFileError, StorageError
from tidegate.base.files import Files, verify_content
from tidegate.base.private_dirs import HeldDirectory
from tidegate.base.spooled_files import KEPT_SIZE, SpooledFiles

PATIENCE_S = 60


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[SpooledFiles]:
    yield SpooledFiles(str(tmp_path / "storage"), str(tmp_path / "spool"), 4)
    faults.install(None)


@pytest.fixture
def storage(tmp_path: Path) -> Files:
    return Files(str(tmp_path / "storage"))


@pytest.fixture
def here(tmp_path: Path) -> Files:
    return Files(str(tmp_path / "spool"))


def test_state_waits_and_all_else_does_not(spooled: SpooledFiles, storage: Files) -> None:
    handle = spooled.write("shared/a.seg", b"abc")
    spooled.write("taskowned/x", b"1")
    spooled.publish("chk-1/_metadata", b"2")
    assert storage.list() == ["chk-1/_metadata", "taskowned/x"]
    assert spooled.read(handle) == b"abc"
    assert spooled.list() == ["chk-1/_metadata", "shared/a.seg", "taskowned/x"]
    assert pickle.loads(pickle.dumps(spooled)).read(handle) == b"abc", "another process of the host"


def test_an_upload_stores_what_is_asked_for(spooled: SpooledFiles, storage: Files, here: Files) -> None:
    first, second = spooled.write("shared/a", b"a"), spooled.write("shared/b", b"b")
    spooled.upload([first])
    spooled.upload([first])
    assert storage.list() == ["shared/a"]
    assert storage.read(first) == b"a"
    assert here.list() == ["shared/a", "shared/b"], "what is small stays, to be read again"
    spooled.delete("shared/a")
    spooled.delete("shared/b")
    assert (storage.list(), here.list()) == ([], [])
    with pytest.raises(StorageError, match="missing or damaged on this host"):
        spooled.read(second)


def test_what_was_never_stored_costs_storage_no_call(spooled: SpooledFiles, storage: Files) -> None:
    deleted: list[str] = []
    spooled.write("shared/a", b"a")
    faults.install(lambda name, where: deleted.append(where["path"]) if name == "storage.delete" else None)
    spooled.delete("shared/a")
    assert not [path for path in deleted if path.startswith(storage.root)]


def test_a_large_file_is_a_stream_and_does_not_stay(spooled: SpooledFiles, storage: Files, here: Files) -> None:
    with spooled.create_stream("shared/base") as stream:
        for _ in range(9):
            stream.write(b"x" * (1 << 20))
        handle = stream.close()
    assert handle.size > KEPT_SIZE
    assert storage.list() == []
    spooled.upload([handle])
    assert (storage.size("shared/base"), here.list()) == (handle.size, [])
    with spooled.open_stream("shared/base") as found:
        assert len(found.read()) == handle.size
    spooled.delete("shared/base")
    assert storage.list() == []


def test_files_of_earlier_checkpoints_are_on_storage_only(spooled: SpooledFiles, storage: Files) -> None:
    handle = storage.write("shared/old", b"old")
    spooled.upload([handle])
    assert spooled.read(handle) == b"old"
    spooled.delete("shared/old")
    assert storage.list() == []


def test_several_are_stored_at_once(spooled: SpooledFiles) -> None:
    """All four threads meet in the middle of a write: with fewer they would wait for ever."""
    handles = [spooled.write(f"shared/{number}", b"x") for number in range(4)]
    together = threading.Barrier(4)
    spool = spooled.spool.root

    def meet(name: str, where: dict[str, Any]) -> None:
        if name == "storage.write" and not where["path"].startswith(spool):
            together.wait(PATIENCE_S)

    faults.install(meet)
    spooled.upload(handles)
    assert spooled.storage.list() == [f"shared/{number}" for number in range(4)]


def test_an_upload_that_failed_continues(spooled: SpooledFiles, storage: Files) -> None:
    handles = [spooled.write(f"shared/{number}", b"x") for number in range(3)]
    failed: list[str] = []

    def fail_once(name: str, where: dict[str, Any]) -> None:
        if name == "storage.written" and where["path"].endswith("storage/shared/1") and not failed:
            failed.append(name)  # the file is there, and nobody knows
            raise OSError("the answer was lost")

    faults.install(fail_once)
    with pytest.raises(StorageError, match="the answer was lost"):
        spooled.upload(handles)
    assert failed
    spooled.upload(handles)
    assert storage.list() == ["shared/0", "shared/1", "shared/2"]
    for handle in handles:
        spooled.delete(handle.path)
    assert storage.list() == []


@pytest.mark.parametrize("size", [3, KEPT_SIZE + 1])
def test_a_file_damaged_here_is_never_stored(spooled: SpooledFiles, storage: Files, size: int) -> None:
    """A restart helps: the latest checkpoint is whole."""
    with spooled.create_stream("shared/a") as stream:
        stream.write(b"x" * size)
        handle = stream.close()
    Path(spooled.spool.location("shared/a")).write_bytes(b"y" * size)
    with pytest.raises(StorageError) as error:
        spooled.upload([handle])
    assert error.value.found == f"it is damaged; nothing at {storage.location('shared/a')}"
    assert not isinstance(error.value, CorruptFileError)
    assert storage.list() == []


def test_a_stream_damaged_here_helps_a_restart_and_is_not_read_again(spooled: SpooledFiles, here: Files) -> None:
    """Who reads a large file finds out on the way (``damaged``)."""
    with spooled.create_stream("shared/a") as stream:
        stream.write(b"abc")
        handle = stream.close()
    Path(here.location("shared/a")).write_bytes(b"abd")
    with pytest.raises(StorageError, match=r"it is damaged: 3 bytes.* expected 3 bytes") as error:
        verify_content(spooled, handle.path, size=handle.size, hash=handle.hash)
    assert error.value.restart_helps
    assert here.list() == []
    stored = spooled.storage.write("shared/b", b"abc")
    with pytest.raises(CorruptFileError):
        verify_content(spooled, stored.path, size=stored.size, hash="another")


def test_a_file_damaged_here_and_stored_is_read_there(spooled: SpooledFiles) -> None:
    handle = spooled.write("shared/a", b"abc")
    spooled.upload([handle])
    Path(spooled.spool.location("shared/a")).write_bytes(b"")
    assert spooled.read(handle) == b"abc"


def spool_of_driver(parent: Path) -> SpooledFiles:
    held = HeldDirectory(str(parent))
    return SpooledFiles(f"{parent}/storage", held.path, held=held)


def test_spools_of_dead_drivers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """Also that of a driver that has taken over, when a fenced one that does not know yet comes to sweep."""
    killed, live, own = (spool_of_driver(tmp_path) for _ in range(3))
    killed.write("shared/a", b"a")
    handle = live.write("shared/b", b"b")
    left = killed.spool.root
    del killed
    own.forget_others()
    assert not Path(left).exists()
    assert live.read(handle) == b"b"
    own.forget_own()
    assert not Path(own.spool.root).exists()
    assert live.read(handle) == b"b"
    assert pickle.loads(pickle.dumps(live)).forget_own() is None, "a task has no part in it"
    assert live.read(handle) == b"b"


def test_what_is_lost_is_never_taken_for_stored(spooled: SpooledFiles, storage: Files, here: Files) -> None:
    handle = spooled.write("shared/a", b"abc")
    here.delete("shared/a")
    for act in (
        lambda: spooled.upload([handle]),
        lambda: spooled.read(handle),
        lambda: spooled.open_stream("shared/a"),
    ):
        with pytest.raises(StorageError) as error:
            act()
        assert error.value.rule == "A state file is missing or damaged on this host, and is not on storage either."
        assert error.value.found == f"it is not there; nothing at {storage.location('shared/a')}"
