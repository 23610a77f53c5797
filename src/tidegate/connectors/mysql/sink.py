"""Tables of MariaDB and MySQL as a sink, and the server: connections, tables, the checks before a job starts.

Output is exactly once by XA transactions that the driver commits with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from tidegate.base import secrets
from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ConfigurationError
from tidegate.connectors.mysql.session import MySqlEncoder, MySqlSession, quoted_path, translated
from tidegate.connectors.sql.database import BOOKKEEPING, Answer, Database
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import ServerColumn, Table, ToRows
from tidegate.operators.contracts.sink import DeliveryGuarantee

_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
"""Set for every session, whatever the server's mode is: otherwise the server truncates values that do not fit, silently."""


@dataclass(frozen=True)
class MySqlDatabase(Database):
    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False)
    tls_ca: str | None

    encoder_type = MySqlEncoder

    @property
    def where(self) -> str:
        return f"MySQL {self.host}:{self.port}/{self.database} as {self.user}"

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(self, tables: Sequence[Table], *, tag: str = "") -> MySqlSession:
        connection = self.connected(patient=True)
        [(packet,)] = self._ask(connection, "SELECT @@max_allowed_packet")
        session = MySqlSession(
            connection,
            tables,
            packet=int(packet),
            where=self.where,
            bookkeeping=quoted_path(self.bookkeeping),
            lock_timeout_ms=self.lock_timeout_ms,
        )
        if tag:
            base, _, lease = tag.rpartition(" ")
            session.tag(base, int(lease))
        return session

    def _connect(self, tag: str) -> Any:
        seconds = max(1, self.lock_timeout_ms // 1000)
        try:
            return pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                database=self.database,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=30,
                ssl_ca=self.tls_ca,
                init_command=f"SET SESSION innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}, "
                f"time_zone='+00:00', sql_mode='{_MODE}', tx_isolation='READ-COMMITTED'",
            )
        except (pymysql.Error, OSError) as error:
            raise translated(error, self.where) from None

    def _ask(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Answer:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return list(cursor.fetchall())
        except (pymysql.Error, OSError) as error:
            raise translated(error, self.where) from None

    # -- tables --------------------------------------------------------------------------------------------------------

    def _described(self, connection: Any, table: Table) -> list[ServerColumn]:
        found = self._ask_schema(connection, "column_name, column_type, data_type", "columns", table)
        return [ServerColumn(name, str(kind), str(family)) for name, kind, family in found]

    def _ask_schema(self, connection: Any, what: str, view: str, table: Table, also: str = "") -> Answer:
        schema, _, name = table.name.rpartition(".")
        return self._ask(
            connection,
            f"SELECT {what} FROM information_schema.{view} WHERE table_schema = %s AND table_name = %s{also}",
            (schema or self.database, name),
        )

    def _unique_keys(self, connection: Any, table: Table) -> Iterable[Iterable[str]]:
        indexes: dict[str, set[str]] = {}
        found = self._ask_schema(connection, "index_name, column_name", "statistics", table, " AND non_unique = 0")
        for index, column in found:
            indexes.setdefault(index, set()).add(column)
        return indexes.values()

    # -- before the job starts -----------------------------------------------------------------------------------------

    def _check_server(self, connection: Any, exactly_once: bool) -> None:
        if exactly_once:
            self._ask(connection, "XA RECOVER")  # MySQL requires the right XA_RECOVER_ADMIN

    def _check_table(self, connection: Any, table: Table) -> None:
        found = self._ask_schema(connection, "engine", "tables", table)
        if found and found[0][0] != "InnoDB":
            raise ConfigurationError(
                "Transactions need tables of the engine InnoDB",
                where=f"{self.where}, table {table.name}",
                found=f"engine {found[0][0]}",
                cure=f"ALTER TABLE {table.name} ENGINE=InnoDB",
            )

    def _create_bookkeeping(self, connection: Any) -> None:
        self._ask(
            connection,
            f"CREATE TABLE IF NOT EXISTS {quoted_path(self.bookkeeping)} (base varchar(64) CHARACTER SET ascii, "
            "name varchar(160) CHARACTER SET ascii, lease bigint NOT NULL, round bigint NOT NULL, "
            "made timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (base, name)) ENGINE=InnoDB",
        )


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
