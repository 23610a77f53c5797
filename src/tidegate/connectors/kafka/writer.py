"""Write the records of one round: into a transaction that stays open, or (AT_LEAST_ONCE, NONE) without one."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tidegate.base import faults
from tidegate.base.errors import ConfigurationError, TidegateError, UserCodeError
from tidegate.base.hashing import new_token
from tidegate.connectors.kafka.cluster import Cluster, TopicPartition, no_topic
from tidegate.connectors.kafka.committable import OUTPUT, KafkaCommittable, add_copy
from tidegate.connectors.kafka.libraries import errors
from tidegate.connectors.kafka.records import BatchBuilder
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema, partitions_of
from tidegate.connectors.kafka.transactions import NotOursError, Producer, TransactionWriter, end, init_producer
from tidegate.connectors.staged_file import StagedFile
from tidegate.operators.contracts.sink import Prepared, SinkWriter, WriterContext

log = logging.getLogger(__name__)

_FLUSH_BYTES = 2 << 20
_NO_HEADERS: list[tuple[str, bytes]] = []


class TransactionalIds:
    """The transactional ids of this process: an id is used again when its last transaction has ended.

    **Only the process that made an id ever begins a transaction with it**, and a worker runs one task at a time. So an attempt that
    was taken for dead and wakes up elsewhere cannot abort a transaction that another attempt has prepared. The broker tells
    whether the last transaction has ended: a prepared one stays open until the driver commits or aborts it. So a broker sees as
    many ids as workers times open transactions, however long the job runs.
    """

    _LOOKED_AT: ClassVar = 8

    _of_this_process: ClassVar[dict[tuple[int, str], TransactionalIds]] = {}

    @classmethod
    def of(cls, base: str) -> TransactionalIds:
        """``base`` names prefix, job, sink and the attempt of the job."""
        return cls._of_this_process.setdefault((os.getpid(), base), cls(base))

    def __init__(self, base: str) -> None:
        self._base, self._made = f"{base}-{new_token()}", 0
        self._used: dict[str, Producer] = {}
        """The last transaction of each id, least recently used first."""
        self._choosing = threading.Lock()

    def begin(self, cluster: Cluster, timeout_ms: int) -> Producer:
        """Begin a transaction with an id that has none open. The caller owns the id until the transaction ends. If this fails, the
        id is not used again: the broker may still act on the request."""
        with self._choosing:
            chosen = self._ended(cluster)
            if chosen is None:
                self._made += 1
                chosen = f"{self._base}-{self._made}"
            producer = init_producer(cluster, chosen, timeout_ms)
            self._used[chosen] = producer
            return producer

    def _ended(self, cluster: Cluster) -> str | None:
        """Remove and return an id whose transaction has ended. Forget ids that cannot end any more (nothing was written, or the
        broker has forgotten the id): otherwise they would stay first in the list for ever."""
        oldest = list(self._used)[: self._LOOKED_AT]
        try:
            found = cluster.admin.describe_transactions(oldest)
        except errors.TransactionalIdNotFoundError:
            self._used = {name: last for name, last in self._used.items() if name not in oldest}
            return None
        except errors.KafkaError:
            return None  # the caller makes a new id, which does no harm
        for name in oldest:
            state, last = str(found[name].state.value), self._used[name]
            known = (found[name].producer_id, found[name].producer_epoch)
            if known < (last.producer_id, last.epoch):
                continue  # a replaced coordinator, unaware of it, reports the previous transaction
            if state.startswith("Complete"):
                del self._used[name]
                return name
            if state == "Empty":
                del self._used[name]
        return None


class KafkaWriter(SinkWriter):
    """``base``: of transactional ids; None: no transactions. ``keep``: the checkpoint stores a copy of the output. ``stamps``:
    records carry their event time. ``only_logs``: records that the brokers refuse are reported and discarded."""

    def __init__(
        self,
        cluster: Cluster,
        serializer: KafkaRecordSerializationSchema,
        context: WriterContext,
        *,
        base: str | None,
        timeout_ms: int,
        codec: int,
        batch_bytes: int,
        keep: bool,
        acks: int,
        stamps: bool = True,
        only_logs: bool = False,
    ) -> None:
        self._cluster, self._serializer, self._context = cluster, serializer, context
        self._base, self._timeout_ms, self._keep = base, timeout_ms, keep
        self._codec, self._batch_bytes, self._acks = codec, batch_bytes, acks
        self._stamps, self._only_logs = stamps, only_logs
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._full: list[tuple[TopicPartition, bytes]] = []
        self._full_bytes = 0
        self._partitions: dict[str, int] = {}
        self._producer: Producer | None = None
        self._writer: TransactionWriter | None = None
        self._copy: StagedFile | None = None
        self._turn = context.subtask

    # -- records -----------------------------------------------------------------------------------------------------

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        keys, payloads = self._serialized(values)
        now = int(time.time() * 1000)
        if not self._stamps:
            timestamps = None
        headers = self._headers(values)
        for topic, places in self._by_topic(values):
            partitions = self._choose(topic, values, keys, places)
            for n, partition in zip(places, partitions, strict=True):
                moment = now if timestamps is None or timestamps[n] is None or timestamps[n] < 0 else timestamps[n]
                self._add(
                    TopicPartition(topic, partition),
                    moment,
                    keys[n],
                    payloads[n],
                    headers[n] if headers else _NO_HEADERS,
                )
        if self._full_bytes >= _FLUSH_BYTES:
            self._send()

    def _serialized(self, values: list[Any]) -> tuple[list[bytes | None], list[bytes | None]]:
        try:
            return self._serializer.keys(values), self._serializer.values(values)
        except StopIteration as error:
            raise UserCodeError(
                "A serializer raises StopIteration", where="KafkaSink", cure="raise another exception"
            ) from error

    def _headers(self, values: list[Any]) -> list[list[tuple[str, bytes]]] | None:
        provider = self._serializer.headers
        return None if provider is None else [list(provider(value) or ()) for value in values]

    def _by_topic(self, values: list[Any]) -> Iterator[tuple[str, Sequence[int]]]:
        selector = self._serializer.selector
        if selector is None:
            assert self._serializer.topic is not None
            yield self._serializer.topic, range(len(values))
            return
        groups: dict[str, list[int]] = {}
        for n, value in enumerate(values):
            groups.setdefault(selector(value), []).append(n)
        yield from groups.items()

    def _choose(self, topic: str, values: list[Any], keys: list[bytes | None], places: Sequence[int]) -> Sequence[int]:
        count = self._count(topic)
        partitioner = self._serializer.partitioner
        if partitioner is not None:
            return [self._checked(partitioner(values[n], keys[n], topic, count), topic, count) for n in places]
        own = [key for n in places if (key := keys[n]) is not None]
        if len(own) == len(places):
            return partitions_of(own, count)
        self._turn += 1
        if not own:
            return [self._turn % count] * len(places)
        chosen = iter(partitions_of(own, count))
        return [self._turn % count if keys[n] is None else next(chosen) for n in places]

    @staticmethod
    def _checked(partition: Any, topic: str, count: int) -> int:
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise UserCodeError(
                "The partitioner returns a partition that the topic does not have",
                where=f"partitioner of KafkaSink, topic {topic}",
                found=repr(partition),
                cure=f"return an int from 0 to {count - 1}",
            )
        return partition

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self._cluster.metadata([topic]).get(topic) or self._created(topic))
        return self._partitions[topic]

    def _created(self, topic: str) -> list[TopicPartition]:
        problem = no_topic(self._cluster, topic)
        if problem is not None:
            raise problem
        made = self._cluster.created(topic)
        if made is None:
            raise ConfigurationError(
                "The topic of the Kafka sink does not exist",
                where=f"bootstrap servers {self._cluster.servers}",
                found=f"no topic {topic!r}, and the brokers do not create it",
                cure="create the topic before the job starts",
            )
        return made

    def _add(
        self,
        place: TopicPartition,
        moment: int,
        key: bytes | None,
        payload: bytes | None,
        headers: list[tuple[str, bytes]],
    ) -> None:
        builder = self._builders.get(place)
        if builder is None:
            transactional = self._base is not None
            builder = self._builders[place] = BatchBuilder(self._codec, self._batch_bytes, transactional=transactional)
        if not builder.add(moment, key, payload, headers):
            self._finish(place, builder)
            builder.add(moment, key, payload, headers)

    def _finish(self, place: TopicPartition, builder: BatchBuilder) -> None:
        data = builder.take()
        self._full.append((place, data))
        self._full_bytes += len(data)

    # -- the transaction ---------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if not self._full:
            return
        if self._writer is None:
            self._begin()
        assert self._writer is not None
        if self._copy is not None:
            add_copy(self._copy, self._full)
        with self._reported():
            self._writer.send(self._full)
        self._full, self._full_bytes = [], 0

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except TidegateError as error:
            if not self._only_logs:
                raise
            self._writer = None  # its requests under way are lost, as the user has allowed
            log.error("records are lost, which set_log_failures_only(True) allows: %s", error)

    def _begin(self) -> None:
        if self._base is not None:
            self._producer = TransactionalIds.of(self._base).begin(self._cluster, self._timeout_ms)
            faults.point("K1.kafka.begun", transaction=self._producer.transactional_id)
            if self._keep:
                self._copy = StagedFile(self._context, OUTPUT, aside=True)
        self._writer = TransactionWriter(self._cluster, self._producer, self._acks)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        """All records are written and acknowledged, and their copy is durable, before the committable is returned."""
        for place, builder in self._builders.items():
            if builder.count:
                self._finish(place, builder)
        self._send()
        if self._writer is None:
            return Prepared()
        with self._reported():
            self._writer.flush()
        if self._producer is None:
            return Prepared()
        faults.point("K1.kafka.flushed", transaction=self._producer.transactional_id)
        copy = self._copy.finish() if self._copy is not None else None
        made = KafkaCommittable(self._producer, dict(self._writer.firsts), self._writer.records, copy)
        return Prepared([made.plain()])

    def abort(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(NotOursError):  # already ended, or nothing was written
                end(self._cluster, self._producer, commit=False)
        if self._copy is not None:
            self._copy.drop()

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()
