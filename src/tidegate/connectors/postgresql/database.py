"""A PostgreSQL server: how it is reached, and what it must be like before a job starts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
from psycopg import conninfo, errors

from tidegate.base import secrets
from tidegate.base.errors import AccessError, ConfigurationError, TidegateError
from tidegate.connectors.postgresql.encoding import Column, PostgreSqlEncoder
from tidegate.connectors.postgresql.failures import translated
from tidegate.connectors.postgresql.session import PostgreSqlSession, quoted_path
from tidegate.connectors.sql.database import Database
from tidegate.connectors.sql.table import Table

log = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]
_LEAST_VERSION = 110_000


@dataclass(frozen=True)
class PostgreSqlDatabase(Database):
    """``settings``: of libpq, without the password. ``bookkeeping``: the table of markers. ``patience_ms``: how long a server that
    is away is waited for."""

    settings: tuple[tuple[str, str], ...]
    password: str | None = field(repr=False)
    bookkeeping: str
    lock_timeout_ms: int
    patience_ms: int

    _columns_known: ClassVar[dict[tuple[Any, ...], list[list[Column]]]] = {}

    @classmethod
    def of(
        cls, url: str, password: str | None, *, bookkeeping: str, lock_timeout_ms: int, patience_ms: int
    ) -> PostgreSqlDatabase:
        try:
            settings = {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}
        except psycopg.Error:  # it may show the password
            raise ConfigurationError(
                "The address of a PostgreSQL database is a URL or libpq's key=value pairs",
                where="PostgreSqlSink",
                found="a text that libpq cannot read (not shown: it may hold a password)",
                cure='"postgresql://user@host:5432/database", and password=...',
            ) from None
        given = settings.pop("password", None)
        hidden = password if password is not None else given
        secrets.hide([hidden or ""])
        return cls(tuple(sorted(settings.items())), hidden, bookkeeping, lock_timeout_ms, patience_ms)

    @property
    def where(self) -> str:  # type: ignore[override]
        known = dict(self.settings)
        place = f"{known.get('host', 'localhost')}:{known.get('port', '5432')}/{known.get('dbname', '')}"
        return f"PostgreSQL {place} as {known.get('user', 'the default user')}"

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(self, tables: Sequence[Table], *, tag: str = "", patient: bool = True) -> PostgreSqlSession:
        connection = self.connected(tag, patient)
        return PostgreSqlSession(
            connection,
            tables,
            lambda: self._columns(connection, tables),
            where=self.where,
            bookkeeping=quoted_path(self.bookkeeping),
            lock_timeout_ms=self.lock_timeout_ms,
        )

    def connected(self, tag: str, patient: bool) -> Connection:
        """A connection; arguments as in ``open``."""
        deadline, pause = time.monotonic() + (self.patience_ms / 1000 if patient else 0), 0.05
        while True:
            try:
                return self._connect(tag)
            except psycopg.Error as error:
                problem = translated(error, self.where)
            if time.monotonic() + pause > deadline or not problem.restart_helps:
                raise problem from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _connect(self, tag: str) -> Connection:
        """What the sink relies on is set for its sessions, whatever the server's configuration says: commits are durable, and
        times without a zone are UTC."""
        name = {"application_name": tag} if tag else {}
        limits = {"connect_timeout": "30", "keepalives_idle": "30", "client_encoding": "utf8"}
        given = {**limits, **dict(self.settings), **name}
        if self.password is not None:
            given["password"] = self.password
        connection: Connection = psycopg.connect(**given, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
        try:
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('timezone', 'UTC', false), "
                "set_config('datestyle', 'ISO', false), set_config('standard_conforming_strings', 'on', false), "
                "set_config('statement_timeout', '0', false), "
                "CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END",
                (str(self.lock_timeout_ms),),
            )
        except BaseException:
            connection.close()
            raise
        return connection

    # -- tables --------------------------------------------------------------------------------------------------------

    def encoder(self, tables: Sequence[Table]) -> PostgreSqlEncoder:
        key = (os.getpid(), self.settings, tuple(tables))
        if key not in self._columns_known:  # asked once in a process
            connection = self.connected("", True)
            with connection:
                self._columns_known[key] = self._columns(connection, tables)
        return PostgreSqlEncoder(tables, self._columns_known[key])

    def _columns(self, connection: Connection, tables: Sequence[Table]) -> list[list[Column]]:
        key = (os.getpid(), self.settings, tuple(tables))
        known = self._columns_known.get(key)
        if known is None:
            try:
                known = [self._columns_of(connection, table) for table in tables]
            except psycopg.Error as error:
                raise translated(error, self.where) from None
        return known

    def _columns_of(self, connection: Connection, table: Table) -> list[Column]:
        found = connection.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod), typname::text, format_type(pg_type.oid, -1) "
            "FROM pg_attribute JOIN pg_type ON pg_type.oid = "
            "CASE (SELECT typtype FROM pg_type base WHERE base.oid = atttypid) WHEN 'd' THEN "
            "(SELECT typbasetype FROM pg_type base WHERE base.oid = atttypid) ELSE atttypid END "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (_path(table.name),),
        ).fetchall()
        there = {name: Column(name, kind, family, bare) for name, kind, family, bare in found}
        missing = [name for name in table.columns if name not in there]
        if missing:
            raise ConfigurationError(
                "A sink writes to tables and columns that are there, and it may see",
                where=f"{self.where}, table {table.name}",
                found=f"no column {', '.join(missing)}; there are {', '.join(there)}" if there else "no such table",
                cure="create it before the job starts; names are case-sensitive here",
            )
        return [there[name] for name in table.columns]

    # -- before the start ----------------------------------------------------------------------------------------------

    def check(self, tables: Sequence[Table], *, exactly_once: bool) -> None:
        with self.connected("", False) as connection:
            try:
                self._check_version(connection)
                for table in tables:
                    self._columns_of(connection, table)
                    self._check_rights(connection, table)
                    self._check_key(connection, table)
                self._make_bookkeeping(connection)
            except psycopg.Error as error:
                raise translated(error, self.where) from None

    def _check_version(self, connection: Connection) -> None:
        if connection.info.server_version < _LEAST_VERSION:
            raise ConfigurationError(
                "The sink needs PostgreSQL 11 or later", where=self.where, found=f"{connection.info.server_version}"
            )

    def _check_rights(self, connection: Connection, table: Table) -> None:
        wanted = ["INSERT", *(["UPDATE", "SELECT"] if table.key else [])]
        for right in wanted:
            row = connection.execute("SELECT has_any_column_privilege(%s, %s)", (_path(table.name), right)).fetchone()
            if row is None or not row[0]:
                raise AccessError(
                    f"The sink needs the right to {right} on its tables",
                    where=self.where,
                    found=f"it has none on {table.name}",
                    cure=f"GRANT {', '.join(wanted)} ON {table.name} TO the user of the sink",
                )

    def _check_key(self, connection: Connection, table: Table) -> None:
        if not table.key:
            return
        found = connection.execute(
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL "
            "GROUP BY indexrelid",
            (_path(table.name),),
        ).fetchall()
        if set(table.key) not in [set(names) for (names,) in found]:
            there = "; ".join(", ".join(names) for (names,) in found)
            raise ConfigurationError(
                "An upsert needs a primary key or a unique index of exactly the columns of its key",
                where=f"{self.where}, table {table.name}",
                found=f"key {', '.join(table.key)}; unique are: {there or 'none'}",
                cure=f"CREATE UNIQUE INDEX ON {table.name} ({', '.join(table.key)})",
            )

    def _make_bookkeeping(self, connection: Connection) -> None:
        """Looked for first: to create what is there waits for locks, and needs a right."""
        statement = (
            f"CREATE TABLE IF NOT EXISTS {quoted_path(self.bookkeeping)} (base text, name text, lease bigint NOT NULL, "
            "round bigint NOT NULL, made timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (base, name))"
        )
        for last in (False, True):
            row = connection.execute("SELECT to_regclass(%s)", (_path(self.bookkeeping),)).fetchone()
            if row is not None and row[0] is not None:
                return
            try:
                connection.execute(statement)
                return
            except (errors.UniqueViolation, errors.DuplicateTable) as error:  # by another job at the same moment
                if last:
                    raise translated(error, self.where) from None
            except errors.InsufficientPrivilege as error:
                raise _no_bookkeeping(self.where, error, statement) from None

    def check_prepared(self, wanted: int) -> None:
        with self.connected("", False) as connection:
            row = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
            most = row[0] if row is not None else 0
            used = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
        if most < wanted:
            raise ConfigurationError(
                "EXACTLY_ONCE needs two prepared transactions for each subtask of the sink",
                where=self.where,
                found=f"max_prepared_transactions is {most}, the sink needs {wanted}",
                cure=f"max_prepared_transactions = {max(64, 2 * wanted)} in postgresql.conf and a restart of the server, or "
                "DeliveryGuarantee.AT_LEAST_ONCE",
            )
        if used is not None and used[0] + wanted > most:
            log.warning("%s: %d of %d prepared transactions are in use", self.where, used[0], most)


def _path(name: str) -> str:
    """A name for ``to_regclass``."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _no_bookkeeping(where: str, error: psycopg.Error, statement: str) -> TidegateError:
    return AccessError(
        "The sink keeps a small table of what it has committed",
        where=where,
        found=f"it is not there, and cannot be created: {error.diag.message_primary}",
        cure=f"let somebody who may run: {statement}; GRANT SELECT, INSERT, UPDATE, DELETE on it",
    )
