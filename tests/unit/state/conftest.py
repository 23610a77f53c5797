"""Fixtures: subtasks on real files and a real local store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.state.state_subtask import MAX_PARALLELISM, Subtask
from tidegate.state import backend
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile


@pytest.fixture
def subtask(tmp_path: Path) -> Subtask:
    """The only subtask of an operator."""
    return Subtask(tmp_path, range_for(0, 1, MAX_PARALLELISM))


@pytest.fixture
def make_subtask(tmp_path: Path) -> Callable[..., Subtask]:
    def make(subtask: int = 0, parallelism: int = 1, files: list[StateFile] | None = None, **options: Any) -> Subtask:
        return Subtask(tmp_path, range_for(subtask, parallelism, MAX_PARALLELISM), files, **options)

    return make


@pytest.fixture
def nothing_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a subtask with much state: what is not cached is looked for in the store, and so are timers."""
    monkeypatch.setattr(backend, "LEARNT_ANEW", -1)
