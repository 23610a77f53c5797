"""What a broker must be like before a job with transactions starts."""

from __future__ import annotations

import kafka.errors as errors
from kafka.admin import ConfigResource, ConfigResourceType

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.kafka.cluster import Cluster

_LEAST_VERSION = (3, 0)
"""Since then transactions can be listed and described: without that nobody finds what a crash has left."""
_MAXIMUM = "transaction.max.timeout.ms"


def check_transactions(cluster: Cluster, timeout_ms: int) -> None:
    """Version and the longest time the broker leaves a transaction open."""
    admin = cluster.admin
    version = admin._manager.broker_version
    if version < _LEAST_VERSION:
        raise ConfigurationError(
            "Transactions that another process commits need Kafka 3.0 or later",
            where=f"bootstrap servers {cluster.servers}",
            found=f"version {'.'.join(map(str, version))}",
            cure="upgrade the brokers, or use DeliveryGuarantee.AT_LEAST_ONCE",
        )
    most = _longest(cluster)
    if most is not None and timeout_ms > most:
        raise ConfigurationError(
            "The broker limits how long a transaction may stay open",
            where=f"bootstrap servers {cluster.servers}",
            found=f"transaction.timeout.ms {timeout_ms}, the broker's {_MAXIMUM} is {most}",
            cure=f"set_property('transaction.timeout.ms', '{most}'), or raise it on the brokers",
        )


def _longest(cluster: Cluster) -> int | None:
    """None: the user may not read it, and the broker will say so itself."""
    admin = cluster.admin
    broker = str(next(iter(admin._manager.cluster.brokers())).node_id)
    try:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, broker)], config_filter="all")
        return int(found["broker"][broker][_MAXIMUM]["value"])
    except (errors.KafkaError, LookupError, ValueError):
        return None
