"""Kafka's transactions, message by message: a task begins one, the driver ends it, and the log shows how it ended.

Tidegate sends its own messages for three reasons. A transaction is prepared in one process and committed in another, which no
client library offers. A new producer epoch costs 1.5 ms this way; a new librdkafka producer costs 60. The sent record batches are
available as bytes, so a checkpoint can store a copy and rewrite it. Batches are numbered for each partition (sequence): a batch
that is sent again after a lost answer, or to a new leader, is written once.

**Never use one producer id and epoch for two transactions**: with EndTxn up to version 4, which is used here, the committable of
the first would commit the second. Each transaction begins with an InitProducerId, which raises the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any

from tidegate.base.errors import ProgramError
from tidegate.base.plain_text import count
from tidegate.connectors.kafka.cluster import (
    EARLIEST,
    READ_UNCOMMITTED,
    Cluster,
    TopicPartition,
    fetch_request,
    raise_code,
)
from tidegate.connectors.kafka.libraries import (
    AbortTransactionSpec,
    AddPartitionsToTxnRequest,
    ClientPartition,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    errors,
)
from tidegate.connectors.kafka.records import batches, count_of, end_of, greatest_time_of, marker, stamped

log = logging.getLogger(__name__)

_INIT, _ADD, _PRODUCE, _END = 4, 3, 9, 4
"""Versions of the messages. EndTxn 5 raises the epoch by itself: never mix it with lower versions."""
_DUPLICATE = 46
_LARGE, _BAD_TIME = (10, 18), 32


@dataclass(frozen=True)
class Producer:
    """The producer of a transaction: all that is needed to end the transaction."""

    transactional_id: str
    producer_id: int
    epoch: int


def init_producer(cluster: Cluster, transactional_id: str, timeout_ms: int) -> Producer:
    """Begin a new epoch. An open transaction of the id is aborted, and its writer can write no more."""

    def ask() -> Producer:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            version=_INIT,
        )
        answer = cluster.send(request, cluster.coordinator(transactional_id))
        raise_code(answer.error_code, f"InitProducerId of {transactional_id}")
        return Producer(transactional_id, answer.producer_id, answer.producer_epoch)

    return cluster.retried(f"begin of transaction {transactional_id}", ask)


class TransactionWriter:
    """Write record batches in a transaction, or (``producer`` None) without one.

    One request to a broker is under way while the next batches are built. ``firsts``: the first offset of the transaction in every
    partition.
    """

    def __init__(self, cluster: Cluster, producer: Producer | None, acks: int = -1) -> None:
        self._cluster, self._producer, self._acks = cluster, producer, acks
        self._sequence: dict[TopicPartition, int] = {}
        self._under_way: dict[int, tuple[Any, list[tuple[TopicPartition, bytes]]]] = {}
        self.firsts: dict[TopicPartition, int] = {}
        self.records = 0

    def send(self, written: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """Send batches, in order for each partition. Waits for the previous request; ``flush`` waits for the last."""
        made = [(place, self._stamped(place, data)) for place, data in written]
        self._add_partitions([place for place, _ in made])
        by_leader: dict[int, list[tuple[TopicPartition, bytes]]] = {}
        for place, data in made:
            by_leader.setdefault(self._leader(place), []).append((place, data))
        for node, group in by_leader.items():
            self._wait_for({place for place, _ in group})
            for turn in _turns(group):
                self._wait(node)
                self._begin(node, turn)

    def _wait_for(self, places: set[TopicPartition]) -> None:
        """Preserve the order of a partition whose leader moves: requests to the old leader finish first."""
        for node, (_, group) in list(self._under_way.items()):
            if any(place in places for place, _ in group):
                self._wait(node)

    def flush(self) -> None:
        """Return when everything sent is written, on all replicas in sync."""
        for node in list(self._under_way):
            self._wait(node)

    def _stamped(self, place: TopicPartition, data: bytes) -> bytes:
        self.records += count_of(data)
        if self._producer is None:
            return stamped(data, (-1, -1), -1)
        sequence = self._sequence.get(place, 0)
        self._sequence[place] = sequence + count_of(data)
        return stamped(data, (self._producer.producer_id, self._producer.epoch), sequence)

    def _leader(self, place: TopicPartition) -> int:
        return self._cluster.retried(f"leader of {place}", lambda: self._cluster.leader(place))

    def _add_partitions(self, places: list[TopicPartition]) -> None:
        producer = self._producer
        new = sorted({place for place in places if place not in self.firsts})
        if producer is None or not new:
            return
        by_topic: dict[str, list[int]] = {}
        for place in new:
            by_topic.setdefault(place.topic, []).append(place.partition)
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def ask() -> None:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[Topic(name=name, partitions=numbers) for name, numbers in by_topic.items()],
                version=_ADD,
            )
            answer = self._cluster.send(request, self._cluster.coordinator(producer.transactional_id))
            for topic in answer.results_by_topic_v3_and_below:
                for partition in topic.results_by_partition:
                    raise_code(partition.partition_error_code, f"AddPartitionsToTxn of {topic.name}")

        self._cluster.retried(f"transaction {producer.transactional_id}", ask)
        self.firsts |= dict.fromkeys(new, -1)

    def _begin(self, node: int, group: list[tuple[TopicPartition, bytes]]) -> None:
        try:
            self._under_way[node] = self._cluster.begin(self._request(group), node), group
        except errors.KafkaError:
            self._under_way[node] = None, group  # ``_wait`` sends it again

    def _request(self, group: list[tuple[TopicPartition, bytes]]) -> ProduceRequest:
        Topic = ProduceRequest.TopicProduceData
        by_topic: dict[str, list[Any]] = {}
        for place, data in group:
            part = Topic.PartitionProduceData(index=place.partition, records=data)
            by_topic.setdefault(place.topic, []).append(part)
        return ProduceRequest(
            transactional_id=None if self._producer is None else self._producer.transactional_id,
            acks=self._acks,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[Topic(name=name, partition_data=parts) for name, parts in by_topic.items()],
            version=_PRODUCE,
        )

    def _wait(self, node: int) -> None:
        begun, group = self._under_way.pop(node, (None, []))
        if not group:
            return
        waiting = dict(group)
        first = [begun]

        def ask() -> None:
            answers = [self._cluster.outcome(first.pop())] if first and first[0] is not None else self._again(waiting)
            problem: Exception | None = None
            for answer in answers:
                if isinstance(answer, Exception):
                    problem = answer
                    continue
                for topic in answer.responses:
                    for partition in topic.partition_responses:
                        place = TopicPartition(topic.name, partition.index)
                        if partition.error_code in (0, _DUPLICATE):
                            self._written(place, partition.base_offset)
                            waiting.pop(place, None)
                        elif partition.error_code in _LARGE:
                            raise _too_large(place, waiting[place])
                        elif partition.error_code == _BAD_TIME:
                            raise _wrong_time(place, waiting[place])
                        else:
                            problem = errors.for_code(partition.error_code)(f"write to {place}")
            if problem is not None:
                raise problem

        self._cluster.retried(f"write to {', '.join(map(str, waiting))}", ask)

    def _again(self, waiting: dict[TopicPartition, bytes]) -> list[Any]:
        """Send to the present leaders. The broker recognizes a batch that had arrived by its sequence, and skips it."""
        by_leader: dict[int, list[tuple[TopicPartition, bytes]]] = {}
        for place, data in waiting.items():
            by_leader.setdefault(self._cluster.leader(place), []).append((place, data))
        return self._cluster.send_all([(self._request(group), node) for node, group in by_leader.items()])

    def _written(self, place: TopicPartition, offset: int) -> None:
        if self.firsts.get(place, -1) < 0:
            self.firsts[place] = offset


def _turns(group: list[tuple[TopicPartition, bytes]]) -> list[list[tuple[TopicPartition, bytes]]]:
    """Split into requests: a request holds at most one batch of a partition."""
    turns: list[dict[TopicPartition, bytes]] = []
    seen: dict[TopicPartition, int] = {}
    for place, data in group:
        n = seen[place] = seen.get(place, -1) + 1
        if n == len(turns):
            turns.append({})
        turns[n][place] = data
    return [list(turn.items()) for turn in turns]


def _too_large(place: TopicPartition, data: bytes) -> ProgramError:
    return ProgramError(
        "A record batch is larger than the broker allows",
        where=f"topic {place.topic}, partition {place.partition}",
        found=f"a batch of {len(data):,} bytes with {count(count_of(data), 'record')}",
        cure="raise the topic's 'max.message.bytes', or lower the sink's 'batch.size' if the records themselves are small",
    )


def _wrong_time(place: TopicPartition, data: bytes) -> ProgramError:
    moment = greatest_time_of(data)
    shown = datetime.fromtimestamp(min(moment, _LAST_MS) / 1000, UTC).isoformat(timespec="seconds")
    return ProgramError(
        "The event time of a record is outside the range that the broker allows",
        where=f"topic {place.topic}, partition {place.partition}",
        found=f"a timestamp of up to {moment} ms ({shown}) among {count(count_of(data), 'record')}",
        cure="check the timestamp assigner (milliseconds?); or change the topic's 'message.timestamp.after.max.ms' and "
        "'message.timestamp.before.max.ms', or its 'message.timestamp.type' to LogAppendTime",
    )


_LAST_MS = 253_402_300_799_000
"""The end of the year 9999: ``datetime`` has no later date."""


# -- the end of a transaction -------------------------------------------------------------------------------------------


class Ended(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """The log contains no end of the transaction (yet)."""
    UNKNOWN = "unknown"
    """The log no longer contains its records."""


class NotOursError(Exception):
    """EndTxn was refused. One possible cause is that the transaction is already committed: the log decides."""


def end(cluster: Cluster, producer: Producer, *, commit: bool) -> None:
    """Send EndTxn. It may be repeated with the same outcome. Raises NotOursError where only the log shows the outcome."""

    def ask() -> None:
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
            version=_END,
        )
        answer = cluster.send(request, cluster.coordinator(producer.transactional_id))
        if answer.error_code in _REFUSALS:
            raise NotOursError(errors.for_code(answer.error_code).__name__)
        raise_code(answer.error_code, f"EndTxn of {producer.transactional_id}")

    cluster.retried(f"end of transaction {producer.transactional_id}", ask)


_REFUSALS = {
    errors.ProducerFencedError.errno,
    errors.InvalidProducerEpochError.errno,
    errors.InvalidProducerIdMappingError.errno,
    errors.InvalidTxnStateError.errno,
}


def ended(cluster: Cluster, producer: Producer, firsts: dict[TopicPartition, int]) -> Ended:
    """The outcome in the log. A transaction ends alike in all its partitions, so the first partition with an outcome decides."""
    answers = set()
    for place, first in firsts.items():
        answer = cluster.retried(f"log of {place}", lambda p=place, f=first: _in_log(cluster, producer, p, f))  # type: ignore[misc]
        if answer in (Ended.COMMITTED, Ended.ABORTED):
            return answer
        answers.add(answer)
    return Ended.OPEN if Ended.OPEN in answers else Ended.UNKNOWN


def _in_log(cluster: Cluster, producer: Producer, place: TopicPartition, first: int) -> Ended:
    """Read from the transaction's first record to its end.

    A producer id and an epoch have one transaction, so a marker with both is its end. A marker with a higher epoch is its end (the
    broker has fenced the producer) if a record of the transaction comes before it. Retention and compaction may have removed all
    records, and the end too: then a marker may belong to a later transaction, and the outcome is unknown.
    """
    request = partial(fetch_request, place, isolation=READ_UNCOMMITTED, wait_ms=10, partition_bytes=1 << 20)
    at, seen = max(first, cluster.offsets([place], EARLIEST)[place]), False
    while True:
        partition = cluster.send(request(at), cluster.leader(place)).responses[0].partitions[0]
        raise_code(partition.error_code, f"log of {place}")
        for batch in batches(bytes(partition.records or b"")):
            at = max(at, end_of(batch))
            if batch.producer_id != producer.producer_id or batch.producer_epoch < producer.epoch:
                continue
            seen = seen or batch.producer_epoch == producer.epoch
            if not seen:
                return Ended.UNKNOWN
            if batch.is_control_batch:
                return Ended.COMMITTED if marker(batch).committed else Ended.ABORTED
        if at >= partition.high_watermark:
            return Ended.OPEN if seen else Ended.UNKNOWN


def _coordinator_epoch(cluster: Cluster, producer: Producer, place: ClientPartition) -> int:
    """The epoch of the coordinator that last ended a transaction of the producer in the partition; -1: none. The broker refuses a
    lower epoch; a higher one would lock out the true coordinator."""
    active = cluster.admin.describe_producers([place])[place].active_producers
    return max((each.coordinator_epoch for each in active if each.producer_id == producer.producer_id), default=-1)


def end_hanging(cluster: Cluster, producer: Producer, places: Iterable[TopicPartition]) -> bool:
    """Write the end of an aborted transaction into partitions that lack it; False: the transaction is not aborted.

    A restarting broker may abort an expired transaction before it has loaded its topics, and takes the partitions for deleted. For
    its coordinator the transaction has ended, but readers would wait for its end for ever.
    """
    try:
        found = cluster.admin.describe_transactions([producer.transactional_id])[producer.transactional_id]
        ours = found.producer_id == producer.producer_id and 0 <= found.producer_epoch - producer.epoch <= 1
        if not ours or found.state.value != "CompleteAbort":
            return False
        for topic, partition in places:
            place = ClientPartition(topic, partition)
            epoch = _coordinator_epoch(cluster, producer, place)
            cluster.admin.abort_transaction(
                AbortTransactionSpec(place, producer.producer_id, found.producer_epoch, epoch)
            )
    except errors.KafkaError as error:
        log.warning("transaction %s hangs in the log: %s", producer.transactional_id, cluster.properties.masked(error))
        return False
    log.warning(
        "transaction %s was aborted by the broker, but its log lacked the abort marker", producer.transactional_id
    )
    return True
