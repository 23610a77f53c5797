"""Fixtures of the simulation."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.base import faults


@pytest.fixture
def root() -> Iterator[str]:
    """A directory in memory, where the system has such a place."""
    directory = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def _no_hook_left() -> Iterator[None]:
    yield
    faults.install(None)
