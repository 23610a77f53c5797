"""Connections to a Kafka cluster, and the checks of its brokers before a job with a Kafka sink starts.

A connection gives metadata, leaders and offsets. It retries requests until a deadline.

One ``Cluster`` serves a whole process for one set of properties: the readers and writers of a worker share its
connections, which live as long as the worker. Several threads may use it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from tidegate.base.errors import AccessError, ConfigurationError, ServiceError
from tidegate.connectors.kafka.libraries import (
    Client,
    ConfigResource,
    ConfigResourceType,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    errors,
)
from tidegate.connectors.kafka.properties import ClientProperties

log = logging.getLogger(__name__)
T = TypeVar("T")

EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
DEFAULT_TIMEOUT_MS = 30_000
_BACKOFF_MS = 1_000
"""As in Kafka's own client. The 30 s of kafka-python are as long as a request is retried: the first request after an outage
would fail once more."""

_TLS_PATIENCE_S = 3.0
_CREATION_S = 10.0
"""How long a broker may take to create a topic."""

_PASSING = (errors.RetriableError, errors.UnknownBrokerIdError, errors.BrokerNotAvailableError)
"""Errors that may pass in a moment: brokers restart, leaders and coordinators move."""
_REFUSED = (errors.SaslAuthenticationFailedError, errors.AuthorizationError)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @staticmethod
    def of(name: str) -> TopicPartition:
        """Parse ``topic-7``."""
        topic, _, number = name.rpartition("-")
        return TopicPartition(topic, int(number))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cluster(Client):
    """See the module. ``of`` gives the one of this process."""

    _of_this_process: ClassVar[dict[tuple[int, str], Cluster]] = {}
    _lock: ClassVar = threading.Lock()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Cluster:
        """The connections of this process for these properties: made at the first call, never inherited by a fork."""
        arguments = ClientProperties(properties)
        key = (os.getpid(), repr(sorted(arguments.client().items())))
        with cls._lock:
            if key not in cls._of_this_process:
                cls._of_this_process[key] = cls(arguments)
            return cls._of_this_process[key]

    def __init__(self, properties: ClientProperties) -> None:
        self.properties = properties
        timeout_ms = properties.number("request.timeout.ms", DEFAULT_TIMEOUT_MS)
        given = {"client_id": "tidegate", "reconnect_backoff_max_ms": _BACKOFF_MS, **properties.client()}
        super().__init__(given, timeout_ms)
        self.servers = str(given.get("bootstrap_servers", ""))
        self.timeout_s = timeout_ms / 1000
        self._leaders: dict[TopicPartition, int] = {}
        atexit.register(self.close)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        if not self.servers:
            raise ConfigurationError(
                "A Kafka client needs the address of a broker",
                found="no bootstrap servers",
                cure='set_bootstrap_servers("host:9092")',
            )
        return super()._connect()

    def _not_connected(self, error: Exception, *, refused: bool) -> ServiceError:
        if refused:
            return self._wrong_password()
        untrusted = _why_untrusted(self._arguments)
        if untrusted is not None:
            return AccessError(
                "The certificate of the Kafka broker is not trusted",
                where=f"bootstrap servers {self.servers}",
                found=untrusted,
                cure="set 'ssl.ca.location' to the file with the certificate that has signed it. The certificate must name the "
                "broker's host, unless 'ssl.endpoint.identification.algorithm' is empty",
            )
        return ServiceError(
            "No Kafka broker answers",
            where=f"bootstrap servers {self.servers}",
            found=self.properties.masked(f"{type(error).__name__}: {error} within {self.timeout_s:.0f} s"),
            cure="check the address, that the broker runs, and that 'security.protocol' is the one of its listener",
        )

    def _wrong_password(self) -> ServiceError:
        user = self._arguments.get("sasl_plain_username")
        mechanism = self._arguments.get("sasl_mechanism")
        return AccessError(
            "The Kafka broker refuses user and password",
            where=f"bootstrap servers {self.servers}",
            found=f"user {user!r} with {mechanism}",
            cure="check 'sasl.username', 'sasl.password' and 'sasl.mechanism'",
        )

    def retried(self, what: str, attempt: Callable[[], T], timeout_s: float | None = None) -> T:
        """Repeat the attempt while its errors may pass; ``what`` names it in errors."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        pause = 0.02
        while True:
            try:
                return attempt()
            except _PASSING as error:
                if time.monotonic() > deadline:
                    raise self._failed(what, error) from None
                self.forget_places()
            except errors.KafkaError as error:
                raise self._failed(what, error) from None
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _failed(self, what: str, error: Exception) -> ServiceError:
        text = self.properties.masked(f"{type(error).__name__}: {error}")[:500]
        if isinstance(error, errors.SaslAuthenticationFailedError):
            return self._wrong_password()
        if isinstance(error, _REFUSED):
            return AccessError(
                "The Kafka user lacks a right that the job needs",
                where=f"{what}, bootstrap servers {self.servers}",
                found=f"user {self._arguments.get('sasl_plain_username') or 'ANONYMOUS'}: {text}",
                cure="add the ACL (docs/kafka.md lists the required ones), or use another user",
            )
        cure = "check that the brokers run; the job continues from its last checkpoint"
        return ServiceError("A request to Kafka failed", where=f"{what}, {self.servers}", found=text, cure=cure)

    def forget_places(self) -> None:
        """The next request asks for leaders and coordinators again."""
        self._leaders.clear()
        self.forget_coordinators()

    # -- topics ------------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> dict[str, list[TopicPartition]]:
        """The partitions of topics; None: of all topics. Topics that do not exist are left out. Learns the leaders. ``create``: the
        brokers may create the topics."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]

        def ask() -> dict[str, list[TopicPartition]]:
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
            found: dict[str, list[TopicPartition]] = {}
            for topic in self.send(request).topics:
                if topic.error_code == errors.UnknownTopicOrPartitionError.errno:
                    continue
                raise_code(topic.error_code, f"topic {topic.name}")
                found[topic.name] = self._learn(topic)
            return found

        return self.retried("metadata of topics", ask)

    def created(self, topic: str) -> list[TopicPartition] | None:
        """The partitions of a topic that the brokers create because a client asks for it; None: the brokers do not create it."""
        deadline = time.monotonic() + _CREATION_S
        while True:  # the first answer comes before the topic exists
            found = self.metadata([topic], create=True)
            if topic in found or time.monotonic() > deadline:
                return found.get(topic)
            time.sleep(0.05)

    def _learn(self, topic: Any) -> list[TopicPartition]:
        partitions = []
        for partition in topic.partitions:
            place = TopicPartition(topic.name, partition.partition_index)
            if partition.leader_id >= 0:
                self._leaders[place] = partition.leader_id
            partitions.append(place)
        return sorted(partitions)

    def matching(self, pattern: str) -> dict[str, list[TopicPartition]]:
        """The topics whose whole name matches, without Kafka's own."""
        found = self.metadata(None)
        return {n: p for n, p in found.items() if re.fullmatch(pattern, n) and not n.startswith("__")}

    def leader(self, place: TopicPartition) -> int:
        """The node to write to and to read from."""
        if place not in self._leaders:
            self.metadata([place.topic])
        if place not in self._leaders:
            raise errors.LeaderNotAvailableError(f"{place} has no leader")
        return self._leaders[place]

    def offsets(
        self, partitions: Iterable[TopicPartition], moment: int, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """The first or last offset of partitions, or the offset of their first record since a time (-1: none)."""
        every = list(partitions)

        def ask() -> dict[TopicPartition, int]:
            by_leader: dict[int, dict[str, list[int]]] = {}
            for place in every:
                by_leader.setdefault(self.leader(place), {}).setdefault(place.topic, []).append(place.partition)
            requests = [(_list_offsets(topics, moment, isolation), node) for node, topics in by_leader.items()]
            found: dict[TopicPartition, int] = {}
            for answer in self.send_all(requests):
                if isinstance(answer, Exception):
                    raise answer
                for topic in answer.topics:
                    for partition in topic.partitions:
                        place = TopicPartition(topic.name, partition.partition_index)
                        raise_code(partition.error_code, f"offsets of {place}")
                        found[place] = partition.offset
            return found

        return self.retried("offsets of partitions", ask) if every else {}


def raise_code(code: int, what: str) -> None:
    """Raise the client's error for an error code."""
    if code:
        raise errors.for_code(code)(what)


def _list_offsets(topics: Mapping[str, list[int]], moment: int, isolation: int) -> ListOffsetsRequest:
    Topic = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            Topic(
                name=name,
                partitions=[
                    Topic.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=moment)
                    for n in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
        timeout_ms=DEFAULT_TIMEOUT_MS,
        max_version=7,
    )


def fetch_request(
    place: TopicPartition, at: int, *, isolation: int, wait_ms: int, partition_bytes: int
) -> FetchRequest:
    """A fetch of one partition. While there is nothing to read, the broker delays the answer for ``wait_ms`` at most."""
    Topic = FetchRequest.FetchTopic
    partition = Topic.FetchPartition(
        partition=place.partition,
        current_leader_epoch=-1,
        fetch_offset=at,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=partition_bytes,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 30,  # the limit of the partition applies
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[Topic(topic=place.topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        version=11,
    )


def _why_untrusted(arguments: Mapping[str, Any]) -> str | None:
    """Why TLS does not trust the certificate of the first broker that can be reached; None: it does, or there is no TLS."""
    if "SSL" not in str(arguments.get("security_protocol", "")):
        return None
    context = ssl.create_default_context(cafile=arguments.get("ssl_cafile"))
    context.check_hostname = bool(arguments.get("ssl_check_hostname", True))
    for address in str(arguments.get("bootstrap_servers", "")).split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with (
                socket.create_connection((host, int(port)), _TLS_PATIENCE_S) as plain,
                contextlib.closing(context.wrap_socket(plain, server_hostname=host)),
            ):
                return None
        except ssl.SSLCertVerificationError as error:
            return f"{address.strip()}: {error.verify_message}"
        except (OSError, ValueError) as error:
            log.debug("no TLS with %s: %s", address, type(error).__name__)
    return None


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
