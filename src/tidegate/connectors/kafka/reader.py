"""Read ranges of offsets in the tasks, over connections that live as long as the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.base.errors import ServiceError, UserCodeError
from tidegate.connectors.kafka.cluster import LATEST, Cluster, TopicPartition, fetch_request, raise_code
from tidegate.connectors.kafka.libraries import errors
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.records import Aborted, BadRecord, batches, end_of
from tidegate.connectors.kafka.serialization import KafkaRecordDeserializationSchema
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.source import Batch, SplitInterval, SplitReader

_FETCH_BYTES = 4 << 20
_WAIT_MS = 500
_MOST_EMPTY = 60


class KafkaReader(SplitReader):
    """``isolation``: 1 skips records of aborted transactions; the range ends before the first open transaction. ``bad``: the side
    output for records that do not deserialize; None: such a record fails the job."""

    interleaves = True

    def __init__(
        self,
        properties: ClientProperties,
        isolation: int,
        deserializer: KafkaRecordDeserializationSchema,
        bad: OutputTag | None = None,
    ) -> None:
        self._properties, self._isolation, self._deserializer = properties, isolation, deserializer
        self._bad = bad
        self._bytes = properties.number("max.partition.fetch.bytes", _FETCH_BYTES, least=1024)
        self._is_open = False

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        if not self._is_open:
            self._deserializer.open()
            self._is_open = True
        cluster = Cluster.of(self._properties)
        place = TopicPartition.of(interval.split)
        at, end, nothing = interval.start, interval.end, 0
        waiting = self._begin(cluster, place, at, end)
        while at < end:
            data, aborted = self._answer(cluster, place, at, waiting)
            hidden, found, start = Aborted(aborted if self._isolation else ()), [], at
            for batch in batches(data):
                if end_of(batch) <= at:
                    continue
                if not hidden.hides(batch) and not batch.is_control_batch:
                    found.append((batch, at))
                at = min(end_of(batch), end)
                if at >= end:
                    break
            nothing = nothing + 1 if at == start else 0
            if nothing > _MOST_EMPTY:
                raise self._stuck(cluster, place, at, end)
            # The next answer is on its way while this one is decoded.
            waiting = self._begin(cluster, place, at, end)
            for batch, first in found:
                yield from self._records(place, batch, first, end)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _begin(self, cluster: Cluster, place: TopicPartition, at: int, end: int) -> Any:
        if at >= end:
            return None
        try:
            return cluster.begin(self._request(place, at), cluster.leader(place))
        except errors.KafkaError:
            return None  # asked again, with retries, when the answer is needed

    def _answer(self, cluster: Cluster, place: TopicPartition, at: int, waiting: Any) -> tuple[bytes, list[Any]]:
        first = [waiting]

        def ask() -> tuple[bytes, list[Any]]:
            begun = first.pop() if first and first[0] is not None else None
            if begun is None:
                begun = cluster.begin(self._request(place, at), cluster.leader(place))
            partition = cluster.outcome(begun).responses[0].partitions[0]
            if partition.error_code == errors.OffsetOutOfRangeError.errno:
                raise _Gone
            raise_code(partition.error_code, f"read {place}")
            return bytes(partition.records or b""), list(partition.aborted_transactions or ())

        try:
            return cluster.retried(f"read {place} from offset {at}", ask)
        except _Gone:
            raise offsets_gone(place, at, "the broker no longer has this offset") from None

    def _request(self, place: TopicPartition, at: int) -> Any:
        return fetch_request(place, at, isolation=self._isolation, wait_ms=_WAIT_MS, partition_bytes=self._bytes)

    def _stuck(self, cluster: Cluster, place: TopicPartition, at: int, end: int) -> ServiceError:
        """The log reached the end of the range when the range was planned, so a shorter log has lost records."""
        ends = cluster.offsets([place], LATEST)[place]
        return ServiceError(
            "A Kafka partition has become shorter: records are lost",
            where=f"topic {place.topic}, partition {place.partition}, offsets {at} to {end}",
            found=f"nothing to read, and the log ends at {ends}",
            cure="look for an unclean leader election in the logs of the brokers",
        )

    # -- records -----------------------------------------------------------------------------------------------------

    def _records(self, place: TopicPartition, batch: Any, first: int, end: int) -> Iterator[Batch]:
        """The records of a record batch inside the range. The range may begin or end inside the batch."""
        records = list(batch)
        if records and (records[0].offset < first or records[-1].offset >= end):
            records = [record for record in records if first <= record.offset < end]
        if records:
            yield self._deserialized(place, records)

    def _deserialized(self, place: TopicPartition, records: list[Any]) -> Batch:
        try:
            return self._deserializer.batch(place, records)
        except Exception as error:
            if self._bad is not None:
                return self._with_bad(place, records, self._bad)
            if isinstance(error, UserCodeError):
                raise
            bad, cause = self._first_bad(place, records, error)
            raise UserCodeError(
                "The deserializer of a Kafka source fails for a record",
                where=f"topic {place.topic}, partition {place.partition}, offset {bad.offset}",
                found=f"{type(cause).__name__}: {cause}; value {bad.value!r:.200}",
                cure="correct the deserializer; or return None for such records, which skips them; or send them to a side output: "
                "KafkaSource.builder().set_bad_record_output(OutputTag(...))",
            ) from cause

    def _with_bad(self, place: TopicPartition, records: list[Any], tag: OutputTag) -> Batch:
        """Deserialize one by one, in order; a record that fails becomes a pair of the tag and a ``BadRecord``."""
        values: list[Any] = []
        times: list[int] = []
        for record in records:
            try:
                found = Batch.of(self._deserializer.batch(place, [record]))
            except Exception as error:
                found = Batch([(tag, _bad_record(place, record, error))], [record.timestamp])
            values += found.rows()
            times += found.time_list() or []
        return Batch(values, times)

    def _first_bad(self, place: TopicPartition, records: list[Any], error: Exception) -> tuple[Any, Exception]:
        """The first record that fails, found one by one: batches are for speed, not for errors."""
        for record in records:
            try:
                self._deserializer.batch(place, [record])
            except Exception as found:
                return record, found
        return records[0], error

    def close(self) -> None:
        self._is_open = False
        self._deserializer.close()


def _bad_record(place: TopicPartition, record: Any, error: Exception) -> BadRecord:
    headers = tuple((name, value or b"") for name, value in record.headers)
    text = f"{type(error).__name__}: {error}"
    return BadRecord(*place, record.offset, record.timestamp, record.key, record.value, headers, text)


class _Gone(Exception):
    pass


def offsets_gone(place: TopicPartition, at: int, found: str) -> ServiceError:
    return OffsetsGoneError(
        "Kafka has deleted records that the source has not read yet",
        where=f"topic {place.topic}, partition {place.partition}, offset {at}",
        found=found,
        cure="raise the topic's retention; to continue without the lost records set the source's property "
        "'auto.offset.reset' to 'earliest' or 'latest' and start again",
    )


class OffsetsGoneError(ServiceError):
    """The broker no longer has the offsets of the checkpoint: a restart does not help."""

    restart_helps = False
