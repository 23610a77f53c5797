"""Connections to a Kafka cluster: metadata, coordinators, offsets, and requests that are tried again until a deadline.

One ``Cluster`` serves a whole process for one set of properties: a worker's readers and writers share its connections, which
live as long as the worker. It is safe to be used by several threads.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from tidegate.base.errors import AccessError, ConfigurationError, ServiceError
from tidegate.connectors.kafka.access import is_refused, why_untrusted
from tidegate.connectors.kafka.properties import ClientProperties

try:
    import kafka.errors as errors
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
    from kafka.protocol.metadata import CoordinatorType, MetadataRequest

    from kafka import KafkaAdminClient
except ImportError as missing:  # pragma: no cover - an installation without the extra
    raise ConfigurationError(
        "The Kafka connector needs its client", found=str(missing), cure="pip install 'tidegate[kafka]'"
    ) from None

log = logging.getLogger(__name__)
T = TypeVar("T")

EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
DEFAULT_TIMEOUT_MS = 30_000
_BACKOFF_MS = 1_000
"""As in Kafka's own client. This one's 30 s are as long as a request is tried: behind an outage it would fail once more."""

_CREATION_S = 10.0
"""How long a broker may take to create a topic."""

_PASSING = (errors.RetriableError, errors.UnknownBrokerIdError, errors.BrokerNotAvailableError)
"""What may be over in a moment: brokers restart, leaders and coordinators move."""
_REFUSED = (errors.SaslAuthenticationFailedError, errors.AuthorizationError)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    @staticmethod
    def of(name: str) -> TopicPartition:
        """Of ``topic-7``."""
        topic, _, number = name.rpartition("-")
        return TopicPartition(topic, int(number))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cluster:
    """See the module. ``of`` gives the one of this process."""

    _of_this_process: ClassVar[dict[tuple[int, str], Cluster]] = {}
    _lock: ClassVar = threading.Lock()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Cluster:
        """The process's connections for these properties: made at the first call, never by a parent of a fork."""
        arguments = ClientProperties(properties)
        key = (os.getpid(), repr(sorted(arguments.client().items())))
        with cls._lock:
            if key not in cls._of_this_process:
                cls._of_this_process[key] = cls(arguments)
            return cls._of_this_process[key]

    def __init__(self, properties: ClientProperties) -> None:
        self.properties = properties
        self._arguments = {"client_id": "tidegate", "reconnect_backoff_max_ms": _BACKOFF_MS, **properties.client()}
        self.servers = str(self._arguments.get("bootstrap_servers", ""))
        self.timeout_s = properties.number("request.timeout.ms", DEFAULT_TIMEOUT_MS) / 1000
        self._admin: KafkaAdminClient | None = None
        self._leaders: dict[TopicPartition, int] = {}
        self._connecting = threading.Lock()
        quiet_client_log()
        atexit.register(self.close)

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> KafkaAdminClient:
        with self._connecting:
            if self._admin is None:
                self._admin = self._connect()
            return self._admin

    def _connect(self) -> KafkaAdminClient:
        if not self.servers:
            raise ConfigurationError(
                "A Kafka client needs the address of a broker",
                found="no bootstrap servers",
                cure='set_bootstrap_servers("host:9092")',
            )
        admin = KafkaAdminClient.__new__(KafkaAdminClient)
        try:
            admin.__init__(bootstrap_timeout_ms=int(self.timeout_s * 1000), **self._arguments)
        except (errors.KafkaError, OSError, ValueError, AssertionError) as error:
            raise self._not_connected(admin, error) from None  # its text and its causes may hold the password
        return admin

    def _not_connected(self, admin: KafkaAdminClient, error: Exception) -> ServiceError:
        manager = getattr(admin, "_manager", None)
        refused = False
        if manager is not None:
            refused = "sasl_mechanism" in self._arguments and is_refused(manager)
            manager.close()
            admin._net.stop()
        if refused:
            return self._wrong_password()
        untrusted = why_untrusted(self._arguments)
        if untrusted is not None:
            return AccessError(
                "The certificate of the Kafka broker must be one that is trusted",
                where=f"bootstrap servers {self.servers}",
                found=untrusted,
                cure="name the file with the certificate that has signed it: 'ssl.ca.location'; the broker's name must be in it, "
                "unless 'ssl.endpoint.identification.algorithm' is empty",
            )
        return ServiceError(
            "A Kafka broker must answer",
            where=f"bootstrap servers {self.servers}",
            found=self.properties.masked(f"{type(error).__name__}: {error} within {self.timeout_s:.0f} s"),
            cure="check the address, that the broker runs, and that 'security.protocol' is the one of its listener",
        )

    def _wrong_password(self) -> ServiceError:
        user = self._arguments.get("sasl_plain_username")
        mechanism = self._arguments.get("sasl_mechanism")
        return AccessError(
            "The Kafka broker does not take user and password",
            where=f"bootstrap servers {self.servers}",
            found=f"user {user!r} with {mechanism}",
            cure="check 'sasl.username', 'sasl.password' and 'sasl.mechanism'",
        )

    def send(self, request: Any, node: int | None = None) -> Any:
        """The answer of a node, or of any. Raises what went wrong on the way; error codes are the caller's."""
        manager = self.admin._manager

        async def answer() -> Any:
            return await manager.send(request, node_id=node)

        return manager.run(answer)

    def send_all(self, requests: Iterable[tuple[Any, int | None]]) -> list[Any]:
        """Answers, or the errors instead of them; all requests are under way at once."""
        manager = self.admin._manager
        waiting = [(request, node) for request, node in requests]

        async def answers() -> list[Any]:
            futures = [manager.send(request, node_id=node) for request, node in waiting]
            found: list[Any] = []
            for future in futures:
                try:
                    found.append(await future)
                except Exception as error:
                    found.append(error)
            return found

        result: list[Any] = manager.run(answers)
        return result

    def begin(self, request: Any, node: int) -> Any:
        """Send without waiting; ``outcome`` of what it returns gives the answer."""
        manager = self.admin._manager

        async def answer() -> Any:
            return await manager.send(request, node_id=node)

        return manager.call_soon(answer)

    def outcome(self, future: Any) -> Any:
        """The answer to what was begun."""

        async def answer() -> Any:
            return await future

        return self.admin._manager.run(answer)

    def retried(self, what: str, attempt: Callable[[], T], timeout_s: float | None = None) -> T:
        """What the attempt gives, once the cluster lets it."""
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
                "The Kafka user needs the rights for what the job does",
                where=f"{what}, bootstrap servers {self.servers}",
                found=f"user {self._arguments.get('sasl_plain_username') or 'ANONYMOUS'}: {text}",
                cure="add the ACL (docs/kafka.md lists those that are needed), or another user",
            )
        cure = "check that the brokers run; the job goes on from its last checkpoint"
        return ServiceError("Kafka must answer a request", where=f"{what}, {self.servers}", found=text, cure=cure)

    def forget_places(self) -> None:
        """Leaders and coordinators are asked for again."""
        self._leaders.clear()
        if self._admin is not None:
            cluster = self._admin._manager.cluster
            cluster._coordinators.clear()
            cluster.request_update()

    # -- topics ------------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> dict[str, list[TopicPartition]]:
        """The partitions of topics, of all if None; topics that do not exist are missing. Learns the leaders. ``create``: the
        brokers may create them."""
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
        """The partitions of a topic that the brokers create because a client asks for it; None: they do not."""
        deadline = time.monotonic() + _CREATION_S
        while True:  # the answer to the first question comes before the topic
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
        """The node to write to and to read from; asked for again after ``forget_places``."""
        if place not in self._leaders:
            self.metadata([place.topic])
        if place not in self._leaders:
            raise errors.LeaderNotAvailableError(f"{place} has no leader")
        return self._leaders[place]

    def offsets(
        self, partitions: Iterable[TopicPartition], moment: int, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Where partitions begin or end, or where their first record since a time is (-1: none)."""
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

    # -- coordinators ------------------------------------------------------------------------------------------------

    def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> int:
        admin = self.admin

        async def find() -> Any:
            return await admin._find_coordinator_id(key, kind)

        node: int = admin._manager.run(find)
        return node

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


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
    """A fetch of one partition; its answer is held back for ``wait_ms`` at the most while there is nothing."""
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
        max_bytes=1 << 30,  # the limit of a partition is the one that counts
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[Topic(topic=place.topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        version=11,
    )


class _Limited(logging.Filter):
    """A client without its broker says so many times a second: once in ten seconds is enough for each place."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._last.get(place, -60.0) < 10.0:
            return False
        self._last[place] = now
        return True


def quiet_client_log() -> None:
    """The client's own log: warnings and above, each seldom. Debug lines of it hold whole requests, so they stay off."""
    for name in ("kafka", "kafka.net.manager", "kafka.net.connection", "kafka.net.selector", "kafka.cluster"):
        client = logging.getLogger(name)
        if not any(isinstance(each, _Limited) for each in client.filters):
            client.addFilter(_Limited())
        if client.level == logging.NOTSET:
            client.setLevel(logging.ERROR)
