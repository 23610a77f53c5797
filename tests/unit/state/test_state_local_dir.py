"""Where local stores live."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import pytest

from tidegate.common.errors import ConfigurationError, StorageError
from tidegate.state import local_dir

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


def test_a_store_has_a_private_directory_of_this_boot(tmp_path: Path) -> None:
    path = local_dir.store_path(str(tmp_path), "job/1", "op", 3)
    home = tmp_path / f"tidegate-{os.getuid()}"
    assert path == str(home / local_dir.boot_id() / "job%2F1" / "op" / "3")
    assert os.path.isdir(path)
    assert home.stat().st_mode & 0o777 == 0o700


def test_stores_of_other_boots_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert local_dir.store_path(str(tmp_path), "job", "op", 0) == first
    monkeypatch.setattr(local_dir, "boot_id", lambda: "next-boot")
    second = local_dir.store_path(str(tmp_path), "job", "op", 0)
    assert (os.path.exists(first), os.path.exists(second)) == (False, True)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"The directory of local state must be writable and belong to this user\."):
        local_dir.store_path(str(tmp_path / "file"), "job", "op", 0)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_dir.store_path(str(tmp_path), "job", "op", 0)
    real = os.getuid()
    os.rename(tmp_path / f"tidegate-{real}", tmp_path / f"tidegate-{real + 1}")
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    with pytest.raises(StorageError, match=f"belongs to user {real}"):
        local_dir.store_path(str(tmp_path), "job", "op", 0)


@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_a_configured_directory_that_cannot_be_is_refused_before_the_start(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError) as caught:
        local_dir.choose_root(f"{tmp_path}/file{below}")
    text = str(caught.value)
    assert text.startswith("The working directory of local state must be a directory this user may write to.")
    assert f"where: {tmp_path}/file{below}\n  found: {tmp_path}/file is a file" in text
    assert "cure: choose another with tidegate.state.local-dir, or state.backend.rocksdb.localdir for rocksdb" in text


def test_a_configured_directory_that_is_missing_here_may_be_elsewhere(tmp_path: Path) -> None:
    assert local_dir.choose_root(f"{tmp_path}/not/yet") == f"{tmp_path}/not/yet"
