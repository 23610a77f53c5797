"""What happens to transactions when ids are used again, drivers overlap, leaders move and logs are cut."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.kafka.test_kafka_outages import check, crash, drop_prepared, make_sink
from tidegate.base.errors import FencedError
from tidegate.base.hashing import new_token
from tidegate.connectors.kafka.cluster import Cluster, TopicPartition
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.records import BatchBuilder
from tidegate.connectors.kafka.transactions import Ended, Producer, TransactionWriter, end, ended, init_producer
from tidegate.connectors.kafka.writer import TransactionalIds
from tidegate.testing.sink_run import SinkRun


def batch(*values: str) -> bytes:
    builder = BatchBuilder(0, 1 << 16, transactional=True)
    for value in values:
        builder.add(1_700_000_000_000, None, value.encode(), [])
    return builder.take()


def commit(cluster: Cluster, producer: Producer) -> None:
    """Until the coordinator is through with it: the second is answered only then."""
    end(cluster, producer, commit=True)
    end(cluster, producer, commit=True)


def test_what_waits_for_its_commit_is_not_aborted(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    run = SinkRun(make_sink(broker.bootstrap_servers, topic), str(tmp_path / "staging"), str, 2)
    run.accept(run.attempt(6), 6)
    run.committer.abort_lingering(list(run.pending), [])
    run.complete()
    run.commit()
    check(topics, topic, 6)


def test_two_drivers_write_the_same_again(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """The first is paused before its note and taken for dead; it wakes up when the second has committed, and was killed."""
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = SinkRun(sink, str(tmp_path / "staging"), str, 1)
    run.accept(run.attempt(20, checkpoint=True), 20)
    run.complete()
    drop_prepared(sink, run)
    paused: Any = run.committer

    def wake_up_later() -> None:
        with crash("K3.kafka.committed"):
            run.restore()

    paused._check_lease = wake_up_later
    paused.recover(list(run.checkpoint.committables))
    check(topics, topic, 20)
    run.restore()
    check(topics, topic, 20)
    assert open_transactions(Cluster.of(sink.properties), topic) == set()


def test_a_driver_that_lost_its_lease_leaves_nothing_open(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = SinkRun(sink, str(tmp_path / "staging"), str, 1)
    run.accept(run.attempt(20, checkpoint=True), 20)
    run.complete()
    drop_prepared(sink, run)

    def lost() -> None:
        raise FencedError("A newer attempt has the job")

    old: Any = run.committer
    old._check_lease = lost
    with pytest.raises(FencedError):
        old.recover(list(run.checkpoint.committables))
    assert open_transactions(Cluster.of(sink.properties), topic) == set()
    run.restore()
    check(topics, topic, 20)


def test_ids_do_not_pile_up_behind_those_that_were_fenced(broker: Broker, topics: Topics) -> None:
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    place, ids = TopicPartition(topics.new(1), 0), TransactionalIds(f"piles-{new_token()}")

    def written() -> Producer:
        producer = ids.begin(cluster, 60_000)
        writer = TransactionWriter(cluster, producer)
        writer.send([(place, batch("x"))])
        writer.flush()
        return producer

    for producer in [written() for _ in range(TransactionalIds._LOOKED_AT + 1)]:
        init_producer(cluster, producer.transactional_id, 60_000)
    used = set()
    for _ in range(6):
        producer = written()
        commit(cluster, producer)
        used.add(producer.transactional_id)
    assert len(used) <= 3


def test_threads_do_not_share_an_id(broker: Broker, topics: Topics) -> None:
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    place, ids = TopicPartition(topics.new(1), 0), TransactionalIds(f"threads-{new_token()}")
    first = ids.begin(cluster, 60_000)
    writer = TransactionWriter(cluster, first)
    writer.send([(place, batch("x"))])
    writer.flush()
    commit(cluster, first)
    taken: list[str] = []
    threads = [
        threading.Thread(target=lambda: taken.append(ids.begin(cluster, 60_000).transactional_id)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 4


@pytest.mark.parametrize("committed", [True, False])
def test_the_log_tells_the_end_though_its_first_records_are_gone(
    committed: bool, broker: Broker, topics: Topics
) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    place = TopicPartition(topics.new(1), 0)
    producer = init_producer(cluster, f"cut-{new_token()}", 60_000)
    writer = TransactionWriter(cluster, producer)
    writer.send([(place, batch("a", "b")), (place, batch("c"))])
    writer.flush()
    end(cluster, producer, commit=committed)
    later = init_producer(cluster, producer.transactional_id, 60_000)
    other = TransactionWriter(cluster, later)
    other.send([(place, batch("d"))])
    other.flush()
    end(cluster, later, commit=not committed)

    def cut(offset: int) -> Ended:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_records([Place(place.topic, 0, offset)])[Place(place.topic, 0, offset)].result(30)
        return ended(cluster, producer, writer.firsts)

    expected = Ended.COMMITTED if committed else Ended.ABORTED
    assert writer.firsts == {place: 0}
    assert [ended(cluster, producer, writer.firsts), cut(2), cut(3), cut(4)] == [expected] * 3 + [Ended.UNKNOWN]


def test_batches_of_a_partition_keep_their_order_when_its_leader_moves(broker: Broker, topics: Topics) -> None:
    """One broker under two numbers: the second batch must not be on its way while the first is."""
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    place = TopicPartition(topics.new(1), 0)
    writer = TransactionWriter(cluster, init_producer(cluster, f"moves-{new_token()}", 60_000))
    writer.send([(place, batch("a"))])
    [node] = writer._under_way
    writer._under_way[node + 1000] = writer._under_way.pop(node)  # as sent to a leader that was
    writer.send([(place, batch("b"))])
    assert list(writer._under_way) == [node]
    writer.flush()
    assert Counter(topics.read(place.topic, committed=False)) == Counter("ab")


def test_times_that_kafka_does_not_know_are_those_of_the_writing(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    """As in Flink: before 1970, and none at all."""
    topic = topics.new(1)
    run = SinkRun(make_sink(broker.bootstrap_servers, topic), str(tmp_path / "staging"), str, 1)
    writer = run._copy.create_writer(run.writer_context(0, 1), [])
    writer.write_batch(["a", "b", "c"], [-(1 << 63), 1_700_000_000_000, -5])
    run.committer.commit(writer.prepare_commit(False).committables)
    assert topics.read(topic) == ["a", "b", "c"]
