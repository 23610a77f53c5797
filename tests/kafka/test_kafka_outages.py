"""What a completed checkpoint holds reaches the topic exactly once, however long the broker was away and whatever it dropped."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.kafka_tools import Broker, Topics
from tests.waiting import eventually
from tidegate.base import faults
from tidegate.base.errors import OutputLostError, RetryableCommitError
from tidegate.common.serialization import SimpleStringSchema
from tidegate.connectors.kafka import committer as committer_module
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committable import KafkaCommittable
from tidegate.connectors.kafka.committer import open_transactions
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.transactions import Ended, end, ended, init_producer
from tidegate.operators.contracts.sink import CommitterContext, DeliveryGuarantee, WriterContext
from tidegate.testing.sink_run import Crash, SinkRun


def make_sink(servers: str, topic: str, *, keep: bool = True, timeout_ms: int = 60_000, **properties: str) -> KafkaSink:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_key_serialization_schema(SimpleStringSchema())
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    builder = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(topic)
        .set_keep_output(keep)
        .set_property("transaction.timeout.ms", str(timeout_ms))
    )
    for key, value in properties.items():
        builder.set_property(key.replace("_", "."), value)
    return builder.build()


def completed(sink: KafkaSink, directory: Path, count: int = 20) -> SinkRun:
    """A run whose checkpoint is complete, and not committed."""
    run = SinkRun(sink, str(directory / "staging"), str, 2)
    run.step(5, checkpoint=True)
    run.accept(run.attempt(count - 5, checkpoint=True), count - 5)
    run.complete()
    return run


def drop_prepared(sink: KafkaSink, run: SinkRun) -> None:
    """As the broker does when the time is over: a new epoch aborts what is open."""
    cluster = Cluster.of(sink.properties)
    for data in run.pending:
        made = KafkaCommittable.from_plain(data)
        init_producer(cluster, made.producer.transactional_id, 60_000)
        assert ended(cluster, made.producer, made.firsts) is Ended.ABORTED


def check(topics: Topics, topic: str, count: int) -> None:
    assert Counter(topics.read(topic)) == Counter(map(str, range(count)))


@contextlib.contextmanager
def crash(point: str, number: int = 1) -> Any:
    """The process ends when it comes to a point for the n-th time."""
    met = [0]

    def hook(name: str, where: dict[str, Any]) -> None:
        if name == point:
            met[0] += 1
            if met[0] == number:
                raise Crash(name)

    faults.install(hook)
    try:
        with pytest.raises(Crash):
            yield
    finally:
        faults.install(None)
    assert met[0] >= number


def test_only_readers_of_uncommitted_records_see_open_transactions(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new()
    completed(make_sink(broker.bootstrap_servers, topic), tmp_path)
    check(topics, topic, 5)
    assert Counter(topics.read(topic, committed=False)) == Counter(map(str, range(20)))


def test_transactions_that_the_broker_aborted_are_written_again(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    drop_prepared(sink, run)
    run.restore()
    check(topics, topic, 20)
    run.restore()  # once more: its note says that it was written again
    check(topics, topic, 20)
    run.step(7, checkpoint=True)
    check(topics, topic, 27)
    assert open_transactions(Cluster.of(sink.properties), topic) == set()


@pytest.mark.parametrize(
    ("point", "times"), [("K4.kafka.written-again", 2), ("K4.kafka.noted", 1), ("K3.kafka.committed", 2)]
)
def test_crash_during_a_rewrite_loses_and_duplicates_nothing(
    point: str, times: int, broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    drop_prepared(sink, run)
    for _ in range(times):
        with crash(point):
            run.restore()
    run.restore()
    check(topics, topic, 20)
    run.restore()
    check(topics, topic, 20)
    assert open_transactions(Cluster.of(sink.properties), topic) == set()


def test_rewritten_transaction_that_the_broker_aborts_is_written_again(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    drop_prepared(sink, run)
    with crash("K4.kafka.noted", 2):
        run.restore()
    cluster = Cluster.of(sink.properties)
    for producer in open_transactions(cluster, topic):
        init_producer(cluster, producer.transactional_id, 60_000)
    run.restore()
    check(topics, topic, 20)


def test_aborted_transaction_without_a_copy_fails_the_job(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic, keep=False)
    run = completed(sink, tmp_path)
    drop_prepared(sink, run)
    with pytest.raises(OutputLostError, match="aborted a transaction that a completed checkpoint holds") as caught:
        run.restore()
    assert "records" in str(caught.value) and "transaction.timeout.ms" in str(caught.value)
    check(topics, topic, 5)


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_commit_fails_and_names_the_file_if_the_copy_is_lost(
    damage: str, broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    drop_prepared(sink, run)
    for path in tmp_path.rglob("output/*"):
        path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(OutputLostError, match="the copy of its records is lost") as caught:
        run.restore()
    assert "output/" in str(caught.value) and "restore the file" in str(caught.value)
    check(topics, topic, 5)
    assert open_transactions(Cluster.of(sink.properties), topic) == set()


def test_two_rescales_with_open_transactions(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """Each crash leaves as many open as there were subtasks; the next start has another number of them."""
    topic = topics.new(3)
    sink = make_sink(broker.bootstrap_servers, topic)
    run = SinkRun(sink, str(tmp_path), str, 3)
    for parallelism, count in ((1, 7), (4, 16), (2, 29)):
        run.accept(run.attempt(count - run.position, checkpoint=True), count - run.position)
        run.complete()
        run.attempt(9)  # after the checkpoint, and never accepted
        run.restore(parallelism)
        check(topics, topic, count)
        assert open_transactions(Cluster.of(sink.properties), topic) == set()


def test_two_jobs_on_one_topic(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """One crashes and restores while the other has something prepared: each sees to its own."""
    topic = topics.new()
    runs = []
    for name in ("one", "two"):
        sink = make_sink(broker.bootstrap_servers, topic)
        sink.prefix = f"{topic}-{name}"
        runs.append(SinkRun(sink, str(tmp_path / name), lambda n, name=name: f"{name}-{n}", 2))  # type: ignore[misc]
    first, second = runs
    for run in runs:
        run.accept(run.attempt(8, checkpoint=True), 8)
        run.complete()
    first.attempt(5)
    first.restore()
    second.commit()
    first.step(4, checkpoint=True)
    second.restore()
    expected = [f"one-{n}" for n in range(12)] + [f"two-{n}" for n in range(8)]
    assert Counter(topics.read(topic)) == Counter(expected)


def test_repeated_commit_succeeds_after_the_id_was_used_again(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """EndTxn is refused then, with the same error as after an abort: the log knows that it was committed."""
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    committables = list(run.pending)
    run.commit()
    for data in committables:
        init_producer(Cluster.of(sink.properties), KafkaCommittable.from_plain(data).producer.transactional_id, 60_000)
    run.committer.recover(committables)
    check(topics, topic, 20)


def test_lingering_transaction_of_a_reused_id_is_aborted(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """The checkpoint names its last transaction, and the next one under it was open when the driver died: readers waited for it."""
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = SinkRun(sink, str(tmp_path), str, 2)
    run.step(6, checkpoint=True)
    cluster = Cluster.of(sink.properties)
    for data in run.checkpoint.committables:  # again: answered when the coordinator is through with the first
        end(cluster, KafkaCommittable.from_plain(data).producer, commit=True)
    run.attempt(6)
    named = {KafkaCommittable.from_plain(data).producer.transactional_id for data in run.checkpoint.committables}
    assert named & {producer.transactional_id for producer in open_transactions(cluster, topic)}
    run.restore()
    assert open_transactions(cluster, topic) == set()
    run.step(4, checkpoint=True)
    check(topics, topic, 10)


def test_late_transaction_of_a_dead_drivers_worker_is_aborted(
    broker: Broker, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it readers would wait until its time is over: 15 minutes."""
    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    cluster = Cluster.of(sink.properties)
    monkeypatch.setattr(committer_module, "_SWEEPS_S", (0.2, 0.2))
    committer = sink.create_committer(CommitterContext("job", "sink", str(tmp_path), lease=2))
    assert committer is not None
    committer.abort_lingering([], [])
    for lease in (1, 2):
        writer = sink.create_writer(
            WriterContext("job", "sink", 0, 1, 1, None, f"a{lease}", 0, str(tmp_path), lease), []
        )
        writer.write_batch(["late"], None)
        writer.prepare_commit(False)
    eventually(lambda: len(open_transactions(cluster, topic)) == 1)
    [left] = open_transactions(cluster, topic)
    assert re.fullmatch(rf"{topic}-job-sink-\w+-2-\w+-1", left.transactional_id)
    committer.close()


def test_transaction_with_deleted_log_is_in_doubt_and_fails_the_job(
    broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = topics.new()
    sink = make_sink(broker.bootstrap_servers, topic)
    run = completed(sink, tmp_path)
    committables = list(run.pending)
    drop_prepared(sink, run)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    ends = [TopicPartition(topic, partition, -1) for partition in (0, 1)]
    for future in admin.delete_records(ends).values():
        future.result(30)
    with pytest.raises(OutputLostError, match="The outcome of a Kafka transaction is unknown"):
        run.restore()
    assert committables


def test_outage_longer_than_the_transaction_timeout_loses_nothing(
    own_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """The broker is killed with prepared transactions; when it is back, their time is over."""
    broker = own_broker()
    topics = Topics(broker.bootstrap_servers)
    topic = topics.new()
    sink = make_sink(
        broker.bootstrap_servers,
        topic,
        timeout_ms=1_000,
        request_timeout_ms="1500",
        reconnect_backoff_max_ms="200",
    )
    run = completed(sink, tmp_path)
    broker.kill()
    with pytest.raises(RetryableCommitError):
        run.restore()
    broker.start()
    broker.wait_until_ready()
    _wait_for_abort(sink, run)

    def restored() -> bool:
        try:
            run.restore()
        except RetryableCommitError:  # the runtime tries again, too
            return False
        return True

    eventually(restored)
    check(topics, topic, 20)


def _wait_for_abort(sink: KafkaSink, run: SinkRun) -> None:
    """Until the broker says so; the log may lack it (a broker that aborts before it has loaded its topics)."""
    cluster = Cluster.of(sink.properties)
    names = [KafkaCommittable.from_plain(data).producer.transactional_id for data in run.checkpoint.committables]

    def aborted() -> bool:
        found = cluster.retried("state", lambda: cluster.admin.describe_transactions(names))
        return all(each.state.value == "CompleteAbort" for each in found.values())

    eventually(aborted, "aborted by the broker")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_back(codec: str, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    run = SinkRun(make_sink(broker.bootstrap_servers, topic, compression_type=codec), str(tmp_path), str, 2)
    run.step(3_000, checkpoint=True)
    check(topics, topic, 3_000)


def test_keys_go_where_other_clients_send_them(broker: Broker, topics: Topics, tmp_path: Path) -> None:
    theirs, ours = topics.new(5), topics.new(5)
    values = [f"key-{'x' * (n % 9)}{n}" for n in range(300)]
    topics.write(theirs, values)  # by murmur2, as Java clients do
    run = SinkRun(make_sink(broker.bootstrap_servers, ours), str(tmp_path), lambda n: values[n], 1)
    run.step(300, checkpoint=True)
    placed = {value: partition for partition, value in topics.read_records(theirs)}
    assert {value: partition for partition, value in topics.read_records(ours)} == placed
