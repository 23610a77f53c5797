"""Directories of one process: nobody removes one that is in use, and somebody removes one that is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.base import private_dirs
from tidegate.base.errors import StorageError
from tidegate.base.private_dirs import HeldDirectory, is_any_held, mark_kept, sweep

_HOLD_AND_WAIT = """
import sys
from tidegate.base.private_dirs import HeldDirectory, is_any_held, mark_kept
held = HeldDirectory(sys.argv[1])
print(held.path, flush=True)
sys.stdin.read()
"""


def test_a_sweep_takes_what_a_killed_process_has_left_and_no_more(tmp_path: Path) -> None:
    own, released = HeldDirectory(str(tmp_path)), HeldDirectory(str(tmp_path))
    command = [sys.executable, "-c", _HOLD_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        released.remove()
        sweep(str(tmp_path))
        assert (os.path.exists(own.path), os.path.exists(theirs), os.path.exists(released.path)) == (True, True, False)
        other.kill()
        other.wait()
        sweep(str(tmp_path))
        assert (os.path.exists(own.path), os.path.exists(theirs)) == (True, False)
    own.remove()
    own.remove()
    assert os.listdir(tmp_path) == []
    sweep(f"{tmp_path}/missing")


def test_what_is_kept_or_asked_for_is_not_swept(tmp_path: Path) -> None:
    kept, asked, left = (HeldDirectory(str(tmp_path)) for _ in range(3))
    paths = [each.path for each in (kept, asked, left)]
    kept.keep()
    del asked, left
    mark_kept(f"{paths[1]}/chk-3", str(tmp_path))
    mark_kept("/elsewhere/chk-3", str(tmp_path))
    sweep(str(tmp_path))
    assert [os.path.exists(path) for path in paths] == [True, True, False]


def test_a_sweep_between_making_and_locking_costs_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper locks and removes the directory before its owner comes to lock it."""
    real, swept = private_dirs._hold, []

    def after_a_sweep(place: str) -> int | None:
        monkeypatch.setattr(private_dirs, "_hold", real)
        swept.append(place)
        sweep(str(tmp_path))
        return real(place)

    monkeypatch.setattr(private_dirs, "_hold", after_a_sweep)
    held = HeldDirectory(str(tmp_path))
    assert os.path.isdir(held.path) and not held.path.startswith(swept[0])
    sweep(str(tmp_path))
    assert os.path.isdir(held.path)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is not writable, or has no file locks") as caught:
        HeldDirectory(f"{tmp_path}/file")
    assert caught.value.where == f"{tmp_path}/file"
    assert caught.value.cure == "set tidegate.state.local-dir to another directory"


def test_a_sweep_leaves_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sweep(str(tmp_path))
    assert os.listdir(tmp_path) == ["file"]


def test_tree_is_held_while_a_process_holds_a_directory_below(tmp_path: Path) -> None:
    held = HeldDirectory(str(tmp_path / "spools" / "job"))
    assert is_any_held(str(tmp_path))
    held.let_go()
    assert not is_any_held(str(tmp_path))
    assert not is_any_held(f"{tmp_path}/missing")
