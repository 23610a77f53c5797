"""Real clusters: each is started when the first test of a module needs it, and killed at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.yarn import Yarn, yarn_cluster


@pytest.fixture(scope="package")
def yarn() -> Iterator[Yarn]:
    with yarn_cluster() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """TIDEGATE_HOME of the user who runs commands."""
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    return place
