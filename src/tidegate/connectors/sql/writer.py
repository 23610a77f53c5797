"""Write the rows of one round: into a prepared transaction, into a file between checkpoints, or directly."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.base import faults
from tidegate.base.errors import FencedError
from tidegate.connectors.sql.database import Database, Session, Transaction, base_of, new_name
from tidegate.connectors.sql.table import Frame, FrameFile, RecordRows, Table, read_frames
from tidegate.operators.contracts.sink import Prepared, SinkWriter, WriterContext


class SqlWriter(SinkWriter):
    """Encode rows. Subclasses choose the target by what the round carries."""

    def __init__(self, database: Database, tables: tuple[Table, ...], rows: RecordRows, context: WriterContext) -> None:
        self._database, self._tables, self._rows, self._context = database, tables, rows, context
        self._encoder = database.encoder(tables)
        self._base = base_of(context)
        self._session: Session | None = None

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        for table, rows in self._rows.of(values):
            if rows:
                self._take(self._encoder.encode(table, rows))

    def _take(self, frame: Frame) -> None:
        raise NotImplementedError

    def _open(self) -> Session:
        return self._database.open(self._tables, tag=f"{self._base} {self._context.lease}")

    def _refuse_if_late(self, session: Session, *, hold: bool) -> None:
        """A task of a replaced attempt must leave nothing that no later attempt looks for."""
        mine, current = (self._context.lease, self._context.round), session.fence(self._base, hold=hold)
        if (current if hold else current[:1]) > (mine if hold else mine[:1]):
            raise FencedError(
                "A task of a finished round or of a replaced attempt may not write",
                where=self._database.where,
                found=f"lease and round {mine}; by now {current} may write",
            )

    def abort(self) -> None:
        if self._session is not None:
            self._session.rollback()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class PreparingWriter(SqlWriter):
    """Exactly once. In a round without a barrier the rows go into a file (``table.py``); in a round with a barrier, into a
    transaction that is prepared. In a job that promises at-least-once, every round has its transaction, committed with the
    round."""

    def __init__(
        self,
        database: Database,
        tables: tuple[Table, ...],
        rows: RecordRows,
        context: WriterContext,
        staged: list[dict[str, Any]],
    ) -> None:
        super().__init__(database, tables, rows, context)
        self._staged, self._name = staged, new_name(self._base, context)
        self._ends = context.checkpoint_id is not None or context.publishes
        self._file: FrameFile | None = None
        self._written = 0

    def _take(self, frame: Frame) -> None:
        if self._ends:
            self._begun().write(frame)
            self._written += frame.rows
            return
        if self._file is None:
            self._file = FrameFile(self._context)
            faults.point("K1.sql.staging", attempt=self._context.attempt)
        self._file.add(frame)

    def _begun(self) -> Session:
        if self._session is None:
            session = self._session = self._open()
            # The session carries its lease before it reads the fence: a committer that raises the fence later ends this session.
            self._refuse_if_late(session, hold=False)
            session.begin(self._name)
            faults.point("K1.sql.begun", attempt=self._context.attempt)
            for staged in self._staged:
                for frame in read_frames(staged):
                    session.write(frame)
                self._written += staged["rows"]
        return self._session

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        own = [] if self._file is None else [self._file.staged()]
        if not self._ends and not end_of_input:
            return Prepared(state=[*self._staged, *own])
        if self._session is None and not self._staged and not own:
            return Prepared()
        session = self._begun()
        for staged in own:  # the end of a job without checkpoints
            for frame in read_frames(staged):
                session.write(frame)
            self._written += staged["rows"]
        session.flush()
        faults.point("K1.sql.written", attempt=self._context.attempt)
        context = self._context
        session.mark(self._base, self._name, context.lease, context.round)
        session.prepare()
        faults.point("K2.sql.prepared", transaction=self._name)
        made = Transaction(
            name=self._name,
            base=self._base,
            lease=context.lease,
            round=context.round,
            rows=self._written,
            # The job may restore a checkpoint from before a published round; that checkpoint names the files. The end of the
            # job deletes them.
            staged=[] if context.publishes else [staged["address"] for staged in (*self._staged, *own)],
        )
        return Prepared(committables=[msgspec.to_builtins(made)])

    def abort(self) -> None:
        super().abort()
        if self._file is not None:
            self._file.drop()

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()


class StraightWriter(SqlWriter):
    """At least once: one transaction for each round, committed before the round is acknowledged.

    No old value replaces a newer one: the bookkeeping table holds the lease and the round that may write. A writer raises this
    fence to its own lease and round, then holds it while it writes. A writer that finds a greater one gives up. So no late task
    writes after a later round, and a later round waits for a task that is writing. Tasks of the same round write the same rows.
    """

    def _take(self, frame: Frame) -> None:
        self._begun().write(frame)

    def _begun(self) -> Session:
        if self._session is None:
            session = self._session = self._open()
            session.raise_fence(self._base, self._context.lease, self._context.round)
            session.begin(None)
            self._refuse_if_late(session, hold=True)
            faults.point("K1.sql.begun", attempt=self._context.attempt)
        return self._session

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if self._session is not None:
            self._session.flush()
            faults.point("K1.sql.written", attempt=self._context.attempt)
            self._session.commit()
            faults.point("K3.sql.committed", attempt=self._context.attempt)
        return Prepared()
