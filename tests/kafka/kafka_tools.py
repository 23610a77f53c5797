"""A broker of its own for tests, and readers and writers that have nothing to do with ours: confluent-kafka's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tidegate.base.hashing import new_token
from tidegate.connectors.kafka.dev_broker import DevBroker


class Broker(DevBroker):
    """Sweeps timed-out transactions every second, so that tests need not wait long for it."""

    def __init__(
        self,
        directory: Path,
        port: int,
        properties: dict[str, str] | None = None,
        *format_options: str,
        cluster_id: str | None = None,
    ) -> None:
        swept = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
        swept |= {"group.min.session.timeout.ms": "500"}
        super().__init__(
            directory,
            port,
            properties={**swept, **(properties or {})},
            format_options=format_options,
            cluster_id=cluster_id,
        )

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def wait_until_ready(self) -> None:
        """An open port is not enough: coordinators load."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                AdminClient(_quiet(self.bootstrap_servers)).list_topics(timeout=10)
                return
            except KafkaException:
                pass
        raise TimeoutError("the broker does not answer")


def _quiet(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": 0}


class Topics:
    """Makes topics, fills them and reads them, from outside."""

    def __init__(self, servers: str, replicas: int = 1) -> None:
        self.servers, self.replicas = servers, replicas
        self._admin = AdminClient(_quiet(servers))

    def new(self, partitions: int = 2, **config: str) -> str:
        """A topic with a name of its own."""
        return self.named(f"topic-{new_token()}", partitions, **config)

    def named(self, full: str, partitions: int, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        made = self._admin.create_topics([NewTopic(full, partitions, self.replicas, config=settings)])
        made[full].result(30)
        self._wait_for(full, partitions)
        return full

    def more_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        self._wait_for(topic, count)

    def _wait_for(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self._admin.list_topics(topic, timeout=10).topics[topic]
            if found.error is None and len(found.partitions) == count:
                return
        raise TimeoutError(f"{topic} did not appear")

    def write(
        self, topic: str, values: list[Any], *, transaction: str | None = None, partition: int | None = None
    ) -> None:
        """As texts, in turns over the partitions, keyed by the text. ``transaction``: 'commit', 'abort' or 'open'."""
        settings = {**_quiet(self.servers), "partitioner": "murmur2_random"}
        if transaction is not None:
            settings["transactional.id"] = new_token()
        producer = Producer(settings)
        if transaction is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for value in values:
            place: dict[str, Any] = {} if partition is None else {"partition": partition}
            producer.produce(topic, value=str(value).encode(), key=str(value).encode(), **place)
            producer.poll(0)
        producer.flush(30)
        if transaction == "commit":
            producer.commit_transaction(30)
        elif transaction == "abort":
            producer.abort_transaction(30)
        elif transaction == "open":
            self._left_open = producer  # letting it go aborts nothing, closing it would

    def read(self, topic: str, *, committed: bool = True) -> list[str]:
        """All values there are now, in the order of each partition."""
        return [value for _, value in self.read_records(topic, committed=committed)]

    def read_records(self, topic: str, *, committed: bool = True) -> list[tuple[int, str]]:
        consumer = Consumer(
            {
                **_quiet(self.servers),
                "group.id": new_token(),
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )
        found = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        values: list[tuple[int, str]] = []
        ended: set[int | None] = set()
        while len(ended) < len(found):
            message = consumer.poll(10)
            assert message is not None, "the broker does not answer"
            if message.error() is not None:
                ended.add(message.partition())
            else:
                values.append((message.partition() or 0, (message.value() or b"").decode()))
        consumer.close()
        return values

    def write_times(self, topic: str, partition: int, moments: list[int]) -> None:
        """The times as texts and as timestamps, ten in a batch."""
        producer = Producer({**_quiet(self.servers), "batch.num.messages": 10, "enable.idempotence": True})
        for moment in moments:
            text = str(moment).encode()
            producer.produce(topic, value=text, key=text, partition=partition, timestamp=moment)
        producer.flush(30)
