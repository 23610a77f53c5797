"""A MariaDB or MySQL server: connections, tables, and the checks before a job starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.mysql.encoding import MySqlEncoder
from tidegate.connectors.mysql.failures import translated
from tidegate.connectors.mysql.session import MySqlSession, quoted_path
from tidegate.connectors.sql.database import Answer, Database
from tidegate.connectors.sql.encoding import ServerColumn
from tidegate.connectors.sql.table import Table

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
