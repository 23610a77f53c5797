"""Tables of PostgreSQL as a sink: exactly once by prepared transactions that the driver commits with the checkpoint."""

from __future__ import annotations

import psycopg
from psycopg import conninfo

from tidegate.base import secrets
from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ConfigurationError
from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.postgresql.database import PostgreSqlDatabase
from tidegate.connectors.sql.database import BOOKKEEPING
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import Table, ToRows


class PostgreSqlSink(SqlSink):
    """Write records to tables of PostgreSQL.

    ``url``: ``postgresql://user@host:5432/database``, or libpq's ``key=value`` pairs. The password may be in the URL, be given
    apart, or come from ``~/.pgpass``. ``tables``: one, or several that ``to_rows`` chooses from; ``to_rows`` gives pairs of the
    name of a table and a record. ``bookkeeping``: the name of the bookkeeping table. ``lock_timeout_ms``: how long a statement
    waits for a lock. ``patience_ms``: how long a task or a commit waits for a server that is down, before it fails.
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
        settings = _parsed(expect_text("PostgreSqlSink", url, '"postgresql://user@host:5432/database"'))
        given = settings.pop("password", None)
        hidden = password if password is not None else given
        secrets.hide([hidden or ""])
        database = PostgreSqlDatabase(
            tuple(sorted(settings.items())),
            hidden,
            bookkeeping=expect_text("PostgreSqlSink bookkeeping", bookkeeping, f'"{BOOKKEEPING}"'),
            lock_timeout_ms=expect_int("PostgreSqlSink lock_timeout_ms", lock_timeout_ms, "10_000"),
            patience_ms=expect_int("PostgreSqlSink patience_ms", patience_ms, "10_000"),
        )
        super().__init__(database, tables, to_rows, delivery)


def _parsed(url: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.Error:  # the error may show the password
        raise ConfigurationError(
            "The address of a PostgreSQL database is a URL or libpq's key=value pairs",
            where="PostgreSqlSink",
            found="a text that libpq cannot read (not shown: it may hold a password)",
            cure='"postgresql://user@host:5432/database", and password=...',
        ) from None
