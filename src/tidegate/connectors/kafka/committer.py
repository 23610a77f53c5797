"""Step 8 for Kafka: ends transactions on the driver, and writes again what the broker has dropped.

How a transaction is committed, whatever has happened before:

1. If it was written again earlier, the note of that says under which transaction: that one counts.
2. EndTxn. If it is taken, done. It is also taken if it was committed before.
3. If it is refused, that has several causes, and "committed before" is one of them: the log decides. Committed: done. Open: the
   broker has not come that far, ask again.
4. Aborted (its time was over during an outage, or somebody fenced it): a new transaction is opened and the kept batches are
   written into it. **Its note is durable before its EndTxn.** A crash before the note leaves an open transaction that nobody
   names, which ``abort_lingering`` or the broker's time-out ends; a crash behind it finds the note at step 1. With the order
   turned round a crash in between would find the old transaction aborted and write everything a second time.
   The note stays: an older checkpoint that names the same committable may be restored long after. **A note is never
   overwritten**: of two drivers that write the same again, one of them taken for dead, the first to note it wins and the other
   aborts its own. If that transaction is dropped in its turn, the next note bears its name: notes form a chain.
5. If the log has lost the records (retention), nobody can tell: the job stops and says what is in doubt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kafka.errors as errors

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
from tidegate.base.ids import new_token
from tidegate.connectors.kafka.cluster import Cluster
from tidegate.connectors.kafka.committable import KafkaCommittable
from tidegate.connectors.kafka.kept_output import delete_kept, lingering_output, read_kept
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
    """``base``: what the transactional ids of this job and sink start with. ``connect``: the cluster, once it is needed.
    ``timeout_ms``: of the sink's transactions, which the broker is known to allow."""

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
        """Transactions of one call in parallel: readers see them in the order of the log, which was written long ago."""
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
                "a prepared transaction must be committed", where=str(made), found=f"{type(error).__name__}: {error}"
            )
        self._done.add(made.name)
        return None

    def _commit(self, made: KafkaCommittable) -> None:
        cluster = self._connect()
        current = self._current(made)
        faults.point("K3.kafka.before-commit", transaction=current.name)
        if not self._end(cluster, current):
            current = self._write_again(cluster, made, current)
            if not self._end(cluster, current):
                raise RetryableCommitError(
                    "a rewritten transaction must be committed", where=str(current), found="aborted"
                )
        faults.point("K3.kafka.committed", transaction=current.name)
        if made.kept is not None:
            delete_kept(made.kept)

    def _end(self, cluster: Cluster, made: KafkaCommittable) -> bool:
        """True: it is committed. False: the broker has dropped it."""
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
                "a transaction must have ended", where=str(made), found="the log has no end of it"
            )
        if answer is Ended.UNKNOWN:
            raise OutputLostError(
                "Whether a Kafka transaction was committed can no longer be told: its records are gone from the log",
                where=str(made),
                found=f"EndTxn is refused ({refusal}), and retention or compaction has removed its first records",
                cure="compare the topic with what the job should have written; then restore an older or a newer checkpoint",
            )
        return answer is Ended.COMMITTED

    # -- what the broker has dropped -----------------------------------------------------------------------------------

    def _write_again(self, cluster: Cluster, made: KafkaCommittable, dropped: KafkaCommittable) -> KafkaCommittable:
        if made.kept is None:
            raise OutputLostError(
                "The broker has aborted a transaction that a completed checkpoint holds",
                where=str(dropped),
                found="the outage was longer than 'transaction.timeout.ms', and the sink keeps no copy of its output",
                cure="raise 'transaction.timeout.ms', or let the sink keep its output (set_keep_output(True), the default)",
            )
        log.warning("%s was aborted by the broker: its %d records are written again", dropped, made.records)
        try:
            again = self._copied(cluster, made.kept)
        except CorruptFileError as error:
            raise OutputLostError(
                "The broker has aborted a transaction that a completed checkpoint holds, and the copy of its records is lost",
                where=str(dropped),
                found=f"{error.where}: {error.found}",
                cure="bring the file back, and start the job again; the records are nowhere else",
            ) from error
        files, name = _note(made.kept[0], dropped.name)
        try:
            files.publish(name, json.dumps(again.plain()).encode())
        except FileExistsError:
            log.warning("%s was written again by somebody else too: that counts", dropped)
            with contextlib.suppress(NotOursError):  # aborted by the other
                end(cluster, again.producer, commit=False)
            return self._current(made)
        faults.point("K4.kafka.noted", transaction=again.name)
        return again

    def _copied(self, cluster: Cluster, kept: tuple[str, int, str]) -> KafkaCommittable:
        """Kept output in a new transaction, open. If that fails, or somebody else has the job by now, it does not stay in the way
        of readers until its time is over."""
        timeout_ms = max(self._timeout_ms, _REWRITE_MS)  # all of it at once takes longer than a round did
        producer = init_producer(cluster, f"{self._base}-again-{new_token()}", timeout_ms)
        writer = TransactionWriter(cluster, producer)
        try:
            for place, data in read_kept(kept):
                writer.send([(place, data)])
            writer.flush()
            faults.point("K4.kafka.written-again", transaction=producer.transactional_id)
            self._check_lease()
        except Exception:
            with contextlib.suppress(NotOursError, ServiceError):
                end(cluster, producer, commit=False)
            raise
        return KafkaCommittable.of(producer, writer.firsts, writer.records, None)

    @staticmethod
    def _current(made: KafkaCommittable) -> KafkaCommittable:
        """The transaction that counts: itself, or the last under which it was written again."""
        current = made
        while made.kept is not None:
            files, name = _note(made.kept[0], current.name)
            content = files.read_if_exists(name)
            if content is None:
                break
            current = KafkaCommittable.from_plain(json.loads(content))
        return current

    # -- what nobody will commit ---------------------------------------------------------------------------------------

    def abort(self, committables: list[Any]) -> None:
        cluster = self._connect()
        for data in committables:
            made = KafkaCommittable.from_plain(data)
            try:
                end(cluster, made.producer, commit=False)
            except NotOursError:
                log.debug("%s had ended before", made)
            if made.kept is not None:
                delete_kept(made.kept)

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        """Found by name, whatever the parallelism was. An id that a committable names may have been used again since: only its
        own producer id and epoch make an open transaction the one that waits for its commit."""
        cluster = self._connect()
        wanted = [KafkaCommittable.from_plain(data) for data in committables]
        kept = {made.kept[0] for made in wanted if made.kept is not None}
        files = [name for name in lingering_output(self._files) if self._files.location(name) not in kept]
        listed = open_transactions(cluster, self._base)
        faults.point("K2.kafka.listed", transactions=len(listed))
        self._check_lease()
        for producer in listed - {made.producer for made in wanted}:
            faults.point("K2.kafka.before-abort", transaction=producer.transactional_id)
            # Not EndTxn: a new epoch also stops a task that is still writing.
            init_producer(cluster, producer.transactional_id, self._timeout_ms)
        for name in files:
            self._files.delete(name)
        if self._sweeper is None and self._lease:
            self._sweeper = threading.Thread(target=self._sweep, daemon=True, name="tidegate-kafka-sweep")
            self._sweeper.start()

    def _sweep(self) -> None:
        """Workers of a driver that was killed live on for a moment, and may begin a transaction after it was looked for. Nobody
        will ever end it, and readers would wait for its time-out. Whatever carries a smaller lease is of an attempt before this
        one, so it can be aborted at any time: what this attempt was to commit of those is committed before it begins."""
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
                log.warning("transactions of earlier attempts could not be looked for: %s", error)

    def close(self) -> None:
        self._closed.set()
        self._done.clear()
        if self._hold is not None:
            self._hold.release()
            self._hold = None


def _note(kept: str, name: str) -> tuple[Files, str]:
    """Where the note of a transaction lies: near the kept output, so that another job that restores the checkpoint finds it."""
    staging = kept.rpartition("/")[0].rpartition("/")[0]
    return Files(staging), f"{_NOTES}/{name}"


def open_transactions(cluster: Cluster, base: str) -> set[Producer]:
    """What is open below a name."""

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
