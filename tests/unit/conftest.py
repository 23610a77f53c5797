"""For all unit tests: many jobs run in one process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.runtime import attempt
from tidegate.state.stores import close_removed_stores

attempt.VALIDATE = True  # every job of a unit test checks the invariants of the driver after every event
SIMULATION = Path(__file__).parent / "simulation"


@pytest.fixture(autouse=True, scope="module")
def _stores_of_ended_jobs() -> Iterator[None]:
    """What a worker does between two jobs: else thousands of files would stay open."""
    yield
    close_removed_stores()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """RocksDB's threads are not there in a forked process, which then waits for them for ever. The simulation forks, so it comes
    first; what opens RocksDB in this process comes behind it, also where it is a part of the simulation (``opens_rocksdb``)."""
    items.sort(key=lambda item: item.path.parent != SIMULATION or item.get_closest_marker("opens_rocksdb") is not None)
