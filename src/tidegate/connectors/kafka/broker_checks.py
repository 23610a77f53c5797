"""What a broker must be like before a job with a Kafka sink starts."""

from __future__ import annotations

import kafka.errors as errors
from kafka.admin import ConfigResource, ConfigResourceType

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.kafka.cluster import Cluster

_LEAST_VERSION = (3, 0)
"""Since then transactions can be listed and described: without that nobody finds what a crash has left."""
_MAXIMUM = "transaction.max.timeout.ms"
_CREATES = "auto.create.topics.enable"


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


def no_topic(cluster: Cluster, topic: str) -> ConfigurationError | None:
    """The error of a sink whose topic is missing; None: the brokers may create it when the sink writes to it."""
    if _broker_setting(cluster, _CREATES) != "false":
        return None
    return ConfigurationError(
        "A Kafka sink writes to topics that exist",
        where=f"bootstrap servers {cluster.servers}",
        found=f"no topic {topic!r}, and {_CREATES} of the brokers is false",
        cure="create it before the job starts, with the number of partitions it should have",
    )


def _longest(cluster: Cluster) -> int | None:
    found = _broker_setting(cluster, _MAXIMUM)
    return None if found is None else int(found)


def _broker_setting(cluster: Cluster, name: str) -> str | None:
    """None: the user may not read it, and the broker will say so itself."""
    admin = cluster.admin
    broker = str(next(iter(admin._manager.cluster.brokers())).node_id)
    try:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, broker)], config_filter="all")
        value: str = found["broker"][broker][name]["value"]
        return value
    except (errors.KafkaError, LookupError):
        return None
