"""For all unit tests: many jobs run in one process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.runtime import attempt
from tidegate.state.stores import close_removed_stores

attempt.VALIDATE = True  # every job of a unit test checks the invariants of the driver after every event


@pytest.fixture(autouse=True, scope="module")
def _stores_of_ended_jobs() -> Iterator[None]:
    """What a worker does between two jobs: else thousands of files would stay open."""
    yield
    close_removed_stores()
