"""Tables of MariaDB and MySQL as a sink: exactly once by XA transactions that the driver commits with the checkpoint."""

from __future__ import annotations

from tidegate.base.arguments import expect_int, expect_text
from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.mysql.database import MySqlDatabase
from tidegate.connectors.sql.database import BOOKKEEPING
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import Table, ToRows


class MySqlSink(SqlSink):
    """``url``: ``mysql://user@host:3306/database``; a password may be in it or be given apart. ``tls_ca``: a file with the
    certificates that the server's must be signed by; with it connections are encrypted. The rest as in ``PostgreSqlSink``.
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
        tls_ca: str | None = None,
    ) -> None:
        database = MySqlDatabase.of(
            expect_text("MySqlSink", url, '"mysql://user@host:3306/database"'),
            password,
            tls_ca=tls_ca,
            bookkeeping=expect_text("MySqlSink bookkeeping", bookkeeping, f'"{BOOKKEEPING}"'),
            lock_timeout_ms=expect_int("MySqlSink lock_timeout_ms", lock_timeout_ms, "10_000"),
            patience_ms=expect_int("MySqlSink patience_ms", patience_ms, "10_000"),
        )
        super().__init__(database, tables, to_rows, delivery)
