"""Tables of PostgreSQL as a sink: exactly once by prepared transactions that the driver commits with the checkpoint."""

from __future__ import annotations

from tidegate.base.arguments import expect_int, expect_text
from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.postgresql.database import PostgreSqlDatabase
from tidegate.connectors.sql.database import BOOKKEEPING
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import Table, ToRows


class PostgreSqlSink(SqlSink):
    """``url``: ``postgresql://user@host:5432/database``, or libpq's ``key=value`` pairs; a password may be in it, be given
    apart, or come from ``~/.pgpass``. ``tables``: one, or several that ``to_rows`` chooses from: it gives pairs of a table's name
    and a record. ``bookkeeping``: the name of the table of markers. ``lock_timeout_ms``: how long a statement waits for a
    lock. ``patience_ms``: how long a task or a commit waits for a server that is away, before it counts as failed.
    """

    def __init__(
        self,
        url: str,
        *tables: Table,
        password: str | None = None,
        to_rows: ToRows | None = None,
        delivery: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
        bookkeeping: str = BOOKKEEPING,
        lock_timeout_ms: int = 10_000,
        patience_ms: int = 10_000,
    ) -> None:
        database = PostgreSqlDatabase.of(
            expect_text("PostgreSqlSink", url, '"postgresql://user@host:5432/database"'),
            password,
            bookkeeping=expect_text("PostgreSqlSink bookkeeping", bookkeeping, f'"{BOOKKEEPING}"'),
            lock_timeout_ms=expect_int("PostgreSqlSink lock_timeout_ms", lock_timeout_ms, "10_000"),
            patience_ms=expect_int("PostgreSqlSink patience_ms", patience_ms, "10_000"),
        )
        super().__init__(database, tables, to_rows, delivery)
