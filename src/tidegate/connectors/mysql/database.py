"""A MariaDB or MySQL server: how it is reached, and what it must be like before a job starts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pymysql

from tidegate.base import secrets
from tidegate.base.errors import ConfigurationError
from tidegate.connectors.mysql.encoding import Column, MySqlEncoder
from tidegate.connectors.mysql.failures import translated
from tidegate.connectors.mysql.session import MySqlSession, quoted_path
from tidegate.connectors.sql.database import Database
from tidegate.connectors.sql.table import Table

_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
"""Whatever the server's is: without it values that do not fit are cut in silence."""


@dataclass(frozen=True)
class MySqlDatabase(Database):
    """``patience_ms``: how long a server that is away is waited for."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False)
    tls_ca: str | None
    bookkeeping: str
    lock_timeout_ms: int
    patience_ms: int

    _columns_known: ClassVar[dict[tuple[Any, ...], list[list[Column]]]] = {}

    @classmethod
    def of(
        cls,
        url: str,
        password: str | None,
        *,
        tls_ca: str | None,
        bookkeeping: str,
        lock_timeout_ms: int,
        patience_ms: int,
    ) -> MySqlDatabase:
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
        hidden = password if password is not None else unquote(parts.password or "")
        secrets.hide([hidden])
        user, database = unquote(parts.username), unquote(parts.path[1:])
        return cls(parts.hostname, port, user, database, hidden, tls_ca, bookkeeping, lock_timeout_ms, patience_ms)

    @property
    def where(self) -> str:  # type: ignore[override]
        return f"MySQL {self.host}:{self.port}/{self.database} as {self.user}"

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(self, tables: Sequence[Table], *, tag: str = "", patient: bool = True) -> MySqlSession:
        connection = self.connected(patient)
        [(packet,)] = _asked(connection, "SELECT @@max_allowed_packet")
        session = MySqlSession(
            connection,
            tables,
            where=self.where,
            bookkeeping=quoted_path(self.bookkeeping),
            lock_timeout_ms=self.lock_timeout_ms,
            packet=int(packet),
        )
        if tag:
            base, _, lease = tag.rpartition(" ")
            session.tag(base, int(lease))
        return session

    def connected(self, patient: bool) -> Any:
        """A connection of the driver; ``patient`` as in ``open``."""
        deadline, pause = time.monotonic() + (self.patience_ms / 1000 if patient else 0), 0.05
        while True:
            try:
                return self._connect()
            except (pymysql.Error, OSError) as error:
                known = error if isinstance(error, pymysql.Error) else pymysql.OperationalError(2003, str(error))
                problem = translated(known, self.where)
            if time.monotonic() + pause > deadline or not problem.restart_helps:
                raise problem from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _connect(self) -> Any:
        seconds = max(1, self.lock_timeout_ms // 1000)
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
            init_command=f"SET SESSION innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}, time_zone='+00:00', "
            f"sql_mode='{_MODE}', tx_isolation='READ-COMMITTED'",
        )

    # -- tables --------------------------------------------------------------------------------------------------------

    def encoder(self, tables: Sequence[Table]) -> MySqlEncoder:
        key = (os.getpid(), self.host, self.port, self.database, tuple(tables))
        if key not in self._columns_known:  # asked once in a process
            with closing(self.connected(True)) as connection:
                self._columns_known[key] = [self._columns_of(connection, table) for table in tables]
        return MySqlEncoder(tables, self._columns_known[key])

    def _columns_of(self, connection: Any, table: Table) -> list[Column]:
        found = self._asked(
            connection,
            "SELECT column_name, column_type, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s",
            self._path(table.name),
        )
        there = {name: Column(name, str(kind), str(family)) for name, kind, family in found}
        missing = [name for name in table.columns if name not in there]
        if missing:
            raise ConfigurationError(
                "A sink writes to tables and columns that are there, and it may see",
                where=f"{self.where}, table {table.name}",
                found=f"no column {', '.join(missing)}; there are {', '.join(there)}" if there else "no such table",
                cure="create it before the job starts",
            )
        return [there[name] for name in table.columns]

    def _path(self, name: str) -> tuple[str, str]:
        schema, _, table = name.rpartition(".")
        return schema or self.database, table

    def _asked(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return _asked(connection, statement, values)
        except pymysql.Error as error:
            raise translated(error, self.where) from None

    # -- before the start ----------------------------------------------------------------------------------------------

    def check(self, tables: Sequence[Table], *, exactly_once: bool) -> None:
        with closing(self.connected(False)) as connection:
            for table in tables:
                self._columns_of(connection, table)
                self._check_engine(connection, table)
                self._check_key(connection, table)
            if exactly_once:
                self._asked(connection, "XA RECOVER")  # MySQL asks for the right XA_RECOVER_ADMIN
            self._asked(
                connection,
                f"CREATE TABLE IF NOT EXISTS {quoted_path(self.bookkeeping)} (base varchar(64) CHARACTER SET ascii, "
                "name varchar(160) CHARACTER SET ascii, lease bigint NOT NULL, round bigint NOT NULL, "
                "made timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (base, name)) ENGINE=InnoDB",
            )

    def _check_engine(self, connection: Any, table: Table) -> None:
        found = self._asked(
            connection,
            "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            self._path(table.name),
        )
        if found and found[0][0] != "InnoDB":
            raise ConfigurationError(
                "Transactions need tables of the engine InnoDB",
                where=f"{self.where}, table {table.name}",
                found=f"engine {found[0][0]}",
                cure=f"ALTER TABLE {table.name} ENGINE=InnoDB",
            )

    def _check_key(self, connection: Any, table: Table) -> None:
        if not table.key:
            return
        found = self._asked(
            connection,
            "SELECT index_name, column_name FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND non_unique = 0",
            self._path(table.name),
        )
        indexes: dict[str, set[str]] = {}
        for index, column in found:
            indexes.setdefault(index, set()).add(column)
        if set(table.key) not in indexes.values():
            there = "; ".join(", ".join(sorted(names)) for names in indexes.values())
            raise ConfigurationError(
                "An upsert needs a primary key or a unique index of exactly the columns of its key",
                where=f"{self.where}, table {table.name}",
                found=f"key {', '.join(table.key)}; unique are: {there or 'none'}",
                cure=f"CREATE UNIQUE INDEX by_key ON {table.name} ({', '.join(table.key)})",
            )

    def check_prepared(self, wanted: int) -> None:
        """The server has no limit of its own."""


def _asked(connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())
