"""Step 8 for Kafka: end transactions on the driver, and rewrite those that the broker has aborted.

How a transaction is committed, whatever happened before:

1. If the transaction was rewritten earlier, a note names the transaction that replaced it: commit that one.
2. Send EndTxn. If the broker accepts it, done. The broker also accepts it for a transaction that is already committed.
3. A refusal has several causes, and "already committed" is one of them: the log decides. Committed: done. Open: the broker has not
   written the end yet, ask again.
4. Aborted (the transaction expired during an outage, or another producer fenced it): open a new transaction and write the copy of
   the record batches into it. **Its note is durable before its EndTxn.** A crash before the note leaves an open transaction that no
   checkpoint names; ``abort_lingering`` or the broker's timeout ends it. A crash after the note finds the note at step 1. In the
   opposite order a crash in between would find the old transaction aborted and write all records a second time.
   The note stays: an older checkpoint with the same committable may be restored much later. **A note is never overwritten**: two
   drivers may rewrite the same transaction, if one of them was taken for dead. The first to write the note wins; the other aborts
   its own transaction. If the broker aborts the new transaction too, the next note carries its name: notes form a list.
5. If the log has lost the records (retention), the outcome is unknown: the job stops and names the transaction in doubt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import (
    AccessError,
    CommitError,
    CorruptFileError,
    OutputLostError,
    RetryableCommitError,
    ServiceError,
    StorageError,
)
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committable import KafkaCommittable, delete_copy, read_copy, stored_copies
from tidegate.connectors.kafka.libraries import errors
from tidegate.connectors.kafka.prefix_hold import PrefixHold
from tidegate.connectors.kafka.transactions import (
    Ended,
    NotOursError,
    Producer,
    TransactionWriter,
    end,
    end_hanging,
    ended,
    init_producer,
)
from tidegate.operators.contracts.sink import Committer, CommitterContext

log = logging.getLogger(__name__)

_NOTES = "rewritten"
_AT_ONCE = 8
_OPEN_STATES = ("Ongoing",)
_REWRITE_MS = 60_000
_SWEEPS_S = (3, 7, 20, 60, 300)


class KafkaCommitter(Committer):
    """``base``: the prefix of all transactional ids of this job and sink. ``connect`` gives the cluster at its first use.
    ``timeout_ms``: the timeout of the sink's transactions, which the broker is known to allow."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        base: str,
        context: CommitterContext,
        *,
        timeout_ms: int,
        hold: PrefixHold | None = None,
    ) -> None:
        self._hold = hold
        self._connect, self._base, self._timeout_ms = connect, base, timeout_ms
        self._files, self._check_lease = Files(context.staging), context.check_lease
        self._lease = context.lease
        self._done: set[str] = set()
        self._closed = threading.Event()
        self._sweeper: threading.Thread | None = None

    # -- step 8 ------------------------------------------------------------------------------------------------------

    def commit(self, committables: list[Any]) -> None:
        """Commit the transactions in parallel: readers see records in the order of the log, which is already written."""
        if self._hold is not None and self._hold.lost is not None:
            raise self._hold.lost
        every = [KafkaCommittable.from_plain(data) for data in committables]
        waiting = [made for made in every if made.name not in self._done]
        if not waiting:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(waiting)), "tidegate-kafka-commit") as pool:
            outcomes = list(pool.map(self._outcome, waiting))
        problem = next((outcome for outcome in outcomes if outcome is not None), None)
        if problem is not None:
            raise problem
        self._done.clear()

    def _outcome(self, made: KafkaCommittable) -> Exception | None:
        try:
            self._commit(made)
        except (CommitError, RetryableCommitError) as error:
            return error
        except AccessError as error:
            return CommitError(error.rule, where=f"{made}; {error.where}", found=error.found, cure=error.cure)
        except (ServiceError, StorageError, errors.KafkaError, OSError) as error:
            return RetryableCommitError(
                "A prepared transaction cannot be committed", where=str(made), found=f"{type(error).__name__}: {error}"
            )
        self._done.add(made.name)
        return None

    def _commit(self, made: KafkaCommittable) -> None:
        cluster = self._connect()
        current = self._current(made)
        faults.point("K3.kafka.before-commit", transaction=current.name)
        if not self._end(cluster, current):
            current = self._rewrite(cluster, made, current)
            if not self._end(cluster, current):
                raise RetryableCommitError(
                    "The broker has aborted a rewritten transaction", where=str(current), found="aborted"
                )
        faults.point("K3.kafka.committed", transaction=current.name)
        if made.copy is not None:
            delete_copy(made.copy)

    def _end(self, cluster: Cluster, made: KafkaCommittable) -> bool:
        """True: the transaction is committed. False: the broker has aborted it."""
        try:
            end(cluster, made.producer, commit=True)
            return True
        except NotOursError as error:
            refusal = str(error)
        answer = ended(cluster, made.producer, made.firsts)
        log.info("%s: EndTxn answered %s, the log says %s", made, refusal, answer.value)
        if answer is Ended.OPEN and end_hanging(cluster, made.producer, made.firsts):
            answer = ended(cluster, made.producer, made.firsts)
        if answer is Ended.OPEN:
            raise RetryableCommitError(
                "The Kafka transaction is still open",
                where=str(made),
                found="its log contains no commit or abort marker",
            )
        if answer is Ended.UNKNOWN:
            raise OutputLostError(
                "The outcome of a Kafka transaction is unknown: its records are no longer in the log",
                where=str(made),
                found=f"EndTxn is refused ({refusal}), and retention or compaction has removed its first records",
                cure="compare the topic with the expected output of the job; then restore an older or a newer checkpoint",
            )
        return answer is Ended.COMMITTED

    # -- transactions that the broker has aborted ----------------------------------------------------------------------

    def _rewrite(self, cluster: Cluster, made: KafkaCommittable, aborted: KafkaCommittable) -> KafkaCommittable:
        if made.copy is None:
            raise OutputLostError(
                "The broker has aborted a transaction that a completed checkpoint holds",
                where=str(aborted),
                found="the outage was longer than 'transaction.timeout.ms', and the sink stores no copy of its output",
                cure="raise 'transaction.timeout.ms', or let the sink store a copy (set_keep_output(True), the default)",
            )
        log.warning("%s was aborted by the broker: its %d records are written again", aborted, made.records)
        try:
            again = self._copied(cluster, made.copy)
        except CorruptFileError as error:
            raise OutputLostError(
                "The broker has aborted a transaction that a completed checkpoint holds, and the copy of its records is lost",
                where=str(aborted),
                found=f"{error.where}: {error.found}",
                cure="restore the file, and start the job again; the records are stored nowhere else",
            ) from error
        files, name = _note(made.copy[0], aborted.name)
        try:
            files.publish(name, json.dumps(again.plain()).encode())
        except FileExistsError:
            log.warning("another driver has rewritten %s too, and noted it first: its transaction counts", aborted)
            with contextlib.suppress(NotOursError):  # the other driver aborted it
                end(cluster, again.producer, commit=False)
            return self._current(made)
        faults.point("K4.kafka.noted", transaction=again.name)
        return again

    def _copied(self, cluster: Cluster, copy: tuple[str, int, str]) -> KafkaCommittable:
        """Write the copy into a new transaction and leave it open. If that fails, or another driver has taken over the job, abort
        it: readers would wait until it expires."""
        timeout_ms = max(self._timeout_ms, _REWRITE_MS)  # one rewrite may take longer than a round
        producer = init_producer(cluster, f"{self._base}-again-{new_token()}", timeout_ms)
        writer = TransactionWriter(cluster, producer)
        try:
            for place, data in read_copy(copy):
                writer.send([(place, data)])
            writer.flush()
            faults.point("K4.kafka.written-again", transaction=producer.transactional_id)
            self._check_lease()
        except Exception:
            with contextlib.suppress(NotOursError, ServiceError):
                end(cluster, producer, commit=False)
            raise
        return KafkaCommittable(producer, dict(writer.firsts), writer.records)

    @staticmethod
    def _current(made: KafkaCommittable) -> KafkaCommittable:
        """The transaction that counts: the given one, or the last that replaced it."""
        current = made
        while made.copy is not None:
            files, name = _note(made.copy[0], current.name)
            content = files.read_if_exists(name)
            if content is None:
                break
            current = KafkaCommittable.from_plain(json.loads(content))
        return current

    # -- transactions without a checkpoint -----------------------------------------------------------------------------

    def abort(self, committables: list[Any]) -> None:
        cluster = self._connect()
        for data in committables:
            made = KafkaCommittable.from_plain(data)
            try:
                end(cluster, made.producer, commit=False)
            except NotOursError:
                log.debug("%s has already ended", made)
            if made.copy is not None:
                delete_copy(made.copy)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        """Find open transactions by name, whatever the parallelism was. The id of a committable may have been used again since:
        only the same producer id and epoch make an open transaction the one that waits for its commit."""
        cluster = self._connect()
        wanted = [KafkaCommittable.from_plain(data) for data in committables]
        in_use = {made.copy[0] for made in wanted if made.copy is not None}
        files = [name for name in stored_copies(self._files) if self._files.location(name) not in in_use]
        listed = open_transactions(cluster, self._base)
        faults.point("K2.kafka.listed", transactions=len(listed))
        self._check_lease()
        for producer in listed - {made.producer for made in wanted}:
            faults.point("K2.kafka.before-abort", transaction=producer.transactional_id)
            # InitProducerId instead of EndTxn: a new epoch also stops a task that is still writing.
            init_producer(cluster, producer.transactional_id, self._timeout_ms)
        for name in files:
            self._files.delete(name)
        if self._sweeper is None and self._lease:
            self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="tidegate-kafka-sweep")
            self._sweeper.start()

    def _sweep(self) -> None:
        """Abort late transactions of earlier attempts. Workers of a killed driver live on for a moment, and may begin a transaction
        after ``abort_lingering`` listed them. No driver would end it, and readers would wait until it expires. A transaction with
        a smaller lease belongs to an earlier attempt, so it can be aborted at any time: those that this attempt has to commit are
        committed before the sweep begins."""
        for pause in _SWEEPS_S:
            if self._closed.wait(pause):
                return
            try:
                cluster = self._connect()
                for producer in open_transactions(cluster, self._base):
                    lease = producer.transactional_id.removeprefix(f"{self._base}-").partition("-")[0]
                    if lease.isdigit() and int(lease) < self._lease:
                        log.info("transaction %s of an earlier attempt is aborted", producer.transactional_id)
                        init_producer(cluster, producer.transactional_id, self._timeout_ms)
            except Exception as error:
                log.warning("the search for transactions of earlier attempts failed: %s", error)

    def close(self) -> None:
        self._closed.set()
        self._done.clear()
        if self._hold is not None:
            self._hold.release()
            self._hold = None


def _note(copy: str, name: str) -> tuple[Files, str]:
    """The place of the note of a transaction: beside the copies, so that another job that restores the checkpoint finds it."""
    staging = copy.rpartition("/")[0].rpartition("/")[0]
    return Files(staging), f"{_NOTES}/{name}"


def open_transactions(cluster: Cluster, base: str) -> set[Producer]:
    """Open transactions whose id starts with ``base`` and a hyphen."""

    def ask() -> set[Producer]:
        found = cluster.admin.list_transactions(state_filters=list(_OPEN_STATES))
        every = [each.transactional_id for listing in found.values() for each in listing]
        names = sorted(name for name in every if name.startswith(f"{base}-"))
        if not names:
            return set()
        described = cluster.admin.describe_transactions(names)
        return {
            Producer(name, d.producer_id, d.producer_epoch)
            for name, d in described.items()
            if d.state.value in _OPEN_STATES
        }

    return cluster.retried(f"transactions of {base}", ask)
