"""Fixtures of the checkpoint room's tests."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.base import faults
from tidegate.base.files import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path / "job"))


@pytest.fixture
def new_files() -> Iterator[Callable[[], Files]]:
    """Fresh directories for tests with thousands of runs, in memory where the system has such a place."""
    root = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    numbers = itertools.count()
    yield lambda: Files(f"{root}/{next(numbers)}")
    shutil.rmtree(root)


@pytest.fixture(autouse=True)
def _no_hook_left() -> Iterator[None]:
    yield
    faults.install(None)
