"""The transactions of a job's sinks and the checkpoints that hold them, seen from outside the job; commit and abort them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.errors import CorruptFileError, RestoreError
from tidegate.base.files import Files
from tidegate.checkpoint.completed import TASK_OWNED
from tidegate.checkpoint.lease import Lease, acquire
from tidegate.checkpoint.lease_records import (
    AttemptStatus,
    Claim,
    LiveRecord,
    claim_path,
    live_path,
    newest_token,
    read_undamaged,
)
from tidegate.checkpoint.locate import locate_own, read_lineage
from tidegate.checkpoint.metadata import metadata_path, read_metadata
from tidegate.connectors.kafka import sink_record
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committable import KafkaCommittable
from tidegate.connectors.kafka.committer import KafkaCommitter, open_transactions
from tidegate.connectors.kafka.libraries import errors
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.sink_record import SinkRecord, legal_name
from tidegate.connectors.kafka.transactions import Producer, ended, init_producer
from tidegate.operators.contracts.sink import CommitterContext

Committables = dict[str, dict[int, list[Any]]]
"""By sink and checkpoint."""
_Held = dict[Producer, tuple[KafkaCommittable, list[int]]]
"""With the numbers of the checkpoints."""
_ABORTING_MS = 60_000
"""The timeout of the empty transaction that replaces an aborted one; nothing is written into it."""


@dataclass(frozen=True)
class Seen:
    """A transaction. ``state``: 'open', or its outcome in the log. ``checkpoints``: those that hold the transaction. ``age_ms``
    None: it has ended. ``records`` None: unknown, because no checkpoint holds it."""

    sink: str
    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    age_ms: int | None
    timeout_ms: int | None
    checkpoints: tuple[int, ...]
    records: int | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class JobTransactions:
    """The transactions of the job with this directory. ``properties``: of the client; they replace the addresses that the sinks
    have recorded."""

    def __init__(self, directory: str, properties: Mapping[str, str], clock: Clock) -> None:
        self._files, self._given, self._clock = Files(directory), dict(properties), clock
        self.ended_with: AttemptStatus | None = None
        """The final status of a job whose sinks have ended all transactions and deleted their records."""
        self._sinks = self._read_sinks()
        self._committables = self._read_committables()

    def _read_sinks(self) -> dict[str, SinkRecord]:
        names = self._files.list_names(TASK_OWNED)
        found = {name: sink_record.read(Files(self._files.location(f"{TASK_OWNED}/{name}"))) for name in names}
        sinks = {name: record for name, record in found.items() if record is not None}
        if not sinks:
            self.ended_with = self._end()
        if not sinks and self.ended_with is None:
            there = self._files.list_names()
            gone = "no such directory: a directory that was made for one run is deleted when the job ends"
            raise RestoreError(
                "The directory contains no record of a Kafka sink that writes exactly once",
                where=self._files.root,
                found=f"no {TASK_OWNED}/*/{sink_record.NAME}" if there else gone,
                cure="pass the job's own directory, below execution.checkpointing.dir; or name the transactions without it: "
                "--prefix PREFIX --bootstrap-servers HOST:PORT",
            )
        return sinks

    def _end(self) -> AttemptStatus | None:
        """The final status of a job that retains no checkpoint. Such a job aborts open transactions, then deletes the records of
        its sinks."""
        token = newest_token(self._files)
        live = read_undamaged(self._files, live_path(token), LiveRecord) if token else None
        return live.status if live is not None and live.discarded else None

    def _read_committables(self) -> Committables:
        found: Committables = {name: {} for name in self._sinks}
        for name in self._files.list_names():
            match = re.fullmatch(r"chk-(\d+)", name)
            if match is None:
                continue
            try:
                metadata = read_metadata(self._files, metadata_path(int(match[1])))
            except CorruptFileError:
                continue  # not complete, or being deleted
            for operator in metadata.operators:
                if operator.uid_hash in found:
                    items = [msgspec.msgpack.decode(item) for item in operator.committables]
                    found[operator.uid_hash][metadata.checkpoint_id] = items
        return found

    def cluster(self, sink: str) -> Cluster:
        return Cluster.of(ClientProperties({"bootstrap.servers": self._sinks[sink].servers, **self._given}))

    # -- list --------------------------------------------------------------------------------------------------------

    def look(self) -> list[Seen]:
        """Open transactions, and those that checkpoints hold, ended or not."""
        return [seen for sink in self._sinks for seen in self._of_sink(sink)]

    def _of_sink(self, sink: str) -> list[Seen]:
        held: _Held = {}
        for number, items in sorted(self._committables[sink].items()):
            for made in map(KafkaCommittable.from_plain, items):
                held.setdefault(made.producer, (made, []))[1].append(number)
        return _seen(self.cluster(sink), self._sinks[sink].base, held, self._clock, sink)

    # -- commit and abort --------------------------------------------------------------------------------------------

    def claim(self) -> Lease:
        """Acquire the lease of the job; the caller releases it. Raises LeaseError if the driver of the job lives: both would end
        the same transactions."""
        claim = read_undamaged(self._files, claim_path(newest_token(self._files)), Claim)
        job_id = claim.job_id if claim is not None else self._files.root.rpartition("/")[2]
        return acquire(self._files, self._clock, job_id=job_id)

    def commit(self, lease: Lease | None) -> None:
        """Commit the transactions of the latest complete checkpoint, as a restart of the job would."""
        latest = read_lineage(self._files).latest
        if latest is None:
            raise RestoreError(
                "There is no complete checkpoint, so there is nothing to commit",
                where=self._files.root,
                found="no such checkpoint",
            )
        for operator in locate_own(self._files, latest).metadata.operators:
            if operator.uid_hash in self._sinks and operator.committables:
                committables = [msgspec.msgpack.decode(item) for item in operator.committables]
                self._committer(operator.uid_hash, lease).recover(committables)

    def abort(self, lease: Lease | None) -> None:
        """Abort open transactions that no checkpoint holds."""
        for sink, by_checkpoint in self._committables.items():
            held = [item for items in by_checkpoint.values() for item in items]
            self._committer(sink, lease).abort_lingering(held, [])

    def _committer(self, sink: str, lease: Lease | None) -> KafkaCommitter:
        staging = self._files.location(f"{TASK_OWNED}/{sink}")
        context = CommitterContext("", sink, staging)
        if lease is not None:
            context = replace(context, check_lease=lease.check)
        record = self._sinks[sink]
        return KafkaCommitter(lambda: self.cluster(sink), record.base, context, timeout_ms=record.timeout_ms)


class PrefixTransactions:
    """Open transactions with a transactional id prefix, of a job whose directory is gone. ``job``: of this job only."""

    def __init__(self, properties: Mapping[str, str], prefix: str, job: str | None, clock: Clock) -> None:
        self._cluster, self._clock = Cluster.of(ClientProperties(properties)), clock
        self._base = prefix if job is None else f"{prefix}-{legal_name(job)}"

    def look(self) -> list[Seen]:
        return _seen(self._cluster, self._base, {}, self._clock)

    def abort(self) -> None:
        """Abort them. Their writers are fenced: a job that still runs fails."""
        for producer in open_transactions(self._cluster, self._base):
            init_producer(self._cluster, producer.transactional_id, _ABORTING_MS)


def _seen(cluster: Cluster, base: str, held: _Held, clock: Clock, sink: str = "") -> list[Seen]:
    """Open transactions with a base, and those that checkpoints hold."""
    open_, found = open_transactions(cluster, base), []
    for producer in sorted({*open_, *held}, key=lambda each: (each.transactional_id, each.epoch)):
        made, checkpoints = held.get(producer, (None, []))
        state, age, timeout = "open", None, None
        if producer in open_:
            age, timeout = _times(cluster, producer, clock.now_ms())
        elif made is not None:
            state = ended(cluster, producer, made.firsts).value
        found.append(
            Seen(
                sink=sink,
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                epoch=producer.epoch,
                state=state,
                age_ms=age,
                timeout_ms=timeout,
                checkpoints=tuple(checkpoints),
                records=None if made is None else made.records,
            )
        )
    return found


def _times(cluster: Cluster, producer: Producer, now_ms: int) -> tuple[int | None, int | None]:
    """The age of an open transaction, and its timeout."""
    name = producer.transactional_id
    try:
        found = cluster.admin.describe_transactions([name])[name]
    except errors.KafkaError:
        return None, None
    return max(0, now_ms - found.transaction_start_time_ms), found.transaction_timeout_ms
