"""Kafka topics as a sink: exactly once by transactions that the driver commits with the checkpoint."""

from __future__ import annotations

import logging
import re
from typing import Any

from tidegate.base.arguments import made_by, wrong
from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.base.files import Files
from tidegate.connectors.kafka import sink_record
from tidegate.connectors.kafka.cluster import Cluster, check_transactions, no_topic
from tidegate.connectors.kafka.committer import KafkaCommitter
from tidegate.connectors.kafka.prefix_hold import PrefixHold
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.records import CODECS
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.sink_record import SinkRecord, base_of, legal_name
from tidegate.connectors.kafka.writer import KafkaWriter
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    DeliveryGuarantee,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

log = logging.getLogger(__name__)

_TIMEOUT_MS = 900_000
"""The broker's default maximum."""
_BATCH_BYTES = 512 << 10
USED = {
    "transaction.timeout.ms",
    "compression.type",
    "batch.size",
    "acks",
    "transactional.id.prefix",
    "max.request.size",
}
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


_GUARANTEES = {
    DeliveryGuarantee.EXACTLY_ONCE: SinkGuarantee.TWO_PHASE_COMMIT,
    DeliveryGuarantee.AT_LEAST_ONCE: SinkGuarantee.NONE,
    DeliveryGuarantee.NONE: SinkGuarantee.BEST_EFFORT,
}


@made_by("KafkaSink.builder(), then build()", ClientProperties)
class KafkaSink(Sink):
    """Write records to topics. Made by ``builder``. EXACTLY_ONCE: readers with ``read_committed`` see whole checkpoints only."""

    to_raise = "set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)"
    stamps = True
    """Whether records carry their event time in Kafka."""
    only_logs = False
    """Whether records that the brokers refuse are reported and discarded."""

    def __init__(
        self,
        properties: ClientProperties,
        serializer: KafkaRecordSerializationSchema,
        delivery: DeliveryGuarantee,
        prefix: str | None,
        *,
        keep_output: bool,
    ) -> None:
        self.properties, self.serializer, self.prefix = properties, serializer, prefix
        self.keep_output = keep_output
        self.timeout_ms = properties.number("transaction.timeout.ms", _TIMEOUT_MS)
        self.codec = CODECS[properties.choice("compression.type", CODECS, "none")]
        self.batch_bytes = properties.number("batch.size", _BATCH_BYTES, least=1024)
        self._deliver(delivery)

    def _deliver(self, delivery: DeliveryGuarantee) -> None:
        self.delivery = delivery
        exactly_once = delivery is DeliveryGuarantee.EXACTLY_ONCE
        self.publication = Publication.CHECKPOINT if exactly_once else Publication.ROUND
        self.guarantee = SinkGuarantee.BEST_EFFORT if self.only_logs else _GUARANTEES[delivery]

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Return a builder. It needs servers and a record serializer."""
        return KafkaSinkBuilder()

    def validate(self) -> None:
        """Check that the broker answers, supports transactions that another process ends, and has the topic or creates it."""
        cluster = Cluster.of(self.properties)
        topic = self.serializer.topic
        found = cluster.metadata([topic] if topic is not None else [])
        if topic is not None and topic not in found:
            problem = no_topic(cluster, topic)
            if problem is not None:
                raise problem
            log.info("topic %s does not exist: the brokers create it with the first record", topic)
        if self.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            check_transactions(cluster, self.timeout_ms)

    def validate_checkpoints(self, interval_ms: int | None) -> None:
        if self.delivery is not DeliveryGuarantee.EXACTLY_ONCE:
            return
        if interval_ms is None:
            raise ConfigurationError(
                "EXACTLY_ONCE commits with checkpoints, and the job takes none",
                where="KafkaSink",
                found="execution.checkpointing.interval is not set",
                cure="env.enable_checkpointing(1000), or DeliveryGuarantee.AT_LEAST_ONCE",
            )
        if interval_ms >= self.timeout_ms:
            raise ConfigurationError(
                "The transaction timeout is not longer than the checkpoint interval: transactions would expire before their commit",
                where="KafkaSink",
                found=f"checkpoints every {interval_ms} ms, transaction.timeout.ms {self.timeout_ms}",
                cure="checkpoint more often, or raise transaction.timeout.ms",
            )

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        exactly_once = self.delivery is DeliveryGuarantee.EXACTLY_ONCE
        return KafkaWriter(
            Cluster.of(self.properties),
            self.serializer,
            context,
            base=base_of(context) if exactly_once else None,
            timeout_ms=self.timeout_ms,
            codec=self.codec,
            batch_bytes=self.batch_bytes,
            keep=self.keep_output,
            acks=1 if self.delivery is DeliveryGuarantee.NONE else -1,
            stamps=self.stamps,
            only_logs=self.only_logs,
        )

    def create_committer(self, context: CommitterContext) -> Committer | None:
        """Also record the names of the sink's transactions. Fails if another running job uses the prefix."""
        if self.delivery is not DeliveryGuarantee.EXACTLY_ONCE:
            return None
        record = self._record(context)
        sink_record.write(Files(context.staging), record)
        hold = None
        if context.lease:  # otherwise there is no job that could hold the prefix
            hold = PrefixHold.take(Cluster.of(self.properties), record.prefix, record.mark, context.job_id)
        return KafkaCommitter(
            lambda: Cluster.of(self.properties), record.base, context, timeout_ms=self.timeout_ms, hold=hold
        )

    def _record(self, context: CommitterContext) -> SinkRecord:
        mark = sink_record.mark_for(context)
        job, sink = legal_name(context.job_id), context.sink_id[:12]
        prefix = self.prefix or job
        return SinkRecord(
            mark=mark,
            base=f"{prefix}-{job}-{sink}-{mark}",
            prefix=prefix,
            servers=self.properties["bootstrap.servers"],
            timeout_ms=self.timeout_ms,
        )


class KafkaSinkBuilder:
    """Requires bootstrap servers and a record serializer; for EXACTLY_ONCE also a transactional id prefix."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._serializer: KafkaRecordSerializationSchema | None = None
        self._delivery = DeliveryGuarantee.NONE
        self._prefix: str | None = None
        self._keep = True

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        """Set the addresses of brokers: ``host:port,host:port``."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """Set the guarantee. NONE is the default, as in PyFlink: a failure may lose or duplicate records that are in flight."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise wrong(
                "set_delivery_guarantee", "a DeliveryGuarantee", delivery_guarantee, "DeliveryGuarantee.EXACTLY_ONCE"
            )
        self._delivery = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """Set the prefix of all transactional ids of the sink, which an ACL can name. Job, sink and worker are added."""
        prefix = transactional_id_prefix
        if not isinstance(prefix, str) or not _LEGAL.fullmatch(prefix) or len(prefix) > 64:
            raise ConfigurationError(
                "A transactional id prefix has 1 to 64 letters, digits, '.', '_' and '-'",
                where="KafkaSink.builder()",
                found=repr(prefix),
                cure='for example "payments-sink"',
            )
        self._prefix = prefix
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        """Set how records become messages, and the topic."""
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise wrong(
                "set_record_serializer",
                "a KafkaRecordSerializationSchema",
                record_serializer,
                "KafkaRecordSerializationSchema.builder()...build()",
            )
        self._serializer = record_serializer
        return self

    def set_keep_output(self, keep: bool) -> KafkaSinkBuilder:
        """Whether checkpoints store a copy of the output in open transactions (the default): then nothing is lost however long an
        outage lasts. Without a copy the job fails if the broker has aborted one of the transactions."""
        self._keep = bool(keep)
        return self

    def set_property(self, key: str, value: str) -> KafkaSinkBuilder:
        """Set a property of Kafka's producer."""
        self._properties[key] = str(value)
        return self

    def build(self) -> KafkaSink:
        """Return the sink. With ``EXACTLY_ONCE`` it needs a prefix for transactional ids."""
        properties = ClientProperties(self._properties)
        properties.check("KafkaSink", USED)
        properties.client()
        prefix = self._prefix or properties.get("transactional.id.prefix")
        exactly_once = self._delivery is DeliveryGuarantee.EXACTLY_ONCE
        needed = {
            "set_bootstrap_servers(...)": "bootstrap.servers" in properties,
            "set_record_serializer(...)": self._serializer is not None,
            "set_transactional_id_prefix(...)": prefix is not None or not exactly_once,
        }
        missing = [call for call, there in needed.items() if not there]
        if missing:
            raise ProgramError(
                "The Kafka sink is not complete", found=f"without {', '.join(missing)}", cure="call the missing methods"
            )
        assert self._serializer is not None
        return KafkaSink(properties, self._serializer, self._delivery, prefix, keep_output=self._keep)
