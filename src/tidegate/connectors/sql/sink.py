"""A sink into tables of a database: the part that PostgreSQL and MariaDB share."""

from __future__ import annotations

from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import ConfigurationError, ProgramError
from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.sql.committer import SqlCommitter
from tidegate.connectors.sql.database import Database
from tidegate.connectors.sql.names import base_for
from tidegate.connectors.sql.table import RecordRows, Table, ToRows
from tidegate.connectors.sql.writer import PreparingWriter, StraightWriter
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

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
