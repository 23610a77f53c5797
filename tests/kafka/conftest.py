"""One real broker for all tests of this folder; it is started when the first of them needs it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_tools import Broker, Topics

from tidegate.common.ids import new_token


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), free_port()) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: Broker) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """A broker for one test, with properties of its own; it may be killed."""
    made: list[Broker] = []

    def start(**properties: str) -> Broker:
        settings = {name.replace("_", "."): value for name, value in properties.items()}
        made.append(Broker(tmp_path / f"broker-{new_token()}", free_port(), settings).__enter__())
        return made[-1]

    yield start
    for each in made:
        each.__exit__()
