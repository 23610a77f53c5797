"""Where local stores live."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ConfigurationError, StorageError
from tidegate.state import local_dir
from tidegate.state.lmdb_store import LmdbStore

Usage = namedtuple("Usage", "total used free")


def test_the_configured_directory_wins(tmp_path: Path) -> None:
    assert local_dir.choose_root(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(("free", "shared"), [(2 << 30, True), ((2 << 30) - 1, False)])
def test_shared_memory_is_taken_if_it_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, shared: bool
) -> None:
    monkeypatch.setattr(local_dir, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(free, 0, free))
    assert (local_dir.choose_root() == str(tmp_path)) == shared


def test_without_shared_memory_the_temporary_directory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_dir, "SHARED_MEMORY", "/no/such/directory")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/the/temporary/one")
    assert local_dir.choose_root() == "/the/temporary/one"


def test_a_store_has_a_private_directory_of_this_host_and_boot(tmp_path: Path) -> None:
    path = local_dir.store_path(str(tmp_path), "job/1", "op", 3)
    home = tmp_path / f"tidegate-local-{os.getuid()}"
    [place] = os.listdir(home)
    assert place.startswith(f"{local_dir.host_id()}.{local_dir.boot_id()}.")
    assert path == str(home / place / "stores" / "job%2F1" / "op" / "3")
    assert os.path.isdir(path)
    assert home.stat().st_mode & 0o777 == 0o700


def test_stores_of_other_boots_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert local_dir.store_path(str(tmp_path), "job", "op", 0) == first
    monkeypatch.setattr(local_dir, "boot_id", lambda: "next-boot")
    second = local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert (os.path.exists(first), os.path.exists(second)) == (False, True)


def test_another_host_that_shares_the_directory_keeps_its_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = local_dir.store_path(str(tmp_path), "job", "op", 0)
    monkeypatch.setattr(local_dir, "host_id", lambda: "another")
    monkeypatch.setattr(local_dir, "boot_id", lambda: "with-a-boot-of-its-own")
    ours = local_dir.store_path(str(tmp_path), "job", "op", 0)
    local_dir.remove_job(str(tmp_path), "job")
    assert (os.path.exists(theirs), os.path.exists(ours)) == (True, False)


def test_processes_that_do_not_see_each_other_share_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers of a host, with one directory: their boot is one, and each may live."""
    theirs = local_dir.store_path(str(tmp_path), "job", "op", 0)
    monkeypatch.setattr(local_dir, "_pid_space", lambda: "another")
    ours = local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert ours != theirs and os.path.exists(theirs)


@pytest.mark.parametrize("mark", ["none", "a file", "a link"])
def test_what_does_not_carry_the_mark_is_not_removed(tmp_path: Path, mark: str) -> None:
    """Whatever its name says."""
    place = Path(local_dir.host_dir(str(tmp_path)))
    old = place.parent / f"{local_dir.host_id()}.old-boot.1"
    old.mkdir()
    if mark == "a link":
        (old / local_dir.MARK).symlink_to(tmp_path)
    elif mark == "a file":
        (old / local_dir.MARK).write_text("")
    (place.parent / "what a user has put here").mkdir()
    local_dir.host_dir(str(tmp_path))
    assert sorted(os.listdir(place.parent)) == sorted([place.name, old.name, "what a user has put here"])


def test_jobs_of_one_id_with_other_directories_have_other_names() -> None:
    assert local_dir.local_name("job", "s3://a/b") == local_dir.local_name("job", "s3://a/b")
    assert local_dir.local_name("job", "s3://a/b") != local_dir.local_name("job", "s3://a/c")


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="This user cannot make a private directory"):
        local_dir.store_path(str(tmp_path / "file"), "job", "op", 0)


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else means is a matter of the owner alone: the name is right."""
    theirs = local_dir.store_path(str(tmp_path), "job", "op", 0)
    real = os.geteuid()
    os.rename(tmp_path / f"tidegate-local-{real}", tmp_path / f"tidegate-local-{real + 1}")
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(ConfigurationError, match=f"it belongs to user {real}"):  # nor is what this process can make
        local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert os.listdir(tmp_path) == [f"tidegate-local-{real + 1}"]
    assert os.path.exists(theirs.replace(f"tidegate-local-{real}", f"tidegate-local-{real + 1}"))


@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_a_configured_directory_that_cannot_be_is_refused_before_the_start(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError) as caught:
        local_dir.choose_root(f"{tmp_path}/file{below}")
    text = str(caught.value)
    assert text.startswith("This user cannot write to the working directory of local state.")
    assert f"where: {tmp_path}/file{below}\n  found: {tmp_path}/file is a file" in text
    assert (
        "cure: set tidegate.state.local-dir, or state.backend.rocksdb.localdir for rocksdb, to another directory"
        in text
    )


def test_a_configured_directory_that_is_missing_here_may_be_elsewhere(tmp_path: Path) -> None:
    assert local_dir.choose_root(f"{tmp_path}/not/yet") == f"{tmp_path}/not/yet"


def test_stores_that_nobody_has_written_for_a_week_are_removed(tmp_path: Path) -> None:
    old, mixed, new = (local_dir.store_path(str(tmp_path), job, "op", 0) for job in ("old", "mixed", "new"))
    for path in (old, mixed, new):
        Path(path, "data.mdb").write_bytes(b"x")
    begun = os.stat(new).st_mtime
    for path in (old, mixed):
        for changed in (Path(path, "data.mdb"), Path(path), *Path(path).parents[:2]):
            os.utime(changed, (begun - local_dir.FORGOTTEN_S, begun - local_dir.FORGOTTEN_S))
    os.utime(Path(mixed, "data.mdb"), (begun, begun))
    local_dir.remove_forgotten(str(tmp_path), begun, "this")
    assert [os.path.exists(path) for path in (old, mixed, new)] == [True, True, True], "not yet a week"
    local_dir.remove_forgotten(str(tmp_path), begun + 1, "this")
    assert [os.path.exists(path) for path in (old, mixed, new)] == [False, True, True]
    assert sorted(os.listdir(Path(old).parents[2])) == ["mixed", "new"], "no empty directory of the job is left"


def test_old_stores_of_the_job_itself_stay(tmp_path: Path) -> None:
    path = local_dir.store_path(str(tmp_path), "a/job", "op", 0)
    local_dir.remove_forgotten(str(tmp_path), 1e12, "a/job")
    assert os.path.exists(path)
    local_dir.remove_forgotten(str(tmp_path), 1e12, "another")
    assert not os.path.exists(path)


def test_a_job_whose_files_vanish_while_they_are_looked_at_does_not_keep_stores_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, old = (local_dir.store_path(str(tmp_path), job, "op", 0) for job in ("used", "old"))
    look = local_dir._last_written

    def vanishing(path: str) -> float:
        if path.endswith("/used"):
            raise FileNotFoundError(path)
        return look(path)

    monkeypatch.setattr(local_dir, "_last_written", vanishing)
    monkeypatch.setattr(os, "listdir", lambda path, listed=os.listdir: sorted(listed(path), reverse=True))
    local_dir.remove_forgotten(str(tmp_path), 1e12, "this")
    assert [os.path.exists(used), os.path.exists(old)] == [True, False]


def test_what_a_killed_process_had_still_to_remove_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = local_dir.store_path(str(tmp_path), "job", "op", 0)
    with monkeypatch.context() as killed:
        killed.setattr(local_dir, "remove_below", lambda *_: None)
        local_dir.remove_job(str(tmp_path), "job")
    stores = Path(path).parents[2]
    assert not os.path.exists(path) and os.listdir(stores), "it has another name"
    local_dir.remove_forgotten(str(tmp_path), 0, "this")
    assert os.listdir(stores) == []


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_store_that_is_opened_while_the_old_one_is_removed_has_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """Two workers with the same data and different locks would not keep out of each other's way."""
    path = local_dir.store_path(str(tmp_path), "job", "op", 0)
    LmdbStore(path).close()
    opened: list[LmdbStore] = []

    def unlink(name: str, *, dir_fd: int | None = None, remove: Any = os.unlink) -> None:
        remove(name, dir_fd=dir_fd)
        if not opened:
            opened.append(LmdbStore(path))

    monkeypatch.setattr(os, "unlink", unlink)
    if forgotten:
        local_dir.remove_forgotten(str(tmp_path), 1e12, "this")
    else:
        local_dir.remove_job(str(tmp_path), "job")
    [store] = opened
    try:
        assert store.is_current
        assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"]
    finally:
        store.close()


def test_without_local_state_there_is_nothing_to_remove(tmp_path: Path) -> None:
    local_dir.remove_forgotten(str(tmp_path), 1e12, "this")
    assert list(tmp_path.iterdir()) == []
