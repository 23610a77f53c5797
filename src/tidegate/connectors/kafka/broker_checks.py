"""Checks of the brokers before a job with a Kafka sink starts."""

from __future__ import annotations

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.libraries import ConfigResource, ConfigResourceType, errors

_LEAST_VERSION = (3, 0)
"""Since this version transactions can be listed and described. Otherwise transactions that a crash left cannot be found."""
_MAXIMUM = "transaction.max.timeout.ms"
_CREATES = "auto.create.topics.enable"


def check_transactions(cluster: Cluster, timeout_ms: int) -> None:
    """Check the version, and the longest time that the broker leaves a transaction open."""
    version = cluster.broker_version
    if version < _LEAST_VERSION:
        raise ConfigurationError(
            "Transactions that another process commits need Kafka 3.0 or later",
            where=f"bootstrap servers {cluster.servers}",
            found=f"version {'.'.join(map(str, version))}",
            cure="upgrade the brokers, or use DeliveryGuarantee.AT_LEAST_ONCE",
        )
    most = _broker_setting(cluster, _MAXIMUM)
    if most is not None and timeout_ms > int(most):
        raise ConfigurationError(
            "The transaction timeout of the sink is longer than the broker allows",
            where=f"bootstrap servers {cluster.servers}",
            found=f"transaction.timeout.ms {timeout_ms}, the broker's {_MAXIMUM} is {most}",
            cure=f"set_property('transaction.timeout.ms', '{most}'), or raise {_MAXIMUM} on the brokers",
        )


def no_topic(cluster: Cluster, topic: str) -> ConfigurationError | None:
    """The error of a sink whose topic is missing; None: the brokers may create the topic at the first write."""
    if _broker_setting(cluster, _CREATES) != "false":
        return None
    return ConfigurationError(
        "The topic of the Kafka sink does not exist",
        where=f"bootstrap servers {cluster.servers}",
        found=f"no topic {topic!r}, and {_CREATES} of the brokers is false",
        cure="create the topic before the job starts, with the wanted number of partitions",
    )


def _broker_setting(cluster: Cluster, name: str) -> str | None:
    """None: the user may not read the setting. The broker itself will report a problem then."""
    broker = str(cluster.any_broker())
    try:
        found = cluster.admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, broker)], config_filter="all")
        value: str = found["broker"][broker][name]["value"]
        return value
    except (errors.KafkaError, LookupError):
        return None
