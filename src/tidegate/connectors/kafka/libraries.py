"""All that Tidegate uses of kafka-python and aiokafka, private parts included. No other module imports these libraries.

The versions and parts that are tested stand in ``tests/unit/connectors/test_kafka_libraries.py``, which fails for others.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.base.errors import ConfigurationError, ServiceError

try:
    from aiokafka.record._crecords.cutil import crc32c_cython as crc32c
    from aiokafka.record.default_records import DefaultRecordBatchBuilder
    from aiokafka.record.memory_records import MemoryRecords
    from kafka import KafkaAdminClient, errors
    from kafka import TopicPartition as ClientPartition
    from kafka.admin import AbortTransactionSpec, ConfigResource, ConfigResourceType
    from kafka.protocol.admin.groups import DescribeGroupsRequest
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
    from kafka.protocol.consumer.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
    from kafka.protocol.metadata import CoordinatorType, MetadataRequest
    from kafka.protocol.producer import (
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        ProduceRequest,
    )
    from kafka.structs import OffsetAndMetadata
except ImportError as missing:  # pragma: no cover - an installation without the extra, or with other versions
    raise ConfigurationError(
        "The Kafka connector does not find its client libraries, or finds versions without the parts that it uses",
        found=str(missing),
        cure="pip install 'tidegate[kafka]'",
    ) from None

__all__ = [
    "AbortTransactionSpec",
    "AddPartitionsToTxnRequest",
    "Client",
    "ClientPartition",
    "ConfigResource",
    "ConfigResourceType",
    "CoordinatorType",
    "DefaultRecordBatchBuilder",
    "DescribeGroupsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "HeartbeatRequest",
    "InitProducerIdRequest",
    "JoinGroupRequest",
    "LeaveGroupRequest",
    "ListOffsetsRequest",
    "MemoryRecords",
    "MetadataRequest",
    "OffsetAndMetadata",
    "ProduceRequest",
    "SyncGroupRequest",
    "crc32c",
    "errors",
]

log = logging.getLogger(__name__)


class Client(ABC):
    """kafka-python's admin client, connected at its first use, which also sends requests of our own. Safe for several threads.

    Every method may raise the library's errors: network errors and refusals, not the error codes inside answers.
    """

    def __init__(self, arguments: Mapping[str, Any], timeout_ms: int) -> None:
        self._arguments, self._timeout_ms = arguments, timeout_ms
        self._admin: KafkaAdminClient | None = None
        self._connecting = threading.Lock()
        _quiet_log()

    @property
    def admin(self) -> KafkaAdminClient:
        with self._connecting:
            if self._admin is None:
                self._admin = self._connect()
            return self._admin

    def _connect(self) -> KafkaAdminClient:
        admin = KafkaAdminClient.__new__(KafkaAdminClient)  # after a failed __init__ its connections must be closed
        try:
            admin.__init__(bootstrap_timeout_ms=self._timeout_ms, **self._arguments)
        except (errors.KafkaError, OSError, ValueError, AssertionError) as error:
            refused, manager = False, getattr(admin, "_manager", None)
            if manager is not None:
                refused = "sasl_mechanism" in self._arguments and _refuses_password(manager)
                manager.close()
                admin._net.stop()
            raise self._not_connected(error, refused=refused) from None  # text and causes may hold the password
        return admin

    @abstractmethod
    def _not_connected(self, error: Exception, *, refused: bool) -> ServiceError:
        """The error for a failed connection. ``refused``: a broker refuses user and password."""

    def send(self, request: Any, node: int | None = None) -> Any:
        """The answer of a node, or of any node."""
        manager = self.admin._manager

        async def answer() -> Any:
            return await manager.send(request, node_id=node)

        return manager.run(answer)

    def send_all(self, requests: Iterable[tuple[Any, int | None]]) -> list[Any]:
        """Answers, or errors in their place. All requests are under way at once."""
        manager = self.admin._manager
        waiting = list(requests)

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
        """Send without waiting; ``outcome`` gives the answer."""
        manager = self.admin._manager

        async def answer() -> Any:
            return await manager.send(request, node_id=node)

        return manager.call_soon(answer)

    def outcome(self, future: Any) -> Any:
        """The answer to a request that was begun."""

        async def answer() -> Any:
            return await future

        return self.admin._manager.run(answer)

    def coordinator(self, key: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> int:
        admin = self.admin

        async def find() -> Any:
            return await admin._find_coordinator_id(key, kind)

        node: int = admin._manager.run(find)
        return node

    def forget_coordinators(self) -> None:
        """The next request for a coordinator or for metadata asks the brokers again."""
        if self._admin is not None:
            cluster = self._admin._manager.cluster
            cluster._coordinators.clear()
            cluster.request_update()

    @property
    def broker_version(self) -> tuple[int, ...]:
        version: tuple[int, ...] = self.admin._manager.broker_version
        return version

    def any_broker(self) -> int:
        """The number of a broker."""
        number: int = next(iter(self.admin._manager.cluster.brokers())).node_id
        return number

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def _refuses_password(manager: Any) -> bool:
    """Whether a broker refuses user and password: the broker listens, and closes the connection when they arrive. The library
    only reports that it could not connect."""
    [node] = manager.cluster.bootstrap_brokers()[:1]

    async def connect() -> None:
        manager.reset_backoff(node.node_id)
        connection = manager.get_connection(
            node.node_id, timeout_ms=5_000, pop_on_close=False, refresh_metadata_on_err=False
        )
        await connection

    try:
        manager.run(connect)
    except errors.SaslAuthenticationFailedError:
        return True
    except errors.KafkaConnectionError:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            return probe.connect_ex((node.host, node.port)) == 0
    except errors.KafkaError as error:
        log.debug("no connection: %s", type(error).__name__)
    return False


class _Limited(logging.Filter):
    """A client without its broker logs many times a second. Pass one record in ten seconds for each line of code."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._last.get(place, -60.0) < 10.0:
            return False
        self._last[place] = now
        return True


def _quiet_log() -> None:
    """Limit the log of kafka-python to errors, each seldom. Its debug lines hold whole requests, so they stay off."""
    for name in ("kafka", "kafka.net.manager", "kafka.net.connection", "kafka.net.selector", "kafka.cluster"):
        client = logging.getLogger(name)
        if not any(isinstance(each, _Limited) for each in client.filters):
            client.addFilter(_Limited())
        if client.level == logging.NOTSET:
            client.setLevel(logging.ERROR)
