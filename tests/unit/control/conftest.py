"""A registry of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.control.drivers import Driver


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry, at a short path: a unix socket in it has 107 characters at most."""
    place = tmp_path_factory.mktemp("h") / "home"
    monkeypatch.setenv("TIDEGATE_HOME", str(place))
    return place


@pytest.fixture
def driver(home: Path, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """``driver(job_id, **keys)`` starts one."""
    started: list[Driver] = []

    def start(job_id: str, *command: str, **keys: Any) -> Driver:
        started.append(Driver(tmp_path, job_id, *command, **keys))
        return started[-1]

    yield start
    for each in started:
        each.end()
