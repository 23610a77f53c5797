"""One real broker for all tests of this folder; it is started when the first of them needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tidegate.base.hashing import new_token
from tidegate.connectors.kafka.dev_broker import free_port


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), free_port()) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: Broker) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """A broker for one test, with properties of its own; it may be killed. ``sasl_port``: of a second listener, for users."""
    made: list[Broker] = []

    def start(properties: dict[str, str] | None = None, *, sasl_port: int | None = None) -> Broker:
        port, settings = free_port(), dict(properties or {})
        if sasl_port is not None:
            plain, users = f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
            settings["listeners"] = f"{plain},{users},CONTROLLER://127.0.0.1:{{controller}}"
            settings["advertised.listeners"] = f"{plain},{users}"
        made.append(Broker(tmp_path / f"broker-{new_token()}", port, settings).__enter__())
        return made[-1]

    yield start
    for each in made:
        each.__exit__()
