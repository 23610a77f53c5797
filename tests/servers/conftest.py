"""Real servers for the tests of this folder: each is started when the first test needs it, and stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import databases
from tests.servers.server import Server
from tests.servers.sql_cases import own_targets, target

__all__ = ["own_targets", "target"]  # fixtures


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with databases.postgresql() as running:
        yield running


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with databases.mariadb() as running:
        yield running
