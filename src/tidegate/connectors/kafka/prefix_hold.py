"""One job at a time uses a transactional id prefix: a running job is a member of a group named after the prefix.

Correctness does not depend on this: ids carry a mark of the job's directory (``sink_record.py``), so jobs that share a prefix
do not touch each other's transactions. But a reader of an ACL, a metric or a list of transactions takes the prefix for one job, and
a prefix that was copied with a program is a mistake. A group has advantages: the broker's clock removes dead members, and nothing
remains of them. An open transaction as a lock would work too, but each renewal would write markers into a topic.

A job that crashes frees the prefix ``SESSION_MS`` later. It does not block its own restart, because it returns with the same mark.
Two jobs that start at the same moment both find no other member: the job with the greater mark gives up at its next commit.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Any, ClassVar

from tidegate.base.errors import AccessError, ConfigurationError, ServiceError
from tidegate.connectors.kafka.cluster import Cluster, raise_code
from tidegate.connectors.kafka.libraries import (
    CoordinatorType,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    errors,
)

log = logging.getLogger(__name__)

SESSION_MS = 30_000
_BEAT_S = 5.0
_TYPE = "tidegate"
_GONE = (errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.RebalanceInProgressError)


class PrefixHold:
    """The membership for one prefix, shared by all sinks of the job in this process with that prefix."""

    _of_this_process: ClassVar[dict[tuple[str, str, str], PrefixHold]] = {}
    _lock: ClassVar = threading.Lock()

    @classmethod
    def take(cls, cluster: Cluster, prefix: str, mark: str, job_id: str) -> PrefixHold:
        """Join; the caller calls ``release``. Raises ConfigurationError if another job uses the prefix."""
        key = (cluster.servers, prefix, mark)
        with cls._lock:
            hold = cls._of_this_process.get(key)
            if hold is None:
                hold = cls(cluster, prefix, mark, job_id)
                hold._refuse_others(cluster)
                cls._of_this_process[key] = hold
                hold._thread.start()
            hold._users += 1
            return hold

    def __init__(self, cluster: Cluster, prefix: str, mark: str, job_id: str) -> None:
        self._group, self._prefix = f"{prefix}.tidegate-owner", prefix
        self._key = (cluster.servers, prefix, mark)
        self._mark, self._owner = mark, f"{mark}.{re.sub(r'[^a-zA-Z0-9._-]', '_', job_id)}"[:200]
        self._properties, self._users = cluster.properties, 0
        self._member, self._generation = "", -1
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True, name="tidegate-kafka-prefix")
        self.lost: ConfigurationError | None = None
        """The reason why the job must stop: another job took the prefix at the same moment."""

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._of_this_process[self._key]
        self._closed.set()
        self._thread.join(_BEAT_S)  # the next job with the prefix may start at once

    # -- other members -----------------------------------------------------------------------------------------------

    def _refuse_others(self, cluster: Cluster) -> None:
        try:
            others = self._others(cluster)
        except AccessError as error:
            log.warning("it is unknown whether another job uses prefix %s: %s", self._prefix, error.found)
            return
        if others:
            raise self._taken(others)

    def _others(self, cluster: Cluster) -> list[str]:
        """Members of other jobs: mark and job id, and the host."""

        def ask() -> list[str]:
            request = DescribeGroupsRequest(groups=[self._group], include_authorized_operations=False, version=4)
            [group] = cluster.send(request, cluster.coordinator(self._group, CoordinatorType.GROUP)).groups
            raise_code(group.error_code, f"group {self._group}")
            every = [(member.group_instance_id or member.member_id, member.client_host) for member in group.members]
            return [f"{name} on {host.lstrip('/')}" for name, host in every if not name.startswith(f"{self._mark}.")]

        return cluster.retried(f"members of group {self._group}", ask)

    def _taken(self, others: list[str]) -> ConfigurationError:
        shown = ", ".join(f"job {other.partition('.')[2]}" for other in others)
        return ConfigurationError(
            "Another running job uses the transactional id prefix",
            where=f"KafkaSink, prefix {self._prefix!r}, bootstrap servers {self._key[0]}",
            found=f"{shown} is alive and has the prefix (group {self._group})",
            cure="call set_transactional_id_prefix with another prefix, or stop that job. A crashed job frees its prefix after "
            f"{SESSION_MS // 1000} s",
        )

    # -- own membership ----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Stay a member until ``release``. Uses its own connections: on a connection that waits for a group, a broker answers no
        other request."""
        cluster = Cluster(self._properties)
        try:
            while not self._closed.is_set():
                try:
                    self._beat(cluster)
                except AccessError as error:
                    log.warning("prefix %s cannot be held: %s", self._prefix, error.found)
                    return
                except (ServiceError, errors.KafkaError, OSError) as error:
                    log.debug("prefix %s: %s", self._prefix, type(error).__name__)
                self._closed.wait(_BEAT_S)
            self._leave(cluster)
        finally:
            cluster.close()

    def _beat(self, cluster: Cluster) -> None:
        if self._generation >= 0:
            try:
                self._ask(cluster, self._heartbeat())
                return
            except _GONE:
                self._generation = -1
        self._join(cluster)
        others = self._others(cluster)
        if any(other < self._owner for other in others):
            self.lost = self._taken(others)

    def _ask(self, cluster: Cluster, request: Any) -> Any:
        answer = cluster.send(request, cluster.coordinator(self._group, CoordinatorType.GROUP))
        if answer.error_code == errors.GroupAuthorizationFailedError.errno:
            cluster.retried(f"group {self._group}", lambda: raise_code(answer.error_code, self._group))
        raise_code(answer.error_code, f"group {self._group}")
        return answer

    def _join(self, cluster: Cluster) -> None:
        Protocol = JoinGroupRequest.JoinGroupRequestProtocol
        joined = self._ask(
            cluster,
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=2 * int(_BEAT_S * 1000),
                member_id="",
                group_instance_id=self._owner,
                protocol_type=_TYPE,
                protocols=[Protocol(name=_TYPE, metadata=b"")],
                version=5,
            ),
        )
        self._member, self._generation = joined.member_id, joined.generation_id
        self._ask(
            cluster,
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member,
                group_instance_id=self._owner,
                assignments=[],
                version=3,
            ),
        )

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member,
            group_instance_id=self._owner,
            version=3,
        )

    def _leave(self, cluster: Cluster) -> None:
        """Best effort: the broker removes a member that does not leave."""
        Member = LeaveGroupRequest.MemberIdentity
        request = LeaveGroupRequest(
            group_id=self._group,
            members=[Member(member_id=self._member, group_instance_id=self._owner)],
            version=3,
        )
        try:
            self._ask(cluster, request)
        except Exception as error:
            log.debug("prefix %s was not given back: %s", self._prefix, type(error).__name__)
