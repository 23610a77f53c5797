"""Real clusters: each is started when the first test of a module needs it, and killed at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.yarn import Yarn, yarn_cluster


@pytest.fixture(scope="package")
def yarn() -> Iterator[Yarn]:
    """``TIDEGATE_TEST_YARN``: the directory of a cluster that a developer has started with MiniCluster.java. What earlier tests
    have left there is deleted."""
    running_already = os.environ.get("TIDEGATE_TEST_YARN")
    if running_already:
        started = Yarn(Path(running_already), None)
        for place in ("/jobs", "/out", "/savepoints"):
            started.client().delete(place, recursive=True)
        yield started
        return
    with yarn_cluster() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """TIDEGATE_HOME of the user who runs commands."""
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    return place
