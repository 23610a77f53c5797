"""The transactions of a job's sinks against its checkpoints, from outside of the job: what is open, and who will end it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import kafka.errors as errors
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
from tidegate.checkpoint.lineage import read_lineage
from tidegate.checkpoint.locate import locate_own
from tidegate.checkpoint.metadata import metadata_path, read_metadata
from tidegate.connectors.kafka import sink_record
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committable import KafkaCommittable
from tidegate.connectors.kafka.committer import KafkaCommitter, open_transactions
from tidegate.connectors.kafka.properties import ClientProperties
from tidegate.connectors.kafka.sink_record import SinkRecord, legal_name
from tidegate.connectors.kafka.transactions import Producer, ended, init_producer
from tidegate.operators.contracts.sink import CommitterContext

Committables = dict[str, dict[int, list[Any]]]
"""By sink and checkpoint."""
_ABORTING_MS = 60_000
"""Of the empty transaction that takes the place of an aborted one; nothing is written into it."""


@dataclass(frozen=True)
class Seen:
    """``state``: 'open', or how the log says that it has ended. ``checkpoints``: those that hold it. ``age_ms`` None: it has
    ended. ``records`` None: no checkpoint tells."""

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
    """Of the job with this directory. ``properties``: of the client, over the addresses that the sinks have written down."""

    def __init__(self, directory: str, properties: Mapping[str, str], clock: Clock) -> None:
        self._files, self._given, self._clock = Files(directory), dict(properties), clock
        self.ended_with: AttemptStatus | None = None
        """How the job ended, if its sinks have ended all their transactions and deleted the record of them."""
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
                "A job with a Kafka sink that writes exactly once has a record of it in its directory",
                where=self._files.root,
                found=f"no {TASK_OWNED}/*/{sink_record.NAME}" if there else gone,
                cure="give the job's own directory, below execution.checkpointing.dir; or name the transactions without it: "
                "--prefix PREFIX --bootstrap-servers HOST:PORT",
            )
        return sinks

    def _end(self) -> AttemptStatus | None:
        """Of a job that keeps no checkpoint: the records of its sinks are deleted after what they had open was aborted."""
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
                continue  # it is not complete, or just being deleted
            for operator in metadata.operators:
                if operator.uid_hash in found:
                    items = [msgspec.msgpack.decode(item) for item in operator.committables]
                    found[operator.uid_hash][metadata.checkpoint_id] = items
        return found

    def cluster(self, sink: str) -> Cluster:
        return Cluster.of(ClientProperties({"bootstrap.servers": self._sinks[sink].servers, **self._given}))

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> list[Seen]:
        """What is open, and what checkpoints hold, be it ended or not."""
        return [seen for sink in self._sinks for seen in self._of_sink(sink)]

    def _of_sink(self, sink: str) -> list[Seen]:
        cluster, held = self.cluster(sink), self._held(sink)
        open_ = open_transactions(cluster, self._sinks[sink].base)
        every = {**dict.fromkeys(open_), **held}
        order = sorted(every, key=lambda producer: (producer.transactional_id, producer.epoch))
        return [self._seen(cluster, sink, producer, held.get(producer), producer in open_) for producer in order]

    def _held(self, sink: str) -> dict[Producer, tuple[KafkaCommittable, list[int]]]:
        held: dict[Producer, tuple[KafkaCommittable, list[int]]] = {}
        for number, items in sorted(self._committables[sink].items()):
            for made in map(KafkaCommittable.from_plain, items):
                held.setdefault(made.producer, (made, []))[1].append(number)
        return held

    def _seen(
        self,
        cluster: Cluster,
        sink: str,
        producer: Producer,
        held: tuple[KafkaCommittable, list[int]] | None,
        is_open: bool,
    ) -> Seen:
        state, age, timeout = "open", None, None
        if is_open:
            age, timeout = _times(cluster, producer, self._clock.now_ms())
        elif held is not None:
            state = ended(cluster, producer, held[0].firsts).value
        return Seen(
            sink=sink,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            state=state,
            age_ms=age,
            timeout_ms=timeout,
            checkpoints=() if held is None else tuple(held[1]),
            records=None if held is None else held[0].records,
        )

    # -- acting ------------------------------------------------------------------------------------------------------

    def claim(self) -> Lease:
        """The job's lease: LeaseError if its driver lives. Without it two would end the same transactions. Release it."""
        claim = read_undamaged(self._files, claim_path(newest_token(self._files)), Claim)
        job_id = claim.job_id if claim is not None else self._files.root.rpartition("/")[2]
        return acquire(self._files, self._clock, job_id=job_id)

    def commit(self, lease: Lease | None) -> None:
        """What the latest complete checkpoint holds, as a restart of the job would."""
        latest = read_lineage(self._files).latest
        if latest is None:
            raise RestoreError(
                "What a complete checkpoint holds can be committed", where=self._files.root, found="no such checkpoint"
            )
        for operator in locate_own(self._files, latest).metadata.operators:
            if operator.uid_hash in self._sinks and operator.committables:
                committables = [msgspec.msgpack.decode(item) for item in operator.committables]
                self._committer(operator.uid_hash, lease).recover(committables)

    def abort(self, lease: Lease | None) -> None:
        """What is open and in no checkpoint."""
        for sink, by_checkpoint in self._committables.items():
            kept = [item for items in by_checkpoint.values() for item in items]
            self._committer(sink, lease).abort_lingering(kept, [])

    def _committer(self, sink: str, lease: Lease | None) -> KafkaCommitter:
        staging = self._files.location(f"{TASK_OWNED}/{sink}")
        context = CommitterContext("", sink, staging)
        if lease is not None:
            context = replace(context, check_lease=lease.check)
        record = self._sinks[sink]
        return KafkaCommitter(lambda: self.cluster(sink), record.base, context, timeout_ms=record.timeout_ms)


class PrefixTransactions:
    """What is open below a transactional id prefix, of a job whose directory is gone. ``job``: of this job only."""

    def __init__(self, properties: Mapping[str, str], prefix: str, job: str | None, clock: Clock) -> None:
        self._cluster, self._clock = Cluster.of(ClientProperties(properties)), clock
        self._base = prefix if job is None else f"{prefix}-{legal_name(job)}"

    def look(self) -> list[Seen]:
        order = sorted(self._open(), key=lambda producer: (producer.transactional_id, producer.epoch))
        return [self._seen(producer) for producer in order]

    def _open(self) -> set[Producer]:
        return open_transactions(self._cluster, self._base)

    def _seen(self, producer: Producer) -> Seen:
        age, timeout = _times(self._cluster, producer, self._clock.now_ms())
        return Seen(
            sink="",
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            state="open",
            age_ms=age,
            timeout_ms=timeout,
            checkpoints=(),
            records=None,
        )

    def abort(self) -> None:
        """Whoever writes under these ids is fenced: a job that lives fails."""
        for producer in self._open():
            init_producer(self._cluster, producer.transactional_id, _ABORTING_MS)


def _times(cluster: Cluster, producer: Producer, now_ms: int) -> tuple[int | None, int | None]:
    """How long it has been open, and how long it may be."""
    name = producer.transactional_id
    try:
        found = cluster.admin.describe_transactions([name])[name]
    except errors.KafkaError:
        return None, None
    return max(0, now_ms - found.transaction_start_time_ms), found.transaction_timeout_ms
