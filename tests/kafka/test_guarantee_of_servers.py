"""The matrix of guarantees with real servers: what is seen after a failure is what was computed, and what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import guarantee_of_servers as servers
from tests.kafka.guarantee_of_servers import SINKS, SOURCES, SinkKind, SourceKind
from tests.kafka.kafka_tools import Broker, Topics

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
EVERY = [*SOURCES, "Kafka"]
FEW = ["Kafka"]
"""For every day; ``make soak`` has all. What a failure loses of a socket depends on when it comes."""


@pytest.fixture(scope="module")
def sources(broker: Broker, topics: Topics) -> dict[str, SourceKind]:
    return {**SOURCES, "Kafka": servers.kafka_source(topics)}


@pytest.fixture(scope="module")
def sinks(topics: Topics) -> Iterator[dict[str, SinkKind]]:
    with servers.server_sinks(topics) as made:
        yield made


def compare(source: str, sink: str, source_kind: SourceKind, sink_kind: SinkKind, directory: Path) -> None:
    directory.mkdir()
    computed, seen = servers.observe(source_kind, sink_kind, directory)
    servers.check(computed, seen)
    made = "the page is made by: python -m tests.kafka.guarantee_of_servers"
    assert servers.of_page(PAGE.read_text(), source, sink) == servers.cell(computed, seen), made


@pytest.mark.parametrize("source", [pytest.param(s, marks=[] if s in FEW else pytest.mark.slow) for s in EVERY])
def test_sinks_of_servers(
    source: str, sources: dict[str, SourceKind], sinks: dict[str, SinkKind], tmp_path: Path
) -> None:
    for number, (sink, kind) in enumerate(sinks.items()):
        compare(source, sink, sources[source], kind, tmp_path / str(number))


@pytest.mark.parametrize("sink", SINKS)
def test_the_source_of_kafka_with_every_other_sink(sink: str, sources: dict[str, SourceKind], tmp_path: Path) -> None:
    compare("Kafka", sink, sources["Kafka"], SINKS[sink], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("source", EVERY)
def test_tables_of_delta_and_iceberg(source: str, sources: dict[str, SourceKind], tmp_path: Path) -> None:
    for number, (sink, kind) in enumerate(servers.table_sinks()):
        compare(source, sink, sources[source], kind, tmp_path / str(number))
