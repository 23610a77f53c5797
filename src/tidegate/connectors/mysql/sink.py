"""Tables of MariaDB and MySQL as a sink: exactly once by XA transactions that the driver commits with the checkpoint."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from tidegate.base import secrets
from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ConfigurationError
from tidegate.connectors.delivery import DeliveryGuarantee
from tidegate.connectors.mysql.database import MySqlDatabase
from tidegate.connectors.sql.database import BOOKKEEPING
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import Table, ToRows


class MySqlSink(SqlSink):
    """Write records to tables of MariaDB or MySQL.

    ``url``: ``mysql://user@host:3306/database``. The password may be in the URL or be given apart. ``tls_ca``: a file with the
    certificates that have signed the server's; with it connections are encrypted. The other arguments are those of
    ``PostgreSqlSink``.
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
        host, port, user, name, given = _parsed(expect_text("MySqlSink", url, '"mysql://user@host:3306/database"'))
        hidden = password if password is not None else given
        secrets.hide([hidden])
        database = MySqlDatabase(
            host,
            port,
            user,
            name,
            hidden,
            tls_ca,
            bookkeeping=expect_text("MySqlSink bookkeeping", bookkeeping, f'"{BOOKKEEPING}"'),
            lock_timeout_ms=expect_int("MySqlSink lock_timeout_ms", lock_timeout_ms, "10_000"),
            patience_ms=expect_int("MySqlSink patience_ms", patience_ms, "10_000"),
        )
        super().__init__(database, tables, to_rows, delivery)


def _parsed(url: str) -> tuple[str, int, str, str, str]:
    """Host, port, user, database and password of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username or not parts.path[1:]:
        raise ConfigurationError(
            "The address of a MariaDB or MySQL database is a URL with user, host and database",
            where="MySqlSink",
            found="another text (not shown: it may hold a password)",
            cure='"mysql://user@host:3306/database", and password=...',
        )
    return parts.hostname, port, unquote(parts.username), unquote(parts.path[1:]), unquote(parts.password or "")
