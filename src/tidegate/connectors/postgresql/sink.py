"""Tables of PostgreSQL as a sink, and the server: connections, tables, the checks before a job starts.

Output is exactly once by prepared transactions that the driver commits with the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import conninfo, errors

from tidegate.base import secrets
from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import AccessError, ConfigurationError
from tidegate.connectors.postgresql.session import PostgreSqlEncoder, PostgreSqlSession, quoted_path, translated
from tidegate.connectors.sql.database import BOOKKEEPING, Answer, Database
from tidegate.connectors.sql.sink import SqlSink
from tidegate.connectors.sql.table import ServerColumn, Table, ToRows
from tidegate.operators.contracts.sink import DeliveryGuarantee

log = logging.getLogger(__name__)

Connection = psycopg.Connection[tuple[Any, ...]]
_LEAST_VERSION = 110_000


@dataclass(frozen=True)
class PostgreSqlDatabase(Database):
    """``settings``: of libpq, without the password."""

    settings: tuple[tuple[str, str], ...]
    password: str | None = field(repr=False)

    encoder_type = PostgreSqlEncoder

    @property
    def where(self) -> str:
        known = dict(self.settings)
        place = f"{known.get('host', 'localhost')}:{known.get('port', '5432')}/{known.get('dbname', '')}"
        return f"PostgreSQL {place} as {known.get('user', 'the default user')}"

    # -- connections ---------------------------------------------------------------------------------------------------

    def open(self, tables: Sequence[Table], *, tag: str = "") -> PostgreSqlSession:
        return PostgreSqlSession(
            self.connected(patient=True, tag=tag),
            tables,
            lambda: self._columns(tables),
            where=self.where,
            bookkeeping=quoted_path(self.bookkeeping),
            lock_timeout_ms=self.lock_timeout_ms,
        )

    def _connect(self, tag: str) -> Connection:
        """Settings that the sink relies on are set for the session, whatever the configuration of the server says: commits are
        durable, and times without a zone are UTC."""
        name = {"application_name": tag} if tag else {}
        limits = {"connect_timeout": "30", "keepalives_idle": "30", "client_encoding": "utf8"}
        given = {**limits, **dict(self.settings), **name}
        if self.password is not None:
            given["password"] = self.password
        try:
            connection: Connection = psycopg.connect(**given, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
            try:
                connection.execute(
                    "SELECT set_config('lock_timeout', %s, false), set_config('timezone', 'UTC', false), "
                    "set_config('datestyle', 'ISO', false), set_config('standard_conforming_strings', 'on', false), "
                    "set_config('statement_timeout', '0', false), "
                    "CASE WHEN current_setting('synchronous_commit') = 'off' "
                    "THEN set_config('synchronous_commit', 'on', false) END",
                    (str(self.lock_timeout_ms),),
                )
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise translated(error, self.where) from None
        return connection

    def _ask(self, connection: Connection, statement: str, values: Sequence[Any] = ()) -> Answer:
        try:
            return connection.execute(statement.encode(), values).fetchall()
        except psycopg.Error as error:
            raise translated(error, self.where) from None

    # -- tables --------------------------------------------------------------------------------------------------------

    def _described(self, connection: Connection, table: Table) -> list[ServerColumn]:
        found = self._ask(
            connection,
            "SELECT attname::text, format_type(atttypid, atttypmod), typname::text, format_type(pg_type.oid, -1) "
            "FROM pg_attribute JOIN pg_type ON pg_type.oid = "
            "CASE (SELECT typtype FROM pg_type base WHERE base.oid = atttypid) WHEN 'd' THEN "
            "(SELECT typbasetype FROM pg_type base WHERE base.oid = atttypid) ELSE atttypid END "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (_path(table.name),),
        )
        return [ServerColumn(*row) for row in found]

    def _unique_keys(self, connection: Connection, table: Table) -> Iterable[Iterable[str]]:
        found = self._ask(
            connection,
            "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL "
            "GROUP BY indexrelid",
            (_path(table.name),),
        )
        return [names for (names,) in found]

    # -- before the job starts -----------------------------------------------------------------------------------------

    def _check_server(self, connection: Connection, exactly_once: bool) -> None:
        if connection.info.server_version < _LEAST_VERSION:
            raise ConfigurationError(
                "The sink needs PostgreSQL 11 or later",
                where=self.where,
                found=f"{connection.info.server_version}",
                cure="upgrade the server",
            )

    def _check_table(self, connection: Connection, table: Table) -> None:
        wanted = ["INSERT", *(["UPDATE", "SELECT"] if table.key else [])]
        for right in wanted:
            found = self._ask(connection, "SELECT has_any_column_privilege(%s, %s)", (_path(table.name), right))
            if not found[0][0]:
                raise AccessError(
                    f"The user of the sink lacks the right to {right}",
                    where=self.where,
                    found=f"no such right on {table.name}",
                    cure=f"GRANT {', '.join(wanted)} ON {table.name} TO the user of the sink",
                )

    def _create_bookkeeping(self, connection: Connection) -> None:
        """Look for the table first: CREATE TABLE waits for locks and needs a right, even where the table exists."""
        statement = (
            f"CREATE TABLE IF NOT EXISTS {quoted_path(self.bookkeeping)} (base text, name text, lease bigint NOT NULL, "
            "round bigint NOT NULL, made timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (base, name))"
        )
        for last in (False, True):
            if self._ask(connection, "SELECT to_regclass(%s)", (_path(self.bookkeeping),))[0][0] is not None:
                return
            try:
                connection.execute(statement.encode())
                return
            except errors.InsufficientPrivilege as error:
                raise AccessError(
                    "The bookkeeping table of the sink is missing, and the user may not create it",
                    where=self.where,
                    found=f"{error.diag.message_primary}",
                    cure=f"as an administrator: {statement}; GRANT SELECT, INSERT, UPDATE, DELETE on it",
                ) from None
            except psycopg.Error as error:
                # Another job may create the table at the same moment.
                if last or not isinstance(error, errors.UniqueViolation | errors.DuplicateTable):
                    raise translated(error, self.where) from None

    def check_prepared(self, wanted: int) -> None:
        with self.connected(patient=False) as connection:
            [(most,)] = self._ask(connection, "SELECT current_setting('max_prepared_transactions')::int")
            [(used,)] = self._ask(connection, "SELECT count(*) FROM pg_prepared_xacts")
        if most < wanted:
            raise ConfigurationError(
                "The server allows too few prepared transactions: EXACTLY_ONCE needs two for each subtask of the sink",
                where=self.where,
                found=f"max_prepared_transactions is {most}, the sink needs {wanted}",
                cure=f"set max_prepared_transactions = {max(64, 2 * wanted)} in postgresql.conf and restart the server, or use "
                "DeliveryGuarantee.AT_LEAST_ONCE",
            )
        if used + wanted > most:
            log.warning("%s: %d of %d prepared transactions are in use", self.where, used, most)


def _path(name: str) -> str:
    """A name for ``to_regclass``."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


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
