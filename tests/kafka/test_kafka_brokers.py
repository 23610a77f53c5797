"""Brokers that are killed: one that comes back in the middle of a write, a flush or a commit, and one of three for good."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import check, make_sink
from tests.kafka.test_kafka_programs import source, values
from tests.waiting import eventually
from tidegate.base import faults
from tidegate.connectors.kafka.cluster import Cluster, TopicPartition
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.dev_broker import free_port, new_cluster_id
from tidegate.testing.sink_run import SinkRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@contextlib.contextmanager
def at(point: str, act: Any) -> Iterator[None]:
    """Something happens at the first passing of a point; a test where it is not passed fails."""
    met: list[str] = []

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == point and not met:
            met.append(name)
            act()

    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)
    assert met


def test_a_broker_killed_and_back_at_write_flush_and_commit(own_broker: Any, tmp_path: Path) -> None:
    broker: Broker = own_broker()
    topics = Topics(broker.bootstrap_servers)
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic, request_timeout_ms="90000", reconnect_backoff_max_ms="200")
    run = SinkRun(sink, str(tmp_path), str, 2)
    run.step(10, checkpoint=True)

    def killed() -> None:
        broker.kill()
        broker.start()

    count = 10
    for point in ("K1.kafka.begun", "K1.kafka.flushed", "K3.kafka.before-commit"):
        with at(point, killed):
            run.step(20, checkpoint=True)
        count += 20
        check(topics, topic, count)
    run.restore()
    check(topics, topic, count)
    assert open_transactions(Cluster.of(sink.properties), topic) == set()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Broker]]:
    """The first is also the controller. All of Kafka's own topics are on all three."""
    ports, controller, cluster_id = [free_port() for _ in range(3)], free_port(), new_cluster_id()
    brokers: list[Broker] = []
    with contextlib.ExitStack() as stack:
        for number, port in enumerate(ports, 1):
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            own = f",CONTROLLER://127.0.0.1:{controller}" if number == 1 else ""
            properties = {
                "process.roles": "broker,controller" if number == 1 else "broker",
                "node.id": str(number),
                "listeners": listeners + own,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "offsets.topic.replication.factor": "3",
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "1",
                "min.insync.replicas": "1",
            }
            broker = Broker(tmp_path / f"broker-{number}", port, properties, cluster_id=cluster_id)
            stack.callback(broker.delete)
            broker.start()
            brokers.append(broker)
        yield brokers


def test_a_leader_dies(three: list[Broker], tmp_path: Path) -> None:
    """With a transaction open, and another being written: both are committed by what is left, once."""
    servers = ",".join(broker.bootstrap_servers for broker in three)
    topics = Topics(servers, replicas=3)
    topic = eventually(lambda: topics.new(3) if _nodes(servers) == 3 else None, "three brokers")
    sink = make_sink(servers, topic, request_timeout_ms="60000", reconnect_backoff_max_ms="200")
    cluster = Cluster.of(sink.properties)
    run = SinkRun(sink, str(tmp_path / "staging"), str, 2)
    run.step(30, checkpoint=True)
    cluster.metadata([topic])
    leaders = {cluster.leader(TopicPartition(topic, n)) for n in range(3)}
    victim = next(number for number in sorted(leaders, reverse=True) if number != 1)
    run.accept(run.attempt(30, checkpoint=True), 30)
    run.complete()
    with at("K1.kafka.begun", three[victim - 1].kill):
        run.accept(run.attempt(30, checkpoint=True), 30)
    run.complete()
    run.commit()
    check(topics, topic, 90)
    run.restore()
    check(topics, topic, 90)
    assert values(source(servers, topic).build()) == sorted(map(str, range(90)))
    cluster.metadata([topic])
    assert victim not in {cluster.leader(TopicPartition(topic, n)) for n in range(3)}


def _nodes(servers: str) -> int:
    from confluent_kafka.admin import AdminClient

    return len(AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=10).brokers)


def test_a_cluster_id_may_begin_with_a_dash(tmp_path: Path) -> None:
    """One of 64 does."""
    with Broker(tmp_path, free_port(), cluster_id=f"-{new_cluster_id()[1:-1]}A") as broker:
        assert broker.pid is not None
