"""A sink into tables of a database, and its committer: the part that PostgreSQL and MariaDB share.

The committer commits prepared transactions with the checkpoint (step 8), and rolls back transactions that no checkpoint
holds.

**A marker decides.** The second commit of a prepared transaction fails with the same error whether the transaction was
committed or rolled back before. So every transaction inserts a row with its own name. If the server does not know the
transaction any more and the row exists, the transaction was committed. When all transactions of a call are committed,
one row replaces their markers. It holds the last round that the attempt of the job has committed. Completed checkpoints
are committed in the order of rounds, so this row answers for all transactions up to that round.

**After a restore, in this order.**

1. Commit the transactions of the checkpoint.
2. Raise the fence: writers of earlier attempts that connect from now on are refused.
3. End the sessions of writers that connected before: a worker on a lost host, or a paused worker, may hold locks or be
   about to prepare.
4. List prepared transactions: no new one of an earlier attempt can appear any more.
5. Check the lease: if it is still ours, no later attempt had begun when the list was made.
6. Roll back the listed transactions that the checkpoint does not hold.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.arguments import wrong
from tidegate.base.errors import (
    CommitError,
    ConfigurationError,
    FencedError,
    OutputLostError,
    ProgramError,
    RetryableCommitError,
    ServiceError,
    StorageError,
)
from tidegate.base.files import Files
from tidegate.connectors.sql.database import Database, Session, Transaction, base_for
from tidegate.connectors.sql.table import RecordRows, Table, ToRows, delete_frames, staged_files
from tidegate.connectors.sql.writer import PreparingWriter, StraightWriter
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    DeliveryGuarantee,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

log = logging.getLogger(__name__)


class SqlCommitter(Committer):
    """``base``: the prefix of all transaction names of this job and sink."""

    def __init__(self, database: Database, tables: Sequence[Table], base: str, context: CommitterContext) -> None:
        self._database, self._tables, self._base = database, tables, base
        self._files, self._lease = Files(context.staging), context.lease
        self._check_lease = context.check_lease
        self._connected: Session | None = None
        self._done: set[str] = set()

    def _session(self) -> Session:
        if self._connected is None:
            self._connected = self._database.open(self._tables)
        return self._connected

    def _disconnect(self) -> None:
        session, self._connected = self._connected, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()

    # -- step 8 ------------------------------------------------------------------------------------------------------

    def commit(self, committables: list[Any]) -> None:
        every = [_transaction(data) for data in committables]
        if not every:
            return
        try:
            for made in every:
                if made.name not in self._done:  # this call may retry a call that failed at a later transaction
                    self._commit(made)
                    self._done.add(made.name)
            self._settle(every)
            for made in every:
                for address in made.staged:
                    delete_frames(address)
        except (CommitError, RetryableCommitError):
            raise
        except (ServiceError, StorageError) as error:
            self._disconnect()
            kind = RetryableCommitError if error.restart_helps else CommitError
            raise kind(
                "A prepared transaction cannot be committed", where=str(made), found=str(error), cure=error.cure
            ) from error
        self._done.clear()

    def _commit(self, made: Transaction) -> None:
        session = self._session()
        faults.point("K3.sql.before-commit", transaction=made.name)
        if not session.commit_prepared(made.name) and not session.was_committed(
            made.base, made.name, made.lease, made.round
        ):
            raise OutputLostError(
                "The database has rolled back a transaction that a completed checkpoint holds",
                where=f"{made}; {self._database.where}",
                found="the transaction is not prepared, and its marker is missing: another client ended it, or the server lost it",
                cure="restore an older checkpoint, or an earlier copy of the database; the rows are stored nowhere else",
            )
        faults.point("K3.sql.committed", transaction=made.name)

    def _settle(self, every: list[Transaction]) -> None:
        by_attempt: dict[tuple[str, int], list[Transaction]] = {}
        for made in every:
            by_attempt.setdefault((made.base, made.lease), []).append(made)
        for (base, lease), group in by_attempt.items():
            self._session().settle(base, lease, max(made.round for made in group), [made.name for made in group])
        faults.point("K3.sql.settled", transactions=len(every))

    # -- transactions without a checkpoint -----------------------------------------------------------------------------

    def abort(self, committables: list[Any]) -> None:
        """Staged files stay: the round is run again, and its writers read them again."""
        for made in map(_transaction, committables):
            self._retried(lambda session, name=made.name: session.rollback_prepared(name))

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        """The module docstring gives the reasons for the order."""
        made = [_transaction(data) for data in committables]
        wanted = {each.name for each in made}
        in_use = {state["address"] for state in states}.union(*(each.staged for each in made))
        listed = self._retried(self._lingering)
        files = [name for name in staged_files(self._files) if self._files.location(name) not in in_use]
        faults.point("K2.sql.listed", transactions=len(listed))
        self._check_lease()
        for name in listed:
            if name not in wanted:
                faults.point("K2.sql.before-abort", transaction=name)
                self._retried(lambda session, name=name: session.rollback_prepared(name))
                faults.point("K2.sql.aborted", transaction=name)
        for file in files:
            self._files.delete(file)

    def _lingering(self, session: Session) -> list[str]:
        session.raise_fence(self._base, self._lease, -1)
        current, _ = session.fence(self._base, hold=False)
        if current > self._lease:
            raise FencedError(
                "This attempt of the job was replaced, and may not roll back transactions",
                where=self._database.where,
                found=f"lease {self._lease}; attempt {current} writes by now",
            )
        session.end_sessions(self._base, self._lease)
        return session.prepared(self._base)

    def _retried(self, request: Any) -> Any:
        """Replace a connection that broke since its last use, once."""
        fresh = self._connected is None
        try:
            return request(self._session())
        except ServiceError:
            self._disconnect()
            if fresh:
                raise
            return request(self._session())

    def close(self) -> None:
        self._disconnect()
        self._done.clear()


def _transaction(data: Any) -> Transaction:
    return msgspec.convert(data, Transaction)


_AT_ONCE = 2
"""Prepared transactions of a subtask: one waits for its commit while the next is prepared."""


class SqlSink(Sink):
    """``delivery`` EXACTLY_ONCE: the checkpoint commits prepared transactions. AT_LEAST_ONCE: the tasks commit each round. If all
    tables have keys that is idempotent: the tables finally hold the same rows as if every record had arrived once."""

    to_raise = "delivery=DeliveryGuarantee.EXACTLY_ONCE, or a key for every table"

    def __init__(
        self, database: Database, tables: tuple[Table, ...], to_rows: ToRows | None, delivery: DeliveryGuarantee
    ) -> None:
        kind = type(self).__name__
        for table in tables:
            if not isinstance(table, Table):
                raise wrong(kind, "tables", table, 'Table("orders", ["id", "amount"])')
        if not isinstance(delivery, DeliveryGuarantee) or delivery is DeliveryGuarantee.NONE:
            raise wrong(kind, "EXACTLY_ONCE or AT_LEAST_ONCE", delivery, "DeliveryGuarantee.EXACTLY_ONCE")
        if not tables or len({table.name for table in tables}) != len(tables) or (to_rows is None and len(tables) > 1):
            raise ProgramError(
                "A sink writes to one table, or to several tables that to_rows chooses from",
                where=kind,
                found=f"tables {[table.name for table in tables]}, to_rows {'given' if to_rows else 'not given'}",
                cure='to_rows=lambda record: [("orders", (record.id, record.amount))]',
            )
        self.database, self.tables, self.to_rows, self.delivery = database, tables, to_rows, delivery
        exactly_once = delivery is DeliveryGuarantee.EXACTLY_ONCE
        self.publication = Publication.CHECKPOINT if exactly_once else Publication.ROUND
        idempotent = all(table.key for table in tables)
        straight = SinkGuarantee.IDEMPOTENT if idempotent else SinkGuarantee.NONE
        self.guarantee = SinkGuarantee.TWO_PHASE_COMMIT if exactly_once else straight

    def validate(self) -> None:
        self.database.check(self.tables, exactly_once=self.delivery is DeliveryGuarantee.EXACTLY_ONCE)

    def validate_parallelism(self, parallelism: int) -> None:
        if self.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            self.database.check_prepared(_AT_ONCE * parallelism)

    def validate_checkpoints(self, interval_ms: int | None) -> None:
        if self.delivery is DeliveryGuarantee.EXACTLY_ONCE and interval_ms is None:
            raise ConfigurationError(
                "EXACTLY_ONCE commits with checkpoints, and the job takes none",
                where=type(self).__name__,
                found="execution.checkpointing.interval is not set",
                cure="env.enable_checkpointing(1000), or DeliveryGuarantee.AT_LEAST_ONCE",
            )

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        rows = RecordRows(self.tables, self.to_rows)
        if self.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            return PreparingWriter(self.database, self.tables, rows, context, state)
        return StraightWriter(self.database, self.tables, rows, context)

    def create_committer(self, context: CommitterContext) -> Committer:
        """A sink that commits in its tasks has a committer too: it ends open sessions of earlier attempts."""
        return SqlCommitter(self.database, self.tables, base_for(context), context)
